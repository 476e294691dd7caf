"""The decoder in NumPy, for machines without a compiler."""

from collections.abc import Sequence

import numpy as np

from gpt_cli.cpu.decode import numpy_gpt
from gpt_cli.cpu.decode.numpy_sampler import Masks, TokenChoice, apply_mask, gumbel_noise, sample_token
from gpt_cli.cpu.decode.weights import Array, Weights


class NumpyDecoder:
    """A decoder in NumPy: slower than the kernel, and without torch."""

    engine = "numpy"

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def start(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        choice: TokenChoice,
        masks: Masks | None = None,
    ) -> "NumpySession":
        return NumpySession(self.weights, prompts, seeds, choice, masks)

    def next_logits(self, prompts: Sequence[Sequence[int]]) -> Array:
        context = self.weights.config.context_length
        return np.stack([numpy_gpt.forward(self.weights, list(prompt[-context:]))[-1] for prompt in prompts])

    def score(self, tokens: Sequence[int]) -> Array:
        return numpy_gpt.forward(self.weights, list(tokens))


class NumpySession:
    """A session of `NumpyDecoder`, which computes one text after another."""

    def __init__(
        self,
        weights: Weights,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        choice: TokenChoice,
        masks: Masks | None,
    ) -> None:
        context = weights.config.context_length
        self._weights, self._choice, self._masks = weights, choice, masks
        self._windows = [list(prompt[-context:]) for prompt in prompts]
        self._caches = [numpy_gpt.NumpyCache(weights) for _ in prompts]
        self._twisters = [np.random.RandomState(seed & 0xFFFFFFFF) for seed in seeds]
        self._ended = [False] * len(prompts)

    def decode(self, steps: int) -> list[list[int]]:
        tokens: list[list[int]] = []
        for _ in range(steps):
            if all(self._ended):
                break
            tokens.append([self._next(text) for text in range(len(self._windows))])
        return tokens

    def stop(self, text: int) -> None:
        self._ended[text] = True

    def _next(self, text: int) -> int:
        window, cache, context = self._windows[text], self._caches[text], self._weights.config.context_length
        noise = None if self._choice.greedy else gumbel_noise(self._twisters[text], self._weights.vocab_size)
        if self._ended[text]:
            return window[-1]
        logits = numpy_gpt.forward(self._weights, window[cache.length :], cache)[-1]
        logits = logits if self._masks is None else apply_mask(logits, self._masks[text])
        token = sample_token(logits, self._choice, noise)
        if len(window) == context:  # the older half goes, the rest is read anew
            del window[: context // 2]
            cache.length = 0
        window.append(token)
        self._ended[text] = token in self._choice.end_tokens
        return token
