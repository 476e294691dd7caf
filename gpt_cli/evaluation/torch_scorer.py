"""Log-probabilities of the tokens of a text, by torch: on any device, for every option of the model.

Shapes: B texts, T tokens, V vocabulary.
"""

from collections.abc import Sequence

import torch

from gpt_cli.evaluation.logprob_scorer import LogProbs, pick_log_probs
from gpt_cli.model.gpt import GPT

_MAX_LOGITS = 2**25  # logits of a forward pass, which bounds its memory


class TorchScorer:
    """Scores batches of texts with the model, which is in eval mode, without a KV cache."""

    engine = "torch"

    def __init__(self, model: GPT) -> None:
        assert not model.training
        self.context_length = model.config.context_length
        self._model = model

    @torch.inference_mode()
    def score(self, texts: Sequence[Sequence[int]], score_from: Sequence[int]) -> list[LogProbs]:
        """As `LogprobScorer.score`. Texts are padded on the right, which causal attention masks."""
        log_probs: dict[int, LogProbs] = {}
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        longest = max((len(text) for text in texts), default=1)
        batch_size = max(1, _MAX_LOGITS // (self._model.head.out_features * longest))
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            width = len(texts[batch[-1]]) - 1
            inputs = [[*texts[i][:-1], *[0] * (width - len(texts[i]) + 1)] for i in batch]  # (B, T)
            logits = self._model(torch.tensor(inputs, device=self._model.head.weight.device))  # (B, T, V)
            for row, i in enumerate(batch):
                text_logits = logits[row, score_from[i] - 1 : len(texts[i]) - 1]
                log_probs[i] = pick_log_probs(text_logits.float().cpu().numpy(), texts[i][score_from[i] :])
        return [log_probs[i] for i in range(len(texts))]
