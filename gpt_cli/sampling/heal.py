"""Heal the end of a prompt: take its last tokens back, and let what is drawn first begin with their text.

In the text that a model was trained on, a space, an indent or the beginning of a word is a token of its own only where
no longer token has it. So a prompt that ends there is continued by what is rare in training. (Token healing, as
Lundberg and Ribeiro named it in Guidance, 2023.) Without torch.

Shapes: B texts, V vocabulary.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gpt_cli.cpu.decode.numpy_sampler import gumbel_noise, sample_token
from gpt_cli.cpu.decode.weights import Array
from gpt_cli.sampling.native_decoder import native_token_choice
from gpt_cli.sampling.prompt import Opening, encode_prompt, log_softmax
from gpt_cli.sampling.sampling_params import SamplingParams
from gpt_cli.shuffle import derive_seed
from gpt_cli.tokenizer import Tokenizer
from gpt_cli.tokenizer.base import TokenPrefixes

_THREAD = threading.local()  # a generator, seeded anew for each draw: making one takes longer than the noise
_KEPT = 8  # contexts whose logits are kept for the next samples of the same prompt

NextLogits = Callable[[Sequence[Sequence[int]]], Array]
"""Sequences of tokens -> (B, V): the logits of the token after each."""


class Rules(Protocol):
    """The logits processors of a call, as the first token of a text meets them: see `ProcessorFactory`."""

    def admits(self, new_bytes: bytes) -> bool:
        """True if the first token may be one that adds `new_bytes` to the prompt."""

    def process(self, tokens: Sequence[int], logits: Array) -> Array:
        """(V,) -> (V,): the logits after `tokens`."""


@dataclass(frozen=True, eq=False)
class _Partial:
    """The tokens that were not taken back, and those drawn since; `rest` is what they still lack of the prompt."""

    tokens: tuple[int, ...]
    rest: bytes
    total: float = 0.0

    @property
    def key(self) -> object:
        """Equal for texts that continue alike."""
        return self.tokens

    def append(self, token: int, piece: bytes, logits: Array, total: float = 0.0) -> "_Partial | Opening":
        tokens = (*self.tokens, token)
        if len(piece) < len(self.rest):
            return _Partial(tokens, self.rest[len(piece) :], total)
        return Opening(tokens, piece[len(self.rest) :], logits, total)


class PromptHealer:
    """Draws new tokens for the end of prompts, from the logits that `next_logits` computes.

    The tokens taken back are as many of the last ones as begin, as bytes, one longer token. In their place come tokens
    whose bytes agree with theirs, until all of these are there; if nothing is left of a prompt, the first is drawn at
    the start of a text. The draws are a function of the prompt, the settings and the sample's number, by noise of their
    own, the same on every device. `rules` are those of the logits processors.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prefixes: TokenPrefixes,
        sampling: SamplingParams,
        next_logits: NextLogits,
        rules: Rules | None = None,
    ) -> None:
        self._tokenizer, self._prefixes, self._sampling, self._rules = tokenizer, prefixes, sampling, rules
        self._next_logits = next_logits
        self._choice = native_token_choice(sampling, tokenizer)
        self._latest = dict[tuple[int, ...], Array]()
        self._known_candidates: dict[bytes, npt.NDArray[np.int64]] = {}

    def draw(self, prompts: Sequence[Sequence[int]], samples: Sequence[int]) -> list[Opening]:
        """An opening for each of the B prompts; samples[i] is the number of the sample that continues prompt i."""
        texts: list[_Partial | Opening] = [self._take_back(prompt) for prompt in prompts]
        seeds = [derive_seed(self._sampling.seed, "heal", sample) & 0xFFFFFFFF for sample in samples]
        step = 0
        while partial := {row: text for row, text in enumerate(texts) if isinstance(text, _Partial)}:
            logits = self._logits(list(partial.values()))
            noise = {seed: self._noise(seed, step) for seed in {seeds[row] for row in partial}}
            step += 1
            for (row, text), text_logits in zip(partial.items(), logits, strict=True):
                texts[row] = self._extend(text, text_logits, noise[seeds[row]]) or Opening(prompts[row])
        return [text for text in texts if isinstance(text, Opening)]

    def search(self, prompt: Sequence[int], width: int) -> list[Opening]:
        """The `width` likeliest openings of `prompt`, best first, by beam search; fewer if there are fewer."""
        texts: list[_Partial | Opening] = [self._take_back(prompt)]
        while partial := [text for text in texts if isinstance(text, _Partial)]:
            texts = [text for text in texts if isinstance(text, Opening)]
            for text, logits in zip(partial, self._logits(partial), strict=True):
                log_probs = log_softmax(self._processed(text.tokens, logits))
                candidates = self._candidates(text.rest)
                order = np.argsort(-log_probs[candidates], kind="stable")[:width]
                texts += [
                    text.append(token, self._piece(token), logits, text.total + float(log_probs[token]))
                    for token in candidates[order].tolist()
                    if log_probs[token] > -np.inf
                ]
            distinct = {text.key: text for text in sorted(texts, key=lambda text: text.total)}
            texts = sorted(distinct.values(), key=lambda text: -text.total)[:width]
        return [text for text in texts if isinstance(text, Opening)] or [Opening(prompt)]

    def _take_back(self, prompt: Sequence[int]) -> _Partial | Opening:
        count = self._prefixes.extensible_end(prompt)
        if not count:
            return Opening(prompt)
        return _Partial(tuple(prompt[:-count]), b"".join(map(self._piece, prompt[-count:])))

    def _extend(self, text: _Partial, logits: Array, noise: Array | None) -> _Partial | Opening | None:
        """`text` with the next token drawn; None if there is none."""
        candidates = self._candidates(text.rest)
        allowed = np.full_like(logits, -np.inf)
        allowed[candidates] = logits[candidates]
        allowed = self._processed(text.tokens, allowed)
        if allowed.max() == -np.inf:
            return None
        token = sample_token(allowed, self._choice, noise)
        return text.append(token, self._piece(token), logits)

    def _candidates(self, rest: bytes) -> npt.NDArray[np.int64]:
        """The tokens that agree with `rest`, and after it with the pattern."""
        if rest not in self._known_candidates:
            beyond = self._prefixes.starting_with(rest)
            if self._rules is not None:
                beyond = [token for token in beyond if self._rules.admits(self._piece(token)[len(rest) :])]
            self._known_candidates[rest] = np.array(beyond + self._prefixes.inside(rest), dtype=np.int64)
        return self._known_candidates[rest]

    def _processed(self, tokens: Sequence[int], logits: Array) -> Array:
        return logits if self._rules is None else self._rules.process(tokens, logits)

    def _piece(self, token: int) -> bytes:
        return self._prefixes.pieces[token]

    def _noise(self, seed: int, step: int) -> Array | None:
        """(V,): the noise of draw number `step`, which is seldom above 0."""
        if self._choice.greedy:
            return None
        if not hasattr(_THREAD, "twister"):
            _THREAD.twister = np.random.RandomState()
        _THREAD.twister.seed(seed)
        for _ in range(step):
            gumbel_noise(_THREAD.twister, self._tokenizer.vocab_size)
        return gumbel_noise(_THREAD.twister, self._tokenizer.vocab_size)

    def _logits(self, texts: Sequence[_Partial]) -> list[Array]:
        """The next logits of each of `texts`, computed once for equal ones, in this call and those before it."""
        contexts = [text.tokens or tuple(encode_prompt(self._tokenizer, "")) for text in texts]
        logits = {context: self._latest[context] for context in contexts if context in self._latest}
        if missing := list(dict.fromkeys(context for context in contexts if context not in logits)):
            logits |= zip(missing, self._next_logits(missing), strict=True)
        self._latest = dict(list((self._latest | logits).items())[-_KEPT:])
        return [logits[context] for context in contexts]


def make_healer(
    tokenizer: Tokenizer,
    sampling: SamplingParams,
    next_logits: NextLogits,
    rules: Rules | None = None,
) -> PromptHealer | None:
    """A healer, or None where there is nothing to heal: by the settings, or since no token begins a longer one."""
    if not sampling.heal or not sampling.max_new_tokens or (prefixes := tokenizer.prefixes) is None:
        return None
    return PromptHealer(tokenizer, prefixes, sampling, next_logits, rules)
