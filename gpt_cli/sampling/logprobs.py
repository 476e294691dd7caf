"""Record the log-probabilities of the sampled tokens.

Shapes: B sequences, V vocabulary.
"""

from collections.abc import Sequence

from torch import Tensor


class LogprobRecorder:
    """A processor that changes nothing, and notes the log-probability (nats) of each token under the model as it is.

    That is at temperature 1, before bias, filters and other processors: so it comes first. Natural logarithms.
    """

    def __init__(self, n_sequence: int) -> None:
        self.log_probs: list[list[float]] = [[] for _ in range(n_sequence)]
        """Log-probabilities of each sequence, in the order of its tokens."""
        self._latest: Tensor | None = None

    def apply(self, logits: Tensor) -> Tensor:
        self._latest = logits.float().log_softmax(dim=-1)
        return logits

    def gather(self, tokens: Tensor) -> Tensor:
        """(B,) -> (B,): the log-probabilities of these tokens, chosen from the logits applied last."""
        assert self._latest is not None
        return self._latest.gather(1, tokens[:, None])[:, 0]

    def note(self, given: Sequence[float]) -> None:
        """One log-probability more for each sequence."""
        for log_probs, log_prob in zip(self.log_probs, given, strict=True):
            log_probs.append(log_prob)

    def accept(self, tokens: Sequence[int]) -> None:
        """Nothing: `note` is told."""

    def reorder(self, rows: Sequence[int]) -> None:
        self.log_probs = [list(self.log_probs[row]) for row in rows]
