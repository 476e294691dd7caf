"""A process that encodes: `python -m gpt_cli.corpus.encode_worker`, fed through pipes by `pool`.

It is given a tokenizer, and then batches of segments, each of which it answers with ids. No pickles: the
messages are numbers, UTF-8 text and arrays. It ends with its standard input, so it never outlives who started it.

    first    size of the rest (8 bytes), whether text becomes special tokens (1), tokenizer.json (UTF-8)
    message  size of the rest (8 bytes), number n of segments (8), n times 8 bytes: 2 * bytes + followed; UTF-8
    answer   size of the rest (8 bytes), number n of segments (8), n lengths (4 each), ids (2 or 4 each);
             0 for a batch that could not be encoded: who sent it then finds the reason by encoding it
"""

import os
import sys
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from gpt_cli.corpus.segments import encode_segments
from gpt_cli.corpus.store import Tokens
from gpt_cli.errors import UserError
from gpt_cli.tokenizer import Tokenizer
from gpt_cli.tokenizer.loader import parse_tokenizer


def send_tokenizer(stream: IO[bytes], tokenizer: Tokenizer, allow_special: bool) -> None:
    """Send the tokenizer; the first message."""
    _write(stream, [bytes([allow_special]), tokenizer.to_json().encode()])


def send_segments(stream: IO[bytes], texts: Sequence[bytes], followed: Sequence[bool]) -> None:
    """Ask for the ids of segments, whose texts are UTF-8."""
    sizes = np.array([2 * len(text) + ends for text, ends in zip(texts, followed, strict=True)], dtype="<u8")
    _write(stream, [len(texts).to_bytes(8, "little"), sizes.tobytes(), *texts])


def _write(stream: IO[bytes], parts: Sequence[bytes]) -> None:
    message = b"".join(parts)
    stream.write(len(message).to_bytes(8, "little"))
    stream.write(message)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes:
    """The next message. Raises EOFError where there is none, or only a part of it."""
    header = stream.read(8)
    size = int.from_bytes(header, "little")
    message = stream.read(size)
    if len(header) < 8 or len(message) < size:
        raise EOFError
    return message


def read_answer(message: bytes, dtype: np.dtype[Any]) -> tuple[Tokens, npt.NDArray[np.uint32]]:
    """The ids of an answer, and how many each segment has."""
    count = int.from_bytes(message[:8], "little")
    lengths = np.frombuffer(message, dtype="<u4", count=count, offset=8)
    ids = np.frombuffer(message, dtype=dtype.newbyteorder("<"), offset=8 + 4 * count)
    return ids.astype(dtype, copy=False), lengths


def _unpack(message: bytes) -> tuple[list[bytes], list[bool]]:
    count = int.from_bytes(message[:8], "little")
    sizes = np.frombuffer(message, dtype="<u8", count=count, offset=8)
    texts = []
    place = 8 + 8 * count
    for size in sizes.tolist():
        texts.append(message[place : place + size // 2])
        place += size // 2
    return texts, (sizes % 2).astype(bool).tolist()


def main() -> None:
    """Encode until the standard input ends."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    try:
        first = receive(source)
        allow_special, tokenizer = bool(first[0]), parse_tokenizer(first[1:].decode())
        while True:
            texts, followed = _unpack(receive(source))
            try:
                ids, lengths = encode_segments(tokenizer, texts, followed, allow_special=allow_special)
            except UserError:
                _write(sink, [])
                continue
            little = ids.astype(ids.dtype.newbyteorder("<"), copy=False)
            _write(sink, [len(texts).to_bytes(8, "little"), lengths.astype("<u4").tobytes(), little.tobytes()])
    except (EOFError, BrokenPipeError):
        os._exit(0)  # who asked is done, or gone; flushing what is buffered for it would fail


if __name__ == "__main__":
    main()
