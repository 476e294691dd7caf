"""Contrastive search: likely tokens whose hidden state differs from those before (Su et al., 2022).

Shapes: K candidates, T tokens before them, C n_embd, V vocabulary.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from gpt_cli.model.gpt import GPT
from gpt_cli.model.kv_cache import KVCache
from gpt_cli.sampling.context_window import context_start
from gpt_cli.sampling.generate import attention_kernels
from gpt_cli.sampling.logits_processors import LogitsProcessor
from gpt_cli.sampling.logprobs import LogprobRecorder
from gpt_cli.sampling.sampling_params import SamplingParams


@torch.inference_mode()
def contrastive_search(
    model: GPT, prompt: Sequence[int], sampling: SamplingParams, processors: Sequence[LogitsProcessor] = ()
) -> Iterator[list[int]]:
    """Yield `max_new_tokens` times the next token of `prompt`, as `generate` does for a batch of one.

    Of the `top_k` likeliest tokens v after the processors, the one that maximises

        (1 - penalty_alpha) p(v) - penalty_alpha max_j cos(h_v, h_j)

    where h are the hidden states after the final norm (`hidden_states[-1]` in Transformers and in the authors' code) of
    v and of each token j before it in the window from which the token after v is predicted. `processors` are for one
    sequence. Temperature, the other filters and the seed are ignored.
    """
    assert not model.training
    assert sampling.penalty_alpha is not None
    assert sampling.top_k is not None
    alpha, n_candidate = sampling.penalty_alpha, min(sampling.top_k, model.head.out_features)
    text = CandidateWindow(model, prompt, n_candidate, sampling.max_new_tokens)
    logits = text.first_logits()
    for _ in range(sampling.max_new_tokens):
        for processor in processors:
            logits = processor.apply(logits)
        best = logits.float().topk(n_candidate)
        candidates = best.indices[0]  # (K,)
        probability = logits.float().softmax(dim=-1)[0, candidates]
        score = (1 - alpha) * probability - alpha * text.similarity(candidates)
        score = score.masked_fill(best.values[0] == -math.inf, -math.inf)  # tokens that a processor forbids
        index = int(score.argmax())
        chosen = candidates[index : index + 1]  # (1,)
        token = [int(chosen)]
        for processor in processors:
            if isinstance(processor, LogprobRecorder):
                processor.note(processor.gather(chosen).tolist())
            processor.accept(token)
        yield token
        logits = text.choose(index, token[0])


class CandidateWindow:
    """The context window of a text, with K candidates for its next token.

    Equal, up to rounding, to running the model anew on `sequence[context_start(position, context_length):]`, where
    `position` counts the candidate, too; the tokens before are computed once for all candidates.
    """

    def __init__(self, model: GPT, prompt: Sequence[int], n_candidate: int, max_new_tokens: int) -> None:
        """`max_new_tokens` bounds the cache."""
        self._model, self._context, self._n_candidate = model, model.config.context_length, n_candidate
        self._device = model.head.weight.device
        self._sequence = list(prompt[-self._context :])
        self._max_length = min(self._context, len(self._sequence) + max_new_tokens)
        self._start = 0
        self._cache: KVCache | None = None
        """Of K sequences that differ in their last token. None: the cache does not support the model."""
        self._candidate_states = torch.empty(0, device=self._device)
        """(K, C): hidden states of the candidates."""
        self._window_states = self._compute_window()
        """(1 or K, T, C): hidden states of the window before them."""

    def first_logits(self) -> Tensor:
        """(1, V): the logits of the token after the prompt."""
        return self._logits(self._window_states[:, -1])

    def similarity(self, candidates: Tensor) -> Tensor:
        """(K,) tokens -> (K,): the largest cosine between the hidden state of each and those before it."""
        start = context_start(len(self._sequence) + 1, self._context)
        if start > self._start:
            self._start = start
            self._window_states = self._compute_window()
        if self._cache is None:
            window = self._window().expand(len(candidates), -1)
            features = self._features(torch.cat([window, candidates[:, None]], dim=1), None)  # (K, T + 1, C)
            self._window_states, self._candidate_states = features[:, :-1], features[:, -1]
        else:
            self._candidate_states = self._features(candidates[:, None], self._cache)[:, 0]
        window_states, candidate_states = (
            F.normalize(states.float(), dim=-1) for states in (self._window_states, self._candidate_states)
        )
        return (window_states @ candidate_states[:, :, None])[:, :, 0].amax(dim=-1)

    def choose(self, index: int, token: int) -> Tensor:
        """Append candidate number `index`, which is `token`; returns (1, V), the logits of the next token."""
        self._sequence.append(token)
        chosen = self._candidate_states[index : index + 1]  # (1, C)
        if self._cache is not None:
            self._cache.reorder([index] * len(self._candidate_states))
            self._window_states = torch.cat([self._window_states, chosen[:, None]], dim=1)
        return self._logits(chosen)

    def _compute_window(self) -> Tensor:
        """Compute the window from `_start` on anew; returns (1, T, C), its hidden states."""
        config, dtype = self._model.config, self._model.head.weight.dtype
        if KVCache.capabilities.refusal(config) is None:
            self._cache = KVCache(config, 1, max_length=self._max_length, device=self._device, dtype=dtype)
        features = self._features(self._window(), self._cache)
        if self._cache is not None:
            self._cache.reorder([0] * self._n_candidate)
        return features

    def _window(self) -> Tensor:
        """(1, T): the tokens before the candidates."""
        return torch.tensor([self._sequence[self._start :]], device=self._device)

    def _features(self, tokens: Tensor, cache: KVCache | None) -> Tensor:
        """(B, T) -> (B, T, C)."""
        with attention_kernels(self._device):
            return self._model.features(tokens, cache)

    def _logits(self, features: Tensor) -> Tensor:
        logits: Tensor = self._model.softcap(self._model.head(features))
        return logits
