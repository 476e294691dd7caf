"""Attention weights as small pictures: PNG for a page, ASCII for a terminal.

Shapes: T tokens.
"""

import base64
import struct
import zlib

import numpy as np
import numpy.typing as npt

WeightMatrix = npt.NDArray[np.float32]  # (T, T): row t has the weights of query t

RAMP = " .:-=+*#%@"  # ten shades, the darkest last


def png(weights: WeightMatrix, colour: tuple[int, int, int]) -> bytes:
    """(T, T) weights from 0 to 1 as a PNG of T by T pixels in `colour`, whose opacity is the root of the weight.

    The root keeps small weights visible; the transparent background serves light and dark mode.
    """
    shades = np.sqrt(weights.clip(0.0, 1.0))
    rows = np.rint(255 * shades).astype(np.uint8)
    height, width = rows.shape
    raw = b"".join(b"\0" + row.tobytes() for row in rows)  # each row unfiltered
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, data)
        for kind, data in (
            (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),  # 8 bits, of a palette
            (b"PLTE", bytes(colour) * 256),
            (b"tRNS", bytes(range(256))),
            (b"IDAT", zlib.compress(raw, 9)),
            (b"IEND", b""),
        )
    )


def data_url(picture: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"


def ascii_rows(weights: WeightMatrix, columns: int, rows: int) -> list[str]:
    """The weights, max-pooled, in at most `rows` lines of at most `columns` characters of RAMP."""
    n_query, n_key = weights.shape
    columns, rows = min(columns, n_key), min(rows, n_query)
    key_starts = np.linspace(0, n_key, columns, endpoint=False).astype(int)
    query_starts = np.linspace(0, n_query, rows, endpoint=False).astype(int)
    fields = np.maximum.reduceat(np.maximum.reduceat(weights, query_starts, axis=0), key_starts, axis=1)
    return ["".join(shade(float(value)) for value in row) for row in fields]


def shade(weight: float) -> str:
    """The character of RAMP for a weight from 0 to 1: blank below 0.05, then tenths."""
    return RAMP[0] if weight < 0.05 else RAMP[min(len(RAMP) - 1, max(1, int(weight * len(RAMP))))]


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
