"""A process that reads ranges of files by itself: `python -m gpt_cli.corpus.range_worker`, asked by `ranges`.

It imports little, for it is started for a few seconds of work. A request is a line of JSON, and so is its answer:

    tell     what ids are: the alphabet in their order, or null for bytes; the id of what it lacks; their type.
             This alone is not answered
    look     a range [path, start, end]: how many characters it has, and which codes how often
    encode   the same, and the places [path, byte, ids] where its ids go, one after the other

A range that is not whole UTF-8 text is answered with {"other": true}. It ends with its standard input.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt_cli.errors import UserError
from gpt_cli.files.disk import BINARY, reported, write_into

RUN = 1 << 18  # bytes looked up at once: all that this takes fits into the cache of a core
_CODE_POINTS = 0x110000

Array = npt.NDArray[Any]


class OtherTextError(ValueError):
    """A range does not hold what it should: it is no text in UTF-8, or it changed."""


def runs(path: Path, start: int, end: int, size: int = RUN) -> Iterator[bytes]:
    """The bytes of a file from `start` to `end`, in runs of whole characters as far as it has such."""
    rest = b""
    with reported("read", path):
        descriptor = os.open(path, os.O_RDONLY | BINARY)
        try:
            os.lseek(descriptor, start, os.SEEK_SET)
            while start < end:
                data = os.read(descriptor, min(size, end - start))
                if not data:
                    raise OtherTextError
                start += len(data)
                data = rest + data
                border = len(data) if start == end else _last_start(data)
                rest = data[border:]
                yield data[:border]
        finally:
            os.close(descriptor)


def _last_start(data: bytes) -> int:
    """Where the last character starts that may go on after `data`; its end if none may."""
    for back in range(1, min(3, len(data)) + 1):
        if data[-back] >= 0xC0:  # 11xxxxxx: a character of several bytes starts
            return len(data) - back
        if data[-back] < 0x80:
            break
    return len(data)


class Reader:
    """Looks at ranges, and encodes them."""

    def __init__(self, alphabet: str | None, unknown: int, dtype: str, size: int = RUN) -> None:
        self._by_bytes = alphabet is None
        self._dtype = np.dtype(dtype)
        self._size = size
        self._ids: Array = np.full(_CODE_POINTS if alphabet else 0, unknown, self._dtype)
        if alphabet:
            self._ids[_codes(alphabet.encode())] = np.arange(len(alphabet))

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """What to say to a request."""
        try:
            match request["do"]:
                case "look":
                    return self.look(*request["range"])
                case _:
                    return self.encode(*request["range"], places=request["places"])
        except UserError as error:
            return {"error": error.message, "hint": error.hint}
        except ValueError:
            return {"other": True}

    def look(self, path: str, start: int, end: int) -> dict[str, Any]:
        """How many characters a range has, and how often each code occurs: of a character, or of a byte."""
        characters = 0
        counts = np.zeros(256, np.int64)
        for run in runs(Path(path), start, end, self._size):
            codes = _codes(run)
            characters += len(codes)
            found = np.bincount(np.frombuffer(run, np.uint8) if self._by_bytes else codes)
            if len(found) > len(counts):
                counts, found = found, counts
            counts[: len(found)] += found
        if counts[0]:
            raise OtherTextError  # a zero: binary
        seen = np.flatnonzero(counts)
        return {"characters": characters, "codes": seen.tolist(), "counts": counts[seen].tolist()}

    def encode(self, path: str, start: int, end: int, *, places: Sequence[tuple[str, int, int]]) -> dict[str, Any]:
        """Write the ids of a range to their places. Raises DiskError where they cannot be written."""
        left = list(places)
        for run in runs(Path(path), start, end, self._size):
            ids = self._encoded(run)
            while len(ids):
                if not left:
                    raise OtherTextError
                into, byte, room = left.pop(0)
                piece, ids = ids[:room], ids[room:]
                write_into(Path(into), byte, piece.data.cast("B"))
                if len(piece) < room:
                    left.insert(0, (into, byte + piece.nbytes, room - len(piece)))
        if left:
            raise OtherTextError
        return {}

    def _encoded(self, run: bytes) -> Array:
        if self._by_bytes:
            return np.frombuffer(run, np.uint8).astype(self._dtype)
        return np.take(self._ids, _codes(run), mode="clip")  # clip: the fastest mode


def _codes(run: bytes) -> Array:
    """The code points of UTF-8. Raises UnicodeDecodeError, a ValueError."""
    text = run.decode()
    return np.frombuffer(run, np.uint8) if len(text) == len(run) else np.frombuffer(text.encode("utf-32-le"), "<u4")


def main() -> None:
    """Answer until the standard input ends."""
    reader = Reader(None, 0, "<u2")
    try:
        for line in sys.stdin.buffer:
            request = json.loads(line)
            if request["do"] == "tell":
                reader = Reader(request["alphabet"], request["unknown"], request["type"])
                continue
            sys.stdout.write(json.dumps(reader.answer(request)) + "\n")
            sys.stdout.flush()
    except BrokenPipeError:
        pass
    os._exit(0)  # who asked is done, or gone; flushing what is buffered for it would fail


if __name__ == "__main__":
    main()
