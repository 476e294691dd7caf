"""Encode a split text: cut it where no id changes, in batches that workers encode independently."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpt_cli.corpus.blocks import BLOCK, Split, SplitBlock
from gpt_cli.corpus.encoder_pool import ordered_map, process_pool, thread_pool
from gpt_cli.corpus.tokens import Tokens, to_token_dtype
from gpt_cli.errors import UserError
from gpt_cli.literals import Pattern
from gpt_cli.tokenizer import BPETokenizer, ForeignTokenizer, Tokenizer
from gpt_cli.tokenizer.loader import parse_tokenizer
from gpt_cli.tokenizer.pretokenizer import last_safe_split

Encoded = tuple[Tokens, npt.NDArray[np.uint32]]
"""(concatenated ids, number of ids of each text)."""

LONGEST_WORD = 8 * BLOCK  # characters; a longer word is cut
LONGEST_WHOLE = 8 << 20  # bytes of a document that a tokenizer encodes as a whole, in about 2 GB of memory


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive blocks of one split whose ids do not depend on each other: the unit of work of an encoding worker."""

    split: Split
    blocks: Sequence[SplitBlock]


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
        """Return the rule of `tokenizer`; `allow_special`: what reads like a special token is one."""
        if isinstance(tokenizer, ForeignTokenizer) and (allow_special or tokenizer.core is None):
            return cls(whole=True)
        bpe = tokenizer.core if isinstance(tokenizer, ForeignTokenizer) else tokenizer
        if not isinstance(bpe, BPETokenizer):
            return cls()
        vocabulary = bpe.vocabulary
        special = [vocabulary.tokens[token].decode() for token in sorted(vocabulary.special)] if allow_special else ()
        return cls(vocabulary.pattern, special)

    def last_cut(self, text: str) -> int:
        """Return the last index at which `text` can be cut, whatever follows it; 0 if there is none."""
        if self.whole:
            return 0
        if self.pattern is None:
            return len(text)
        size = last_safe_split(text, self.pattern)
        while (start := _start_of_special(text, size, self.special)) < size:
            size = last_safe_split(text[:start], self.pattern)
        if size == 0 and len(text) >= LONGEST_WORD:  # cut it anyway, but not inside a special text
            size = len(text)
            while (start := _start_of_special(text, size, self.special)) < size:
                size = start
        return size

    def last_cut_utf8(self, data: bytes) -> int:
        """`last_cut` of UTF-8, in bytes. Raises UserError for a document that is too long to be encoded as a whole."""
        if self.whole and len(data) > LONGEST_WHOLE:
            raise UserError(
                f"the tokenizer encodes a document as a whole, and one has more than {LONGEST_WHOLE:,} bytes"
            )
        if self.whole or self.pattern is None:
            return 0 if self.whole else len(data)
        text = data.decode()
        return len(data) - len(text[self.last_cut(text) :].encode())


def _start_of_special(text: str, cut: int, special: Sequence[str]) -> int:
    """Return the start of the first special text that a cut at index `cut` would divide, or `cut`.

    A prefix of a special text at the end of `text` counts, as the rest may follow.
    """
    starts = (
        start
        for token in special
        for start in range(max(0, cut - len(token) + 1), cut)
        if text.startswith(token[: len(text) - start], start)
    )
    return min(starts, default=cut)


@dataclass(slots=True)
class _Buffer:
    """The text of one split that is not in a batch yet: blocks, then text with no safe place to cut it."""

    blocks: list[SplitBlock] = field(default_factory=list)
    size: int = 0
    """Bytes of the blocks, and one for each."""
    data: bytes = b""
    """The text after the blocks."""
    starts: bool = False
    """True if `data` starts a document, or its part in this split."""


def batches(blocks: Iterable[SplitBlock], rule: CutRule) -> Iterator[Batch]:
    """Yield the text in batches of about BLOCK bytes, at most twice as many unless documents are not cut.

    The cuts depend on the text alone, so the ids are the same for any number of workers.
    """
    buffers: dict[Split, _Buffer] = {}
    for block in blocks:
        buffer = buffers.setdefault(block.split, _Buffer())
        if buffer.data or buffer.starts:
            block = replace(block, data=buffer.data + block.data, starts=buffer.starts or block.starts)
        size = len(block.data) if block.ends else rule.last_cut_utf8(block.data)
        if size < len(block.data):
            buffer.data, buffer.starts = block.data[size:], block.starts and not size
            block = replace(block, data=block.data[:size], ends=False, ends_document=False, followed=False)
        else:
            buffer.data, buffer.starts = b"", False
        if size or block.followed:
            buffer.blocks.append(block)
            buffer.size += size + 1
        if buffer.size > BLOCK // 2:
            yield Batch(block.split, buffer.blocks)
            buffer.blocks, buffer.size = [], 0
    for split, buffer in buffers.items():
        if buffer.blocks:
            yield Batch(split, buffer.blocks)


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[bytes], starts: Sequence[bool], followed: Sequence[bool], allow_special: bool
) -> Encoded:
    """Return (concatenated ids of all `texts`, number of ids of each).

    `texts` are UTF-8; `starts`: which get what the tokenizer puts before a text; `followed`: which get an end of text.
    Raises as `Tokenizer.encode` does.
    """
    separator = np.array([] if tokenizer.eot_id is None else [tokenizer.eot_id], dtype=np.uint32)
    begin = np.array(tokenizer.begin_ids, dtype=np.uint32)
    arrays: list[Tokens] = []
    lengths = np.zeros(len(texts), dtype=np.uint32)
    for i, (text, starts_document, is_followed) in enumerate(zip(texts, starts, followed, strict=True)):
        ids = tokenizer.encode_utf8(text, allow_special=allow_special)
        parts = [*([begin] if starts_document and len(begin) else []), ids, *([separator] if is_followed else [])]
        lengths[i] = sum(map(len, parts))
        arrays += parts
    return to_token_dtype(arrays[0] if len(arrays) == 1 else np.concatenate(arrays), tokenizer.vocab_size), lengths


def encode_batches(
    tokenizer: Tokenizer, batches: Iterable[Batch], workers: int, *, allow_special: bool
) -> Iterator[tuple[Batch, Encoded]]:
    """Yield each batch with its ids and their number in each block, in order. With one worker this thread encodes.

    Raises as `Tokenizer.encode` does, and UserError when a worker process dies.
    """
    if workers == 1:
        for batch in batches:
            yield batch, encode_texts(tokenizer, *_columns(batch), allow_special)
    elif isinstance(tokenizer, BPETokenizer | ForeignTokenizer):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "tokenizer.json")
            tokenizer.save(file)
            with process_pool(workers, _open_tokenizer, file, allow_special) as pool:
                yield from ordered_map(lambda batch: pool.submit(_encode, *_columns(batch)), batches, workers)
    else:
        with thread_pool(workers) as pool:
            encode = partial(encode_texts, tokenizer, allow_special=allow_special)
            yield from ordered_map(lambda batch: pool.submit(encode, *_columns(batch)), batches, workers)


def _columns(batch: Batch) -> tuple[list[bytes], list[bool], list[bool]]:
    """The blocks of a batch as lists, which take a fraction of the time of objects to send."""
    blocks = batch.blocks
    return [b.data for b in blocks], [b.starts for b in blocks], [b.followed for b in blocks]


_worker: tuple[Tokenizer, bool]


def _open_tokenizer(file: Path, allow_special: bool) -> None:
    """Give this worker process its tokenizer."""
    global _worker
    _worker = parse_tokenizer(file.read_text(encoding="utf-8")), allow_special


def _encode(texts: list[bytes], starts: list[bool], followed: list[bool]) -> Encoded:
    tokenizer, allow_special = _worker
    return encode_texts(tokenizer, texts, starts, followed, allow_special)


def encode_stream(tokenizer: Tokenizer, pieces: Iterable[str], *, allow_special: bool = False) -> Tokens:
    """Return the (n,) ids of a text that comes in pieces: those of the whole text, after what stands before a text.

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
