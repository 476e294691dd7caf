"""The bits of each token of a text, by token, by line and by span of whole characters.

Shapes: N tokens, L lines.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gpt_cli.evaluation.logprob_scorer import LogProbs
from gpt_cli.tokenizer import Ids, Tokenizer

SurpriseKey = Literal["bits-per-byte", "bits"]


@dataclass(frozen=True)
class Span:
    """The fewest tokens of a line that make whole characters, and their bits; None for the first of the text."""

    text: str
    bits: float | None


@dataclass(frozen=True)
class ScoredLine:
    """A line, with its newline, and the tokens that begin in it."""

    number: int
    """From 1."""
    text: str
    tokens: list[int]
    pieces: list[str]
    """The text of each token; bytes of an incomplete character as `\\xe2`."""
    log_probs: list[float | None]
    """Natural log-probabilities; None for the first token of the text, which is not predicted."""
    bits: float
    """The sum of the bits of the predicted tokens."""
    bytes: int
    """UTF-8 bytes of the predicted tokens."""
    spans: list[Span]

    @property
    def bits_per_byte(self) -> float | None:
        """None if no byte was predicted."""
        return self.bits / self.bytes if self.bytes else None

    def record(self) -> dict[str, Any]:
        """The line for JSON: its pieces, joined, are the text."""
        rate = self.bits_per_byte
        return {
            "line": self.number,
            "text": self.text,
            "tokens": self.tokens,
            "pieces": self.pieces,
            "log_probs": [None if value is None else round(value, 6) for value in self.log_probs],
            "bits": round(self.bits, 6),
            "bytes": self.bytes,
            "bits_per_byte": None if rate is None else round(rate, 6),
        }


class ScoredText:
    """A text with the log-probabilities of its tokens."""

    def __init__(
        self, tokenizer: Tokenizer, text: str, ids: Ids, log_probs: LogProbs, *, allow_special: bool = False
    ) -> None:
        self.ids, self.log_probs = ids, log_probs
        self._tokenizer = tokenizer
        self._data = text.encode()
        _, self._starts = tokenizer.encode_spans(text, allow_special=allow_special)  # (N + 1,) where each token begins
        assert self._starts[-1] == len(self._data)
        # (N,) bytes, as bits per byte are counted: none for <unk>
        self._sizes = np.where(ids == tokenizer.unk_id, 0, np.diff(self._starts))
        newlines = np.flatnonzero(np.frombuffer(self._data, np.uint8) == ord("\n")) + 1
        self._lines = np.unique(np.concatenate([[0], newlines, [len(self._data)]]))  # (L + 1,) where lines begin
        self._firsts = np.searchsorted(self._starts[:-1], self._lines)  # (L + 1,) the first token of each
        self._firsts[-1] = len(ids)  # an end token that stands after the text is in the last line
        self._bits = np.nan_to_num(log_probs) / -math.log(2)

    def __len__(self) -> int:
        return len(self._lines) - 1

    @property
    def tokens(self) -> int:
        """Number of predicted tokens: all but the first."""
        return len(self.ids) - 1

    @property
    def loss(self) -> float:
        """Nats per predicted token."""
        return -float(self.log_probs[1:].sum()) / self.tokens

    @property
    def bits(self) -> float:
        """The bits of the text, without its first token."""
        return float(self._bits.sum())

    @property
    def bytes(self) -> int:
        """Bytes of the predicted tokens."""
        return int(self._sizes[1:].sum())

    @property
    def bits_per_byte(self) -> float:
        """Comparable between models with different tokenizers."""
        return self.bits / max(1, self.bytes)

    def figures(self) -> dict[str, float]:
        """The metrics of the whole text by name; loss in nats per token."""
        return {
            "loss": self.loss,
            "perplexity": math.exp(min(self.loss, 700.0)),
            "bits": self.bits,
            "bpb": self.bits_per_byte,
            "tokens": self.tokens,
            "bytes": self.bytes,
            "lines": len(self),
        }

    def line(self, index: int) -> ScoredLine:
        """Line number `index + 1`."""
        first, last = int(self._firsts[index]), int(self._firsts[index + 1])
        ids = self.ids[first:last].tolist()
        log_probs = [None if i == 0 else float(self.log_probs[i]) for i in range(first, last)]
        predicted = slice(max(1, first), max(1, last))
        return ScoredLine(
            number=index + 1,
            text=self._data[self._lines[index] : self._lines[index + 1]].decode(),
            tokens=ids,
            pieces=[self.piece(i) for i in range(first, last)],
            log_probs=log_probs,
            bits=float(self._bits[predicted].sum()),
            bytes=int(self._sizes[predicted].sum()),
            spans=self._spans(int(self._lines[index]), int(self._lines[index + 1])),
        )

    def piece(self, token: int) -> str:
        """The text of token number `token`."""
        return self._data[self._starts[token] : self._starts[token + 1]].decode(errors="backslashreplace")

    def top_surprising(self, n: int, by: SurpriseKey) -> list[int]:
        """The indices of the `n` most surprising lines, the highest first; of equals the earlier one.

        Blank lines come last: the bits of a lone newline would be a high rate without meaning.
        """
        starts = self._lines.tolist()
        blank = [not self._data[start:end].strip() for start, end in pairwise(starts)]
        return [int(i) for i in np.lexsort((-self._cost(by), np.array(blank)))[:n]]

    def _cost(self, by: SurpriseKey) -> LogProbs:
        """(L,) bits or bits per byte of each line; 0 if nothing was predicted."""
        sums = np.concatenate([[0.0], self._bits.cumsum()])
        bits: LogProbs = sums[self._firsts[1:]] - sums[self._firsts[:-1]]
        if by == "bits":
            return bits
        sizes = np.concatenate([[0, 0], self._sizes[1:].cumsum()])
        per_line = sizes[self._firsts[1:]] - sizes[self._firsts[:-1]]
        rates: LogProbs = np.divide(bits, per_line, out=np.zeros(len(self)), where=per_line > 0)
        return rates

    @cached_property
    def _character_tokens(self) -> npt.NDArray[np.int64]:
        """Indices of the first tokens that start at the start of a character, and N."""
        begins = np.append((np.frombuffer(self._data, np.uint8) & 0xC0) != 0x80, True)[self._starts[:-1]]
        is_first = np.diff(self._starts[:-1], prepend=-1) > 0
        return np.flatnonzero(np.append(begins & is_first, True))

    @cached_property
    def _character_starts(self) -> npt.NDArray[np.int64]:
        """Byte offsets of these tokens, and the length of the text."""
        return self._starts[self._character_tokens]

    def _spans(self, start: int, end: int) -> list[Span]:
        """The spans of the bytes from `start` to `end`; a token that crosses the end of a line is cut there."""
        spans: list[Span] = []
        i = int(np.searchsorted(self._character_starts, start, side="right")) - 1
        while i + 1 < len(self._character_tokens) and self._character_starts[i] < end:
            first, last = self._character_tokens[i], self._character_tokens[i + 1]
            part = self._data[max(start, self._character_starts[i]) : min(end, self._character_starts[i + 1])]
            spans.append(Span(part.decode(), None if last == 1 else float(self._bits[first:last].sum())))
            i += 1
        return spans
