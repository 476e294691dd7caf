"""Record the log-probabilities of the sampled tokens.

Shapes: B sequences, V vocabulary.
"""

from collections.abc import Sequence

from torch import Tensor


class LogprobRecorder:
    """A processor that records the log-probability (nats) of each token under the model, and changes nothing.

    It is that at temperature 1, before bias, filters and other processors: so it comes first.
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

    def note(self, latest: Sequence[float]) -> None:
        """Append a log-probability to each sequence."""
        for log_probs, log_prob in zip(self.log_probs, latest, strict=True):
            log_probs.append(log_prob)

    def accept(self, tokens: Sequence[int]) -> None:
        """Nothing to do: see `note`."""

    def reorder(self, rows: Sequence[int]) -> None:
        self.log_probs = [list(self.log_probs[row]) for row in rows]
