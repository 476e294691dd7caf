"""Log-probabilities of the tokens of a text, by the native engine.

Shapes: T tokens, V vocabulary.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gpt_cli.cpu.decode.decoder import Decoder

LogProbs = npt.NDArray[np.float64]

_CHUNK_LOGITS = 2**22  # logits that are converted to double precision at once


class LogprobScorer(Protocol):
    """Computes the log-probabilities of the tokens of texts."""

    engine: str
    context_length: int

    def score(self, texts: Sequence[Sequence[int]], score_from: Sequence[int]) -> list[LogProbs]:
        """The natural log-probability of each token of text i from index score_from[i] >= 1 on, given all before.

        A text has at most `context_length + 1` tokens; its first token has position 0.
        """


class NativeScorer:
    """Scores with the C or NumPy decoder, one forward pass a text."""

    def __init__(self, decoder: Decoder) -> None:
        self.engine = decoder.engine
        self.context_length = decoder.weights.config.context_length
        self._decoder = decoder

    def score(self, texts: Sequence[Sequence[int]], score_from: Sequence[int]) -> list[LogProbs]:
        return [
            pick_log_probs(self._decoder.score(text[:-1])[first - 1 :], text[first:])
            for text, first in zip(texts, score_from, strict=True)
        ]


def pick_log_probs(logits: npt.NDArray[np.float32], targets: Sequence[int]) -> LogProbs:
    """(T, V) logits, (T,) ids -> (T,) log softmax of each row at its id, computed in double precision."""
    log_probs = np.empty(len(targets))
    rows = max(1, _CHUNK_LOGITS // logits.shape[1])
    for start in range(0, len(targets), rows):
        chunk = logits[start : start + rows].astype(np.float64)  # (t, V)
        ids = np.asarray(targets[start : start + rows], dtype=np.int64)
        maximum = chunk.max(axis=1)
        sums = np.log(np.exp(chunk - maximum[:, None]).sum(axis=1))
        log_probs[start : start + rows] = chunk[np.arange(len(ids)), ids] - maximum - sums
    return log_probs
