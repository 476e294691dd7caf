"""Tokens from a model: the prompt is prefilled once, then each step decodes one token for every sample.

Shapes: B samples, T tokens, V vocabulary.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gpt_cli.model.gpt import GPT
from gpt_cli.model.kv_cache import KVCache
from gpt_cli.sampling.filters import next_token
from gpt_cli.sampling.noise import GumbelNoise
from gpt_cli.sampling.settings import Sampling


def window_start(position: int, context_length: int) -> int:
    """The first token that the prediction of token `position` sees; it sees all from there on.

    This defines sampling past the context: when a further token would not fit, the older half of the window
    is dropped, and what remains moves to the front of the context. So a token past the context sees between
    half a context and a whole one, and costs the same however long the text has become.
    """
    half = context_length // 2
    n_dropped = -(-(position - context_length) // half)  # rounded up
    return max(0, n_dropped) * half


@torch.inference_mode()
def generate(
    model: GPT, prompts: Sequence[Sequence[int]], sampling: Sampling, never: Sequence[int] = ()
) -> Iterator[list[int]]:
    """Yield `max_new_tokens` times the next token of each of the B prompts, none of `never`.

    The prompts are equally long and not empty; of more than `context_length` tokens the last ones are seen.
    The model is in eval mode. What sample i becomes is a function of its prompt, the settings and i: its
    noise does not depend on the other samples (its logits may, in the last bits: kernels vary with the batch).
    """
    assert not model.training
    samples = Continuations(model, prompts)
    noise = None
    if not sampling.greedy:
        noise = GumbelNoise(sampling.seed, len(prompts), model.head.out_features, samples.device)
    for _ in range(sampling.max_new_tokens):
        drawn = None if noise is None else noise.draw()
        logits = samples.next_logits()
        if never:
            logits = logits.index_fill(1, torch.tensor(never, device=logits.device), -torch.inf)
        tokens = next_token(logits, sampling, drawn)  # (B,)
        samples.append(tokens)
        yield tokens.tolist()


class Continuations:
    """B token sequences that grow in step: the window of each that the model sees, and its keys and values.

    Equal, up to rounding, to running the model anew on `sequence[window_start(position, context_length):]`
    for each token.
    """

    def __init__(self, model: GPT, prompts: Sequence[Sequence[int]]) -> None:
        self.device = model.head.weight.device
        context = model.config.context_length
        prompt = torch.tensor([list(prompt[-context:]) for prompt in prompts], device=self.device)  # (B, T)
        self._model = model
        self._batch = len(prompts)
        self._position = prompt.shape[1]
        self._start = 0
        self._window = [prompt]  # (B, t) pieces, side by side
        self._pending = prompt  # what of the window the cache lacks
        if bool((prompt == prompt[0]).all()):
            self._pending = prompt[:1]  # prefilled once for all
        self._cache = KVCache(model.config, len(self._pending), device=self.device, dtype=model.head.weight.dtype)

    def next_logits(self) -> Tensor:
        """(B, V): of the token that comes next in each sequence. Once after each `append`."""
        start = window_start(self._position, self._model.config.context_length)
        if start > self._start:
            self._drop(start - self._start)
        logits: Tensor = self._model(self._pending, self._cache)[:, -1]
        if len(logits) < self._batch:
            self._cache.expand(self._batch)
            logits = logits.expand(self._batch, -1)
        return logits

    def append(self, tokens: Tensor) -> None:
        """Continue each sequence with its token of the (B,) `tokens`."""
        self._pending = tokens[:, None]
        self._window.append(self._pending)
        self._position += 1

    def _drop(self, n_token: int) -> None:
        """Forget the oldest `n_token` tokens; the rest is prefilled anew, at its new positions."""
        self._pending = torch.cat(self._window, dim=1)[:, n_token:]
        self._window = [self._pending]
        self._start += n_token
        self._cache.reset()
