"""Cut the chunks of a split text into batches of segments that can be encoded independently."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from gpt_cli.corpus.corpus_text import BLOCK
from gpt_cli.corpus.split import Chunk, Split
from gpt_cli.corpus.store import Tokens, to_token_dtype
from gpt_cli.errors import UserError
from gpt_cli.literals import Pattern
from gpt_cli.tokenizer import BPETokenizer, ForeignTokenizer, Tokenizer
from gpt_cli.tokenizer.pretokenizer import last_safe_split

LONGEST_WORD = 8 * BLOCK  # characters; a longer word is cut
LONGEST_WHOLE = 8 << 20  # bytes of a document that a tokenizer encodes as a whole, in about 2 GB of memory


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a text whose ids do not depend on the text around it."""

    data: bytes
    """The text, in UTF-8."""
    part_start: bool
    """True if a document, or its part in this split, starts with this segment."""
    append_eot: bool
    """True if an end of text follows, if the vocabulary has one."""

    @property
    def text(self) -> str:
        return self.data.decode()


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive segments of one split, the unit of work of an encoding worker."""

    split: Split
    segments: Sequence[Segment]
    done: int
    """Bytes of the corpus read so far."""


@dataclass(slots=True)
class _Buffer:
    """The text of one split that is not in a batch yet: whole segments, then text with no safe place to cut it."""

    segments: list[Segment] = field(default_factory=list)
    size: int = 0
    """Bytes of the segments, and one for each."""
    data: bytes = b""
    """The text after the segments."""
    part_start: bool = False
    """True if `data` starts a document, or its part in this split."""
    is_separated: bool = True
    """True if the last chunk ends with the separator of documents."""

    def add_segment(self, data: bytes, *, part_start: bool, append_eot: bool) -> None:
        self.segments.append(Segment(data, part_start, append_eot))
        self.size += len(data) + 1


@dataclass(frozen=True)
class CutRule:
    """The places at which a text can be cut without a change of its ids."""

    pattern: Pattern | None = None
    """That of a BPE, where none of its matches is cut; None: anywhere."""
    special: Sequence[str] = ()
    """Texts that are not cut either."""
    whole: bool = False
    """Nowhere: documents are encoded as a whole."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, allow_special: bool) -> "CutRule":
        """That of `tokenizer`; `allow_special`: what reads like a special token is one."""
        if isinstance(tokenizer, ForeignTokenizer) and (allow_special or tokenizer.core is None):
            return cls(whole=True)
        bpe = tokenizer.core if isinstance(tokenizer, ForeignTokenizer) else tokenizer
        if not isinstance(bpe, BPETokenizer):
            return cls()
        vocabulary = bpe.vocabulary
        special = [vocabulary.tokens[token].decode() for token in sorted(vocabulary.special)] if allow_special else ()
        return cls(vocabulary.pattern, special)

    def last_cut(self, text: str) -> int:
        """The last index at which `text` can be cut, whatever follows it; 0 if there is none."""
        return 0 if self.whole else _safe_split(text, self.pattern, self.special)

    def last_cut_utf8(self, data: bytes) -> int:
        """`last_cut` of UTF-8, in bytes. Raises UserError for a document that is too long to be encoded as a whole."""
        if self.whole:
            if len(data) > LONGEST_WHOLE:
                raise UserError(
                    f"the tokenizer encodes a document as a whole, and one has more than {LONGEST_WHOLE:,} bytes",
                    hint="divide it into several documents",
                )
            return 0
        if self.pattern is None:
            return len(data)
        text = data.decode()
        return len(data) - len(text[self.last_cut(text) :].encode())


def batches(chunks: Iterable[Chunk], rule: CutRule, *, end_lines: bool) -> Iterator[Batch]:
    """The chunks in batches of about BLOCK bytes, at most twice as many unless documents are not cut.

    The cuts depend on the text alone, so the ids are the same for any number of workers.
    """
    buffers: dict[Split, _Buffer] = {}
    done = 0
    for chunk in chunks:
        done = chunk.done
        buffer = buffers.setdefault(chunk.split, _Buffer())
        if chunk.repeat_start and not buffer.is_separated:
            buffer.add_segment(b"\n" if end_lines else b"", part_start=False, append_eot=True)
        data, part_start = buffer.data + chunk.data, buffer.part_start or chunk.part_start
        size = len(data) if chunk.part_end else rule.last_cut_utf8(data)
        if size:
            append_eot = chunk.append_eot and size == len(data)
            buffer.add_segment(data[:size], part_start=part_start, append_eot=append_eot)
            part_start = False
        buffer.data, buffer.part_start = data[size:], part_start
        buffer.is_separated = chunk.data.endswith(b"\n") if end_lines else chunk.append_eot
        if buffer.size > BLOCK // 2:
            yield Batch(chunk.split, buffer.segments, done)
            buffer.segments, buffer.size = [], 0
    for split, buffer in buffers.items():
        if buffer.segments:
            yield Batch(split, buffer.segments, done)


def _safe_split(text: str, pattern: Pattern | None, special: Sequence[str]) -> int:
    """The last index at which `text` can be cut without a change of ids, whatever follows it; 0 if there is none."""
    if pattern is None:
        return len(text)
    size = last_safe_split(text, pattern)
    while (start := _start_of_special(text, size, special)) < size:
        size = last_safe_split(text[:start], pattern)
    if size == 0 and len(text) >= LONGEST_WORD:  # cut it anyway, but not inside a special text
        size = len(text)
        while (start := _start_of_special(text, size, special)) < size:
            size = start
    return size


def _start_of_special(text: str, cut: int, special: Sequence[str]) -> int:
    """The start of the first special text that a cut at index `cut` would divide, or `cut`.

    A prefix of a special text at the end of `text` counts, as the rest may follow.
    """
    starts = (
        start
        for token in special
        for start in range(max(0, cut - len(token) + 1), cut)
        if text.startswith(token[: len(text) - start], start)
    )
    return min(starts, default=cut)


def encode_segments(
    tokenizer: Tokenizer,
    texts: Sequence[bytes],
    append_eot: Sequence[bool],
    part_start: Sequence[bool] | None = None,
    *,
    allow_special: bool,
) -> tuple[Tokens, npt.NDArray[np.uint32]]:
    """(concatenated ids of all `texts`, number of ids of each).

    `append_eot` says which get an end of text, `part_start` which get what the tokenizer puts before a text. `texts`
    are UTF-8. Raises as `Tokenizer.encode` does.
    """
    separator = np.array([] if tokenizer.eot_id is None else [tokenizer.eot_id], dtype=np.uint32)
    begin = np.array(tokenizer.begin_ids, dtype=np.uint32)
    starts = part_start or [False] * len(texts)
    arrays: list[Tokens] = []
    lengths = np.zeros(len(texts), dtype=np.uint32)
    for i, (text, eot, starts_document) in enumerate(zip(texts, append_eot, starts, strict=True)):
        ids = tokenizer.encode_utf8(text, allow_special=allow_special)
        parts = [*([begin] if starts_document and len(begin) else []), ids, *([separator] if eot else [])]
        lengths[i] = sum(map(len, parts))
        arrays += parts
    return to_token_dtype(arrays[0] if len(arrays) == 1 else np.concatenate(arrays), tokenizer.vocab_size), lengths


def encode_stream(tokenizer: Tokenizer, pieces: Iterable[str], *, allow_special: bool = False) -> Tokens:
    """(n,) ids of a text that comes in pieces: the same as those of the whole text, after what stands before a text.

    `allow_special`: what reads like a special token is one. Holds the ids, and a piece or a longer word. Raises as
    `Tokenizer.encode` does.
    """
    rule = CutRule.of(tokenizer, allow_special=allow_special)
    encode = partial(tokenizer.encode, allow_special=allow_special)
    arrays: list[Tokens] = [to_token_dtype(np.array(tokenizer.begin_ids, dtype=np.uint32), tokenizer.vocab_size)]
    pending = ""
    for piece in pieces:
        pending += piece
        if size := rule.last_cut(pending):
            arrays.append(to_token_dtype(encode(pending[:size]), tokenizer.vocab_size))
            pending = pending[size:]
    return np.concatenate([*arrays, to_token_dtype(encode(pending), tokenizer.vocab_size)])
