"""The log-probabilities of tokens that are given, by the engine that needs no torch.

Shapes: T tokens, V vocabulary.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gpt_cli.cpu.decode.decoder import Decoder

LogProbs = npt.NDArray[np.float64]

_NUMBERS = 2**22  # of logits that are looked at together, in double precision


class LogprobScorer(Protocol):
    """A model that says how likely a text is."""

    engine: str
    context_length: int

    def score(self, texts: Sequence[Sequence[int]], firsts: Sequence[int]) -> list[LogProbs]:
        """The natural log-probability of each token of text i from index firsts[i] (at least 1) on, given all before.

        A text has at most `context_length + 1` tokens, and stands at the beginning of the context.
        """


class NativeScorer:
    """By a compiled kernel or NumPy: one forward pass a text."""

    def __init__(self, decoder: Decoder) -> None:
        self.engine = decoder.engine
        self.context_length = decoder.weights.config.context_length
        self._decoder = decoder

    def score(self, texts: Sequence[Sequence[int]], firsts: Sequence[int]) -> list[LogProbs]:
        return [
            pick_log_probs(self._decoder.score(text[:-1])[first - 1 :], text[first:])
            for text, first in zip(texts, firsts, strict=True)
        ]


def pick_log_probs(logits: npt.NDArray[np.float32], targets: Sequence[int]) -> LogProbs:
    """(T, V) logits, (T,) ids -> (T,) log softmax of each row at its id, computed in double precision."""
    found = np.empty(len(targets))
    rows = max(1, _NUMBERS // logits.shape[1])
    for start in range(0, len(targets), rows):
        some = logits[start : start + rows].astype(np.float64)  # (t, V)
        ids = np.asarray(targets[start : start + rows], dtype=np.int64)
        highest = some.max(axis=1)
        sums = np.log(np.exp(some - highest[:, None]).sum(axis=1))
        found[start : start + rows] = some[np.arange(len(ids)), ids] - highest - sums
    return found
