"""The log-probabilities of tokens that are given, by torch: on any device, for every option of the model.

Shapes: B texts, T tokens, V vocabulary.
"""

from collections.abc import Sequence

import torch

from gpt_cli.evaluation.logprob_scorer import LogProbs, pick_log_probs
from gpt_cli.model.gpt import GPT

_NUMBERS = 2**25  # logits of a forward pass, which bounds its memory


class TorchScorer:
    """By the network itself, uncached, several texts at once. The model is in eval mode."""

    engine = "torch"

    def __init__(self, model: GPT) -> None:
        assert not model.training
        self.context_length = model.config.context_length
        self._model = model

    @torch.inference_mode()
    def score(self, texts: Sequence[Sequence[int]], firsts: Sequence[int]) -> list[LogProbs]:
        """As `LogprobScorer.score` says. Texts are padded on the right, which causal attention does not see."""
        found: dict[int, LogProbs] = {}
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        longest = max((len(text) for text in texts), default=1)
        at_once = max(1, _NUMBERS // (self._model.head.out_features * longest))
        for start in range(0, len(order), at_once):
            some = order[start : start + at_once]
            width = len(texts[some[-1]]) - 1
            inputs = [[*texts[i][:-1], *[0] * (width - len(texts[i]) + 1)] for i in some]  # (B, T)
            logits = self._model(torch.tensor(inputs, device=self._model.head.weight.device))  # (B, T, V)
            for row, i in enumerate(some):
                wanted = logits[row, firsts[i] - 1 : len(texts[i]) - 1]
                found[i] = pick_log_probs(wanted.float().cpu().numpy(), texts[i][firsts[i] :])
        return [found[i] for i in range(len(texts))]
