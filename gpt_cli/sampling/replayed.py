"""Decoding on a GPU without waiting for Python: a step is recorded once as a CUDA graph, and replayed from then on.

A decode step of a small model is hundreds of kernels of a few microseconds, each of which takes the CPU as long to
launch. What is recorded reads and writes tensors that stay where they are: the latest tokens, the cache, and, for a
few steps at a time, their noise and the tokens that were chosen. So one replay feeds the next, and the host reads
their tokens while the following ones are being computed.

Shapes: B sequences, N steps of a chunk, S keys, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gpt_cli.errors import Note
from gpt_cli.model.gpt import GPT
from gpt_cli.model.static_cache import StaticCache
from gpt_cli.runtime.fastest import difference
from gpt_cli.runtime.graph import record
from gpt_cli.runtime.late import Late
from gpt_cli.sampling.bias import LogitBias
from gpt_cli.sampling.filters import next_token
from gpt_cli.sampling.noise import GumbelNoise
from gpt_cli.sampling.recorder import Recorder
from gpt_cli.sampling.rules import Rule
from gpt_cli.sampling.settings import Sampling

if TYPE_CHECKING:
    from gpt_cli.sampling.generate import Continuations

CHUNK = 8
"""Steps whose tokens are read together; up to two chunks are thrown away where a text ends."""

_LEAST_STEPS = 32  # recording costs a few steps
_WARM_UPS = 2  # steps before one is recorded: what compiles, loads or measures itself does it there
_NOISE_NUMBERS = 2**24  # of a chunk, which is shorter where there would be more
_LEAST_SEEN = 128  # keys that attention reads; then 256, 512, ...: each a recording of its own
_RECORDABLE = (LogitBias, Recorder)  # rules whose say does not depend on what the host knows
_TOLERANCE = {torch.float32: 1e-3}  # of logits, relative to their norm; of others:
_HALF_TOLERANCE = 0.05

Forward = Callable[[Tensor, StaticCache], Tensor]
"""(B, 1) tokens and the cache that they continue -> (B, 1, V) logits."""


class Replayed:
    """How `generate` writes by replays; tells `note` if that does not work here, and is never tried again then.

    With `compiling`, the network of a step is compiled before it is recorded: fewer kernels, but as long a wait as a
    compiler takes, for each number of keys that a text comes to see. It pays for very long texts.
    """

    def __init__(self, note: Note, *, compiling: bool = False) -> None:
        self._note, self._compiling, self._works = note, compiling, True

    def suits(self, device: torch.device, sampling: Sampling, never: Sequence[int], rules: Sequence[Rule]) -> bool:
        """Whether such texts are to be written by replays."""
        return (
            self._works
            and can_record(device)
            and sampling.max_new_tokens >= _LEAST_STEPS
            and not never
            and all(isinstance(rule, _RECORDABLE) for rule in rules)
        )

    def write(
        self, model: GPT, rows: "Continuations", noise: GumbelNoise | None, sampling: Sampling, rules: Sequence[Rule]
    ) -> Iterator[list[int]]:
        """What `generate` yields, read a chunk late. It ends early where steps cannot be recorded or replayed: what
        then remains is for the plain way, which `rows`, `noise` and `rules` are ready for."""
        recorder = next((rule for rule in rules if isinstance(rule, Recorder)), None)
        waiting: Chunk | None = None
        for chunk in self._chunks(model, rows, noise, sampling, rules):
            if waiting is not None:
                yield from waiting.read(recorder)
            waiting = chunk
        if waiting is not None:
            yield from waiting.read(recorder)

    def _chunks(
        self, model: GPT, rows: "Continuations", noise: GumbelNoise | None, sampling: Sampling, rules: Sequence[Rule]
    ) -> Iterator["Chunk"]:
        """Steps on their way: one that follows on windows read anew, or several replays."""
        left, step = sampling.max_new_tokens, None
        while left:
            logits = rows.read_anew()
            if logits is not None:
                tokens, log_probs = choose(logits, None if noise is None else noise.ahead(1)[0], sampling, rules)
                chunk = Chunk(tokens[None], None if log_probs is None else log_probs[None])
            else:
                step = step or DecodeStep(model, rows, sampling, rules, compiling=self._compiling)
                try:
                    chunk = step.take(min(left, rows.decodes_left), noise)
                except Exception as error:  # a compiler's and a driver's have no base in common
                    self._works = False
                    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                    self._note(f"decoding by CUDA graphs does not work here ({reason}); going on without")
                    return
            if noise is not None:
                noise.pass_by(chunk.steps)
            rows.extend(chunk.tokens.T)
            left -= chunk.steps
            yield chunk


class Chunk:
    """(N, B) tokens that are being computed, and what the model gave them if that is asked for."""

    def __init__(self, tokens: Tensor, log_probs: Tensor | None) -> None:
        self.tokens, self.steps = tokens, len(tokens)
        self._tokens = Late(tokens)
        self._log_probs = None if log_probs is None else Late(log_probs)

    def read(self, recorder: Recorder | None) -> Iterator[list[int]]:
        """The B tokens of each step, once they are there; `recorder` is told what they were given."""
        given = None if self._log_probs is None else self._log_probs.read()
        for step, tokens in enumerate(self._tokens.read()):
            if recorder is not None and given is not None:
                recorder.note(given[step])
            yield tokens


class DecodeStep:
    """One token of each sequence of `rows`, computed in tensors that stay where they are."""

    def __init__(
        self,
        model: GPT,
        rows: "Continuations",
        sampling: Sampling,
        rules: Sequence[Rule],
        *,
        compiling: bool = False,
    ) -> None:
        self._model, self._rows, self._sampling, self._rules = model, rows, sampling, rules
        self._forward: Forward = torch.compile(model, dynamic=False) if compiling else model
        batch, device = len(rows.latest), rows.device
        most = max(1, min(CHUNK, _NOISE_NUMBERS // (batch * model.head.out_features)))
        self._cache = StaticCache(rows.cache)
        self._latest = rows.latest.clone()  # (B, 1)
        self._place = torch.zeros(1, dtype=torch.long, device=device)  # of the step in its chunk
        shape = (most, batch)
        self._noise = None if sampling.greedy else torch.zeros(*shape, model.head.out_features, device=device)
        self._tokens = torch.zeros(shape, dtype=torch.long, device=device)
        self._log_probs = torch.zeros(shape, device=device)
        self._replays: dict[int, Callable[[], Tensor]] = {}  # by how many keys attention reads

    def take(self, most: int, noise: GumbelNoise | None) -> Chunk:
        """Up to `most` steps. Raises what a driver or a compiler does, having changed nothing in `rows`."""
        filled = self._rows.cache.length
        seen = keys_to_see(filled, self._model.config.context_length)
        n = min(most, len(self._tokens), seen - filled)
        if self._noise is not None and noise is not None:
            self._noise[:n].copy_(noise.ahead(n))
        if seen not in self._replays:
            self._replays[seen] = self._recorded(seen)
        self._begin()
        for _ in range(n):
            self._replays[seen]()
        self._rows.cache.advance(n)
        has_log_probs = any(isinstance(rule, Recorder) for rule in self._rules)
        return Chunk(self._tokens[:n].clone(), self._log_probs[:n].clone() if has_log_probs else None)

    def compute(self) -> Tensor:
        """The step itself: (B, V) logits; its tokens are noted in their place and are the latest ones of the next."""
        logits = self._forward(self._latest, self._cache)[:, -1]
        noise = None if self._noise is None else self._noise.index_select(0, self._place)[0]
        tokens, log_probs = choose(logits, noise, self._sampling, self._rules)
        self._latest.copy_(tokens[:, None])
        self._tokens.index_copy_(0, self._place, tokens[None])
        if log_probs is not None:
            self._log_probs.index_copy_(0, self._place, log_probs[None])
        self._place.add_(1)
        return logits

    @property
    def tensors(self) -> list[Tensor]:
        """Whatever a step changes."""
        return [*self._cache.tensors, self._latest, self._place, self._tokens, self._log_probs]

    def _begin(self) -> None:
        """Start a chunk where `rows` are."""
        self._cache.follow()
        self._latest.copy_(self._rows.latest)
        self._place.zero_()

    def _recorded(self, seen: int) -> Callable[[], Tensor]:
        """The step for `seen` keys, recorded, and found to be what the plain way computes. Raises RuntimeError."""
        plain = self._rows.cache
        expected = self._model(self._rows.latest, plain)[:, -1]
        plain.advance(-1)  # that key and value are computed again
        self._cache.seen = seen
        for _ in range(_WARM_UPS):
            self._begin()
            self.compute()
        self._begin()
        replay = record(self.compute)
        found = replay()
        noise = None if self._noise is None else self._noise[0]
        tokens, _ = choose(found, noise, self._sampling, self._rules)
        error = difference([found], [expected])
        if not error <= _TOLERANCE.get(found.dtype, _HALF_TOLERANCE):  # NaN, too
            raise RuntimeError(f"its logits differ by {100 * error:.2g} %")
        if not tokens.equal(self._tokens[0]):
            raise RuntimeError("it chooses other tokens")
        return replay


def choose(
    logits: Tensor, noise: Tensor | None, sampling: Sampling, rules: Sequence[Rule]
) -> tuple[Tensor, Tensor | None]:
    """(B, V) logits and noise -> (B,) tokens, (B,) what the model gave them, if one of `rules` records that."""
    for rule in rules:
        logits = rule.apply(logits)
    tokens = next_token(logits, sampling, noise)
    recorder = next((rule for rule in rules if isinstance(rule, Recorder)), None)
    return tokens, None if recorder is None else recorder.given(tokens)


def keys_to_see(filled: int, context_length: int) -> int:
    """How many keys attention reads for a token behind `filled` others: a power of two, or the whole context."""
    return min(context_length, max(_LEAST_SEEN, 1 << filled.bit_length()))


def can_record(device: torch.device) -> bool:
    """Whether CUDA graphs are worth a try. On AMD's GPUs they trained wrongly, unnoticed (pytorch/pytorch#187715)."""
    return device.type == "cuda" and torch.version.hip is None
