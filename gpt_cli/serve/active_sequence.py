"""One text on its way: from tokens to the pieces that a client is sent, with what each token cost.

Shapes: V vocabulary.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from gpt_cli.cpu.decode.numpy_sampler import filtered
from gpt_cli.sampling.native_stream import unsupported_settings
from gpt_cli.sampling.text_stream import TextStream
from gpt_cli.serve.text_engine import Logits, NewTokens, SequenceRequest, SlotHandle, TextEngine, native_token_choice
from gpt_cli.tokenizer import Tokenizer

if TYPE_CHECKING:
    from gpt_cli.serve.scheduler import ChunkQueue

Alternatives = list[tuple[int, float]]


@dataclass(frozen=True)
class TokenLogprob:
    """A token with its natural log-probability, before any filter, and its likeliest alternatives. None: nothing
    predicts it."""

    token: int
    log_prob: float | None
    likeliest: Alternatives
    after: list[float] | None = None
    """The probabilities of the likeliest after temperature and filters. None: it is not known, or nobody asked."""


@dataclass(frozen=True)
class SequenceChunk:
    """The text written since the last piece, of text `index` of a request."""

    index: int
    text: str
    tokens: list[int]
    costs: list[TokenLogprob]
    finish: str | None = None
    """Why the text ended: stop, length, time, or error. None: it has not."""


def join_chunks(pieces: Iterable[SequenceChunk]) -> list[SequenceChunk]:
    """One piece of each text, in the order in which they began."""
    joined: dict[int, SequenceChunk] = {}
    for piece in pieces:
        known = joined.get(piece.index)
        joined[piece.index] = (
            piece
            if known is None
            else SequenceChunk(
                piece.index,
                known.text + piece.text,
                known.tokens + piece.tokens,
                known.costs + piece.costs,
                piece.finish,
            )
        )
    return list(joined.values())


@dataclass(eq=False)
class ActiveSequence:
    """A text in the scheduler: who waits for it, and how far it has got."""

    index: int
    engine: TextEngine
    tokenizer: Tokenizer
    request: SequenceRequest
    top: int | None
    """Alternatives to report of each token; None: not even its log-probability."""
    mailbox: "ChunkQueue"
    deadline: float
    streamed: bool = True
    """True: each piece as it comes; False: the whole text as the only piece."""
    submitted: float = field(default_factory=time.monotonic)
    cancelled: bool = False
    place: SlotHandle | None = None
    stream: TextStream | None = None
    begun: float | None = None
    _costs: list[TokenLogprob] = field(default_factory=list)
    _sent: int = 0

    def join_engine(self) -> None:
        """Join the engine's texts."""
        self.place = self.engine.join(self.request)
        how = self.request.sampling
        self.stream = TextStream(
            self.tokenizer, how.stop, iter(()), min_new_tokens=how.min_new_tokens, matcher=self.place.matcher
        )

    @property
    def left(self) -> int:
        """Tokens that may still be written."""
        assert self.stream is not None
        return self.request.sampling.max_new_tokens - len(self.stream.tokens)

    def accept(self, written: NewTokens) -> SequenceChunk | None:
        """Go on with these tokens: the piece to send, if there is anything to say."""
        assert self.stream is not None
        assert self.place is not None
        before = len(self.stream.tokens)
        if not self.place.single:
            self.stream.extend([token for token, _ in written])
        for token, logits in written if self.place.single else ():
            known = len(self.stream.tokens)
            self.stream.push(token)
            if len(self.stream.tokens) > known and self.top is not None and logits is not None:
                cost = compute_logprob(logits, token, self.top or 0)
                self._costs.append(replace(cost, after=self._after(logits, cost)) if cost.likeliest else cost)
        if self.stream.finish_reason is None and self.left <= 0:
            self.stream.finish("length")
        reason = self.stream.finish_reason
        if reason is None and not self.streamed:
            return None
        piece = self.stream.taken()
        if len(self.stream.tokens) == before and not piece and reason is None:
            return None
        if reason is not None:
            self.place = None  # which another text may have
        return self._piece(piece, None if reason is None else "length" if reason == "length" else "stop")

    def _after(self, logits: Logits, cost: TokenLogprob) -> list[float] | None:
        """Probabilities of the likeliest tokens after temperature and filters."""
        if self.request.penalties or unsupported_settings(self.request.sampling):
            return None
        if self.request.sampling.greedy:
            return [float(token == cost.token) for token, _ in cost.likeliest]
        left = filtered(logits, native_token_choice(self.request.sampling, self.tokenizer)).astype(np.float64)
        powers = np.exp(left - left.max())
        return [float(powers[token] / powers.sum()) for token, _ in cost.likeliest]

    def end(self, reason: str) -> SequenceChunk:
        """The last piece, of a text that is cut off."""
        if self.stream is None:
            return self._piece("", reason)
        self.stream.finish("length")
        return self._piece(self.stream.taken(), reason)

    def _piece(self, text: str, finish: str | None) -> SequenceChunk:
        tokens = [] if self.stream is None else self.stream.tokens[self._sent :]
        self._sent += len(tokens)
        costs, self._costs = self._costs, []
        return SequenceChunk(self.index, text, tokens, costs, finish)


def compute_logprob(logits: Logits, token: int, top: int) -> TokenLogprob:
    """The cost of `token` under (V,) `logits`, and the `top` likeliest."""
    numbers = logits.astype(np.float64)
    numbers -= numbers.max()
    numbers -= np.log(np.exp(numbers).sum())
    best: Alternatives = []
    if top:
        top = min(top, len(numbers))
        ids = np.argpartition(-numbers, top - 1)[:top]
        ids = ids[np.lexsort((ids, -numbers[ids]))]
        best = [(int(i), float(numbers[i])) for i in ids]
    return TokenLogprob(token, float(numbers[token]), best)
