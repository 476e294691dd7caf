"""One sequence that is being generated: its tokens become the chunks of text, with log-probabilities, to be sent.

Shapes: V vocabulary.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from gpt_cli.cpu.decode.numpy_sampler import filtered
from gpt_cli.sampling.heal import PromptHealer
from gpt_cli.sampling.native_stream import native_token_choice, unsupported_settings
from gpt_cli.sampling.prompt import log_softmax
from gpt_cli.sampling.text_stream import TextStream
from gpt_cli.serve.text_engine import Logits, NewTokens, SequenceRequest, SlotHandle, TextEngine
from gpt_cli.tokenizer import Tokenizer

if TYPE_CHECKING:
    from gpt_cli.serve.scheduler import ChunkQueue


@dataclass(frozen=True)
class TokenLogprob:
    """A token with its natural log-probability before any filter, and those of its likeliest alternatives."""

    token: int
    logprob: float | None
    """None for the first token of a scored text, which nothing predicts."""
    top_logprobs: list[tuple[int, float]]
    """The likeliest tokens, best first, each with its log-probability."""
    filtered_probs: list[float] | None = None
    """Probabilities of `top_logprobs` after temperature and filters. None: unknown, or not requested."""
    new_bytes: bytes = b""
    """All that a first token adds to the prompt, if it begins inside it."""


@dataclass(frozen=True)
class SequenceChunk:
    """The text and tokens generated since the last chunk of sequence `index` of a request."""

    index: int
    text: str
    tokens: list[int]
    logprobs: list[TokenLogprob]
    finish_reason: str | None = None
    """stop, length, time or error. None: the sequence goes on."""


def join_chunks(chunks: Iterable[SequenceChunk]) -> list[SequenceChunk]:
    """One chunk for each sequence, in the order of their first chunks."""
    joined: dict[int, SequenceChunk] = {}
    for chunk in chunks:
        earlier = joined.get(chunk.index)
        joined[chunk.index] = (
            chunk
            if earlier is None
            else SequenceChunk(
                chunk.index,
                earlier.text + chunk.text,
                earlier.tokens + chunk.tokens,
                earlier.logprobs + chunk.logprobs,
                chunk.finish_reason,
            )
        )
    return list(joined.values())


@dataclass(eq=False)
class ActiveSequence:
    """A sequence in the scheduler, from its submission to its last chunk."""

    index: int
    engine: TextEngine
    tokenizer: Tokenizer
    request: SequenceRequest
    n_top: int | None
    """The number of alternatives to report for each token. None: no log-probabilities at all."""
    chunks: "ChunkQueue"
    """The queue to which the scheduler delivers the chunks."""
    deadline: float
    streamed: bool = True
    """False: the whole text is one chunk at the end."""
    healer: PromptHealer | None = None
    """Draws the end of the prompt anew. None: it stays as it is."""
    submitted_at: float = field(default_factory=time.monotonic)
    cancelled: bool = False
    slot: SlotHandle | None = None
    stream: TextStream | None = None
    first_token_at: float | None = None
    _unsent_logprobs: list[TokenLogprob] = field(default_factory=list)
    _n_sent: int = 0

    def join_engine(self) -> None:
        """Take a slot in the engine's batch, after the end of the prompt is healed."""
        if self.healer is not None:
            (opening,) = self.healer.draw([self.request.opening.tokens], [self.request.sample_index])
            self.request = replace(self.request, opening=opening)
        self.slot = self.engine.join(self.request)
        sampling = self.request.sampling
        opening = self.request.opening
        self.stream = TextStream(
            self.tokenizer,
            sampling.stop,
            iter(()),
            prompt=opening.tokens,
            min_new_tokens=sampling.min_new_tokens,
            max_new_tokens=sampling.max_new_tokens,
        )
        self.stream.begin(opening, self.slot.matcher)
        if self.n_top is not None and opening.logits is not None:
            for token in self.stream.tokens:
                entry = compute_logprob(opening.logits, token, self.n_top)
                self._unsent_logprobs.append(replace(entry, new_bytes=opening.new_bytes))

    @property
    def healing_tokens(self) -> int:
        """The tokens that healing reads before the sequence has a slot."""
        return 0 if self.healer is None else len(self.request.opening.tokens)

    def accept(self, new_tokens: NewTokens) -> SequenceChunk | None:
        """Append tokens of the engine. Returns the chunk to send, or None where there is nothing to send yet."""
        assert self.stream is not None
        assert self.slot is not None
        n_before = len(self.stream.tokens)
        if self.slot.single_step:
            for token, logits in new_tokens:
                self._push(token, logits)
        else:
            self.stream.extend([token for token, _ in new_tokens])
        reason = self.stream.finish_reason
        if reason is None and not self.streamed:
            return None
        text = self.stream.take_new()
        if len(self.stream.tokens) == n_before and not text and reason is None:
            return None
        if reason is not None:
            self.slot = None  # frees it
        return self._chunk(text, None if reason is None else "length" if reason in ("length", "dead_end") else "stop")

    def _push(self, token: int, logits: Logits | None) -> None:
        assert self.stream is not None
        n_before = len(self.stream.tokens)
        self.stream.push(token)
        if len(self.stream.tokens) > n_before and self.n_top is not None and logits is not None:
            entry = compute_logprob(logits, token, self.n_top)
            if entry.top_logprobs:
                entry = replace(entry, filtered_probs=self._filtered_probs(logits, entry))
            self._unsent_logprobs.append(entry)

    def _filtered_probs(self, logits: Logits, entry: TokenLogprob) -> list[float] | None:
        """Probabilities of the likeliest tokens after temperature and filters."""
        sampling = self.request.sampling
        if self.request.penalties or unsupported_settings(sampling):
            return None
        if sampling.greedy:
            return [float(token == entry.token) for token, _ in entry.top_logprobs]
        filtered_logits = filtered(logits, native_token_choice(sampling, self.tokenizer)).astype(np.float64)
        exponentials = np.exp(filtered_logits - filtered_logits.max())
        return [float(exponentials[token] / exponentials.sum()) for token, _ in entry.top_logprobs]

    def abort(self, reason: str) -> SequenceChunk:
        """The last chunk of a sequence that ends before it is complete."""
        if self.stream is None:
            return self._chunk("", reason)
        self.stream.finish("length")
        return self._chunk(self.stream.take_new(), reason)

    def _chunk(self, text: str, finish_reason: str | None) -> SequenceChunk:
        tokens = [] if self.stream is None else self.stream.tokens[self._n_sent :]
        self._n_sent += len(tokens)
        logprobs, self._unsent_logprobs = self._unsent_logprobs, []
        return SequenceChunk(self.index, text, tokens, logprobs, finish_reason)


def compute_logprob(logits: Logits, token: int, n_top: int) -> TokenLogprob:
    """The log-probability of `token` under (V,) `logits`, with the `n_top` likeliest tokens."""
    logprobs = log_softmax(logits)
    top: list[tuple[int, float]] = []
    if n_top:
        n_top = min(n_top, len(logprobs))
        ids = np.argpartition(-logprobs, n_top - 1)[:n_top]
        ids = ids[np.lexsort((ids, -logprobs[ids]))]
        top = [(int(i), float(logprobs[i])) for i in ids]
    return TokenLogprob(token, float(logprobs[token]), top)
