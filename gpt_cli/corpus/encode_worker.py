"""A worker process that encodes: `python -m gpt_cli.corpus.encode_worker`; `encoder_pool` talks to it through pipes.

It receives a tokenizer and then batches of segments, and replies to each batch with its ids. No pickles: the messages
are numbers, UTF-8 text and arrays. It exits when its standard input ends, so it never outlives its parent.

    tokenizer  size of the rest (8 bytes), allow_special (1), tokenizer.json (UTF-8)
    batch      size of the rest (8 bytes), number n of segments (8), n times 8 bytes: 4 * bytes + 2 * part_start +
               append_eot; UTF-8
    reply      size of the rest (8 bytes), number n of segments (8), n lengths (4 each), ids (2 or 4 each);
               size 0 for a batch that cannot be encoded: the parent encodes it again to get the error
"""

import os
import sys
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from gpt_cli.corpus.segments import Segment, encode_segments
from gpt_cli.corpus.store import Tokens
from gpt_cli.errors import UserError
from gpt_cli.tokenizer import Tokenizer
from gpt_cli.tokenizer.loader import parse_tokenizer


def send_tokenizer(stream: IO[bytes], tokenizer: Tokenizer, allow_special: bool) -> None:
    """Send the tokenizer; the first message."""
    _write(stream, [bytes([allow_special]), tokenizer.to_json().encode()])


def send_segments(stream: IO[bytes], segments: Sequence[Segment]) -> None:
    """Send a batch of segments."""
    sizes = np.array([4 * len(one.data) + 2 * one.part_start + one.append_eot for one in segments], dtype="<u8")
    _write(stream, [len(segments).to_bytes(8, "little"), sizes.tobytes(), *(one.data for one in segments)])


def _write(stream: IO[bytes], parts: Sequence[bytes]) -> None:
    message = b"".join(parts)
    stream.write(len(message).to_bytes(8, "little"))
    stream.write(message)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes:
    """The next message. Raises EOFError if the stream ends before or inside it."""
    header = stream.read(8)
    size = int.from_bytes(header, "little")
    message = stream.read(size)
    if len(header) < 8 or len(message) < size:
        raise EOFError
    return message


def parse_reply(message: bytes, dtype: np.dtype[Any]) -> tuple[Tokens, npt.NDArray[np.uint32]]:
    """(ids of all segments, number of ids of each) of a reply."""
    count = int.from_bytes(message[:8], "little")
    lengths = np.frombuffer(message, dtype="<u4", count=count, offset=8)
    ids = np.frombuffer(message, dtype=dtype.newbyteorder("<"), offset=8 + 4 * count)
    return ids.astype(dtype, copy=False), lengths


def _unpack(message: bytes) -> tuple[list[bytes], list[bool], list[bool]]:
    """The texts of a batch, and which of them an end of text follows and which start a document."""
    count = int.from_bytes(message[:8], "little")
    sizes = np.frombuffer(message, dtype="<u8", count=count, offset=8)
    texts = []
    offset = 8 + 8 * count
    for size in sizes.tolist():
        texts.append(message[offset : offset + size // 4])
        offset += size // 4
    return texts, (sizes % 2).astype(bool).tolist(), (sizes // 2 % 2).astype(bool).tolist()


def main() -> None:
    """Encode until the standard input ends."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    try:
        header = receive(source)
        allow_special, tokenizer = bool(header[0]), parse_tokenizer(header[1:].decode())
        while True:
            batch = _unpack(receive(source))
            try:
                ids, lengths = encode_segments(tokenizer, *batch, allow_special=allow_special)
            except UserError:
                _write(sink, [])
                continue
            little_endian = ids.astype(ids.dtype.newbyteorder("<"), copy=False)
            _write(
                sink, [len(batch[0]).to_bytes(8, "little"), lengths.astype("<u4").tobytes(), little_endian.tobytes()]
            )
    except (EOFError, BrokenPipeError):
        os._exit(0)  # the parent is done, or gone: flushing standard output would fail


if __name__ == "__main__":
    main()
