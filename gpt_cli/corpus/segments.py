"""A divided text, cut into batches of segments that can be encoded apart from each other."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpt_cli.corpus.corpus_text import BLOCK
from gpt_cli.corpus.split import Chunk, Split
from gpt_cli.corpus.store import Tokens, to_token_dtype
from gpt_cli.literals import Pattern
from gpt_cli.tokenizer import BPETokenizer, Tokenizer
from gpt_cli.tokenizer.pretokenizer import last_safe_split

_LONGEST_WORD = 8 * BLOCK  # characters without a white space to cut at, after which they are cut anyway


@dataclass(frozen=True, slots=True)
class Segment:
    """Text whose ids do not depend on what stands around it."""

    data: bytes
    """The text, in UTF-8."""
    part_start: bool
    """True if a document, or the part of one in its split, starts here."""
    append_eot: bool
    """True if an end of text follows, where the vocabulary has one."""

    @property
    def text(self) -> str:
        return self.data.decode()


@dataclass(frozen=True, slots=True)
class Batch:
    """Segments of one split that are encoded at once, in their order."""

    split: Split
    segments: Sequence[Segment]
    done: int
    """Bytes of the corpus that were read up to here."""


@dataclass(slots=True)
class _Buffer:
    """Text of one split that is not in a batch yet."""

    data: bytes = b""
    part_start: bool = False
    segments: list[Segment] = field(default_factory=list)
    size: int = 0
    ended: bool = True
    """True if what was read last is kept apart from what comes next."""


def batches(
    chunks: Iterable[Chunk], pattern: Pattern | None, *, end_lines: bool, special: Sequence[str] = ()
) -> Iterator[Batch]:
    """The chunks in batches of about BLOCK bytes, at most twice as many.

    `pattern`: of a BPE, which says where text can be cut; never inside one of the `special` texts. The cuts depend on
    the text alone, so the ids do not depend on who encodes which batch.
    """
    pending: dict[Split, _Buffer] = {}
    done = 0
    for chunk in chunks:
        done = chunk.done
        part = pending.setdefault(chunk.split, _Buffer())
        data, starts = part.data + chunk.data, part.part_start or chunk.part_start
        if chunk.repeat_start and not part.ended:
            _add(part, b"\n" if end_lines else b"", starts=False, followed=True)
        size = len(data) if chunk.part_end or pattern is None else _safe_split_bytes(data, pattern, special)
        if size:
            _add(part, data[:size], starts=starts, followed=chunk.append_eot and size == len(data))
            starts = False
        part.data, part.part_start = data[size:], starts
        part.ended = chunk.data.endswith(b"\n") if end_lines else chunk.append_eot
        if part.size > BLOCK // 2:
            yield Batch(chunk.split, part.segments, done)
            part.segments, part.size = [], 0
    for split, part in pending.items():
        if part.segments:
            yield Batch(split, part.segments, done)


def _add(part: _Buffer, data: bytes, *, starts: bool, followed: bool) -> None:
    part.segments.append(Segment(data, starts, followed))
    part.size += len(data) + 1


def _safe_split_bytes(data: bytes, pattern: Pattern, special: Sequence[str]) -> int:
    """`_safe_split` of UTF-8, in bytes."""
    text = data.decode()
    size = _safe_split(text, pattern, special)
    return len(data) - len(text[size:].encode())


def _safe_split(text: str, pattern: Pattern | None, special: Sequence[str]) -> int:
    """A safe place to split `text`, which goes on; 0 if more should be read first."""
    if pattern is None:
        return len(text)
    size = last_safe_split(text, pattern)
    while (start := _start_of_special(text, size, special)) < size:
        size = last_safe_split(text[:start], pattern)
    if size == 0 and len(text) >= _LONGEST_WORD:
        size = len(text)
        while (start := _start_of_special(text, size, special)) < size:
            size = start
    return size


def _start_of_special(text: str, cut: int, special: Sequence[str]) -> int:
    """The start of the first special text that a cut at `cut` would divide; `cut` if it divides none.

    What `text` ends in can be the beginning of one.
    """
    inside = (
        start
        for word in special
        for start in range(max(0, cut - len(word) + 1), cut)
        if text.startswith(word[: len(text) - start], start)
    )
    return min(inside, default=cut)


def encode_segments(
    tokenizer: Tokenizer, texts: Sequence[bytes], followed: Sequence[bool], *, allow_special: bool
) -> tuple[Tokens, npt.NDArray[np.uint32]]:
    """The ids of all `texts` (UTF-8), one after the other, and how many each has, its end of text included.

    Raises what `Tokenizer.encode` raises.
    """
    end = tokenizer.eot_id
    separator = np.array([] if end is None else [end], dtype=np.uint32)
    arrays: list[Tokens] = []
    lengths = np.zeros(len(texts), dtype=np.uint32)
    for i, (text, ends) in enumerate(zip(texts, followed, strict=True)):
        ids = tokenizer.encode_utf8(text, allow_special=allow_special)
        lengths[i] = len(ids) + (len(separator) if ends else 0)
        arrays += [ids, separator] if ends else [ids]
    return to_token_dtype(arrays[0] if len(arrays) == 1 else np.concatenate(arrays), tokenizer.vocab_size), lengths


def encode_stream(tokenizer: Tokenizer, pieces: Iterable[str]) -> Tokens:
    """(n,) the ids of a text that comes in pieces, the same as of all of it at once.

    In memory are the ids and a piece, or a word that is longer. Raises what `Tokenizer.encode` raises.
    """
    pattern = tokenizer.vocabulary.pattern if isinstance(tokenizer, BPETokenizer) else None
    arrays: list[Tokens] = []
    held = ""
    for piece in pieces:
        held += piece
        if size := _safe_split(held, pattern, ()):
            arrays.append(to_token_dtype(tokenizer.encode(held[:size]), tokenizer.vocab_size))
            held = held[size:]
    return np.concatenate([*arrays, to_token_dtype(tokenizer.encode(held), tokenizer.vocab_size)])
