"""One text of a request: the scheduler runs it, an engine continues it, and its deltas go to the request's queue.

Shapes: V vocabulary.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from gpt_cli.cpu.decode.numpy_sampler import filtered
from gpt_cli.sampling.native_decoder import native_token_choice, unsupported_settings
from gpt_cli.sampling.prompt import Opening
from gpt_cli.sampling.text_stream import TextStream
from gpt_cli.serve.text_engine import Logits, NewTokens, SlotHandle, TextEngine
from gpt_cli.serve.token_logprobs import OffsetLogprob, TokenLogprob, TokenPlaces, compute_logprob
from gpt_cli.tokenizer import StreamDecoder

if TYPE_CHECKING:
    from gpt_cli.serve.generation_request import GenerationRequest
    from gpt_cli.serve.scheduler import DeltaQueue


@dataclass(frozen=True)
class ChoiceDelta:
    """The latest part of sequence `index` of a request, the choice of this number in the answer."""

    index: int
    text: str
    logprobs: list[OffsetLogprob]
    finish_reason: str | None = None
    """stop, length, time or error. None: the sequence is not finished."""
    tokens: list[int] = field(default_factory=list)
    opening: bool = False
    """True for the delta before any that is generated."""

    def join(self, later: "ChoiceDelta") -> "ChoiceDelta":
        """This delta and a later one of the sequence as one."""
        text, logprobs, tokens = self.text + later.text, self.logprobs + later.logprobs, self.tokens + later.tokens
        return replace(later, text=text, logprobs=logprobs, tokens=tokens)


def join_deltas(deltas: Iterable[ChoiceDelta]) -> list[ChoiceDelta]:
    """One delta for each sequence, in the order of their first ones."""
    joined: dict[int, ChoiceDelta] = {}
    for delta in deltas:
        first = joined.get(delta.index)
        joined[delta.index] = delta if first is None else first.join(delta)
    return list(joined.values())


@dataclass(eq=False)
class TextSequence:
    """A continuation of a prompt, from its submission to its last delta."""

    request: "GenerationRequest"
    opening: Opening
    """The prompt; its end is drawn anew if the request has a healer."""
    sink: "DeltaQueue"
    """The queue to which the scheduler delivers the deltas."""
    index: int = 0
    sample: int = 0
    """The number of the sample that continues the prompt."""
    n_character: int = 0
    """The length of the choice so far: of an echoed prompt at first."""
    submitted_at: float = field(default_factory=time.monotonic)
    cancelled: bool = False
    slot: SlotHandle | None = None
    stream: TextStream | None = None
    first_token_at: float | None = None
    _n_sent: int = 0
    _withheld: list[OffsetLogprob] = field(default_factory=list)
    """The log-probabilities of tokens whose text has not been sent, which that of a stop string never is."""

    def __post_init__(self) -> None:
        decoder = StreamDecoder(self.request.model.tokenizer, self.opening.tokens)
        self._places = TokenPlaces(decoder, self.n_character)

    @property
    def engine(self) -> TextEngine:
        """The engine of the request's model."""
        return self.request.model.engine

    @property
    def healing_tokens(self) -> int:
        """The tokens that healing reads before the sequence has a slot."""
        return 0 if self.request.healer is None else len(self.opening.tokens)

    def join_engine(self) -> None:
        """Take a slot in the engine's batch, after the end of the prompt is healed."""
        request = self.request
        if request.healer is not None:
            (self.opening,) = request.healer.draw([self.opening.tokens], [self.sample])
        self.slot = self.engine.join(self)
        self.stream = TextStream(request.model.tokenizer, request.sampling, self.opening.tokens)
        self.stream.begin(self.opening, self.slot.matcher)
        if request.n_top is not None and self.opening.logits is not None:
            for token in self.stream.tokens:
                entry = compute_logprob(self.opening.logits, token, request.n_top)
                self._report(replace(entry, new_bytes=self.opening.new_bytes))

    @property
    def unfinished(self) -> bool:
        """True while the engine has to continue it."""
        return self.stream is not None and self.stream.finish_reason is None

    @property
    def has_new_tokens(self) -> bool:
        """True if there are tokens that no delta has yet."""
        return self.stream is not None and len(self.stream.tokens) > self._n_sent

    def append(self, new_tokens: NewTokens) -> None:
        """Append tokens of the engine."""
        assert self.stream is not None
        assert self.slot is not None
        if self.slot.single_step:
            for token, logits in new_tokens:
                self._push(self.stream, token, logits)
        else:
            self.stream.extend([token for token, _ in new_tokens])

    def take_delta(self) -> ChoiceDelta | None:
        """The delta to send, or None where there is nothing to send yet."""
        assert self.stream is not None
        if (reason := self.stream.finish_reason) is None:
            return self._delta(None) if self.request.streamed and self.has_new_tokens else None
        self.slot = None  # frees it
        return self._delta("length" if reason in ("length", "dead_end") else "stop")

    def abort(self, reason: str) -> ChoiceDelta:
        """The last delta of a sequence that ends before it is complete."""
        if self.stream is not None:
            self.stream.finish("length")
        return self._delta(reason)

    def _push(self, stream: TextStream, token: int, logits: Logits | None) -> None:
        n_before = len(stream.tokens)
        stream.push(token)
        if len(stream.tokens) > n_before and self.request.n_top is not None and logits is not None:
            entry = compute_logprob(logits, token, self.request.n_top)
            self._report(replace(entry, filtered_probs=self._filtered_probs(logits, entry)))

    def _filtered_probs(self, logits: Logits, entry: TokenLogprob) -> list[float] | None:
        """Probabilities of the likeliest tokens after temperature and filters."""
        sampling = self.request.sampling
        if not entry.top_logprobs or self.request.penalized or sampling.constraint or unsupported_settings(sampling):
            return None
        if sampling.greedy:
            return [float(token == entry.token) for token, _ in entry.top_logprobs]
        choice = native_token_choice(sampling, self.request.model.tokenizer)
        filtered_logits = filtered(logits, choice).astype(np.float64)
        exponentials = np.exp(filtered_logits - filtered_logits.max())
        return [float(exponentials[token] / exponentials.sum()) for token, _ in entry.top_logprobs]

    def _report(self, entry: TokenLogprob) -> None:
        is_end = entry.token in self.request.model.tokenizer.end_ids
        begins = entry.new_bytes and not is_end
        place = self._places.begin(entry.new_bytes) if begins else self._places.place(entry.token, ends=is_end)
        self._withheld.append(OffsetLogprob(place, entry))

    def _delta(self, finish_reason: str | None) -> ChoiceDelta:
        """All that can be sent now: the log-probability of a token once its text begins, and that of an end token."""
        text = "" if self.stream is None else self.stream.take_new()
        tokens = [] if self.stream is None else self.stream.tokens[self._n_sent :]
        self._n_sent += len(tokens)
        self.n_character += len(text)
        ends = self.request.model.tokenizer.end_ids
        ready = [one for one in self._withheld if one.text_offset < self.n_character or one.entry.token in ends]
        del self._withheld[: len(ready)]
        return ChoiceDelta(self.index, text, ready, finish_reason, tokens)
