"""Sampling under a pattern: a logits processor that applies the mask of each sequence's matcher.

Shapes: B sequences, V vocabulary.
"""

import math
from collections.abc import Sequence
from copy import copy

import numpy as np
import torch
from torch import Tensor

from gpt_cli.sampling.constraint.matcher import CompiledPattern


class Constraint:
    """Constrains each of B texts to a pattern."""

    def __init__(self, pattern: CompiledPattern, n_sequence: int) -> None:
        self.matchers = [pattern.matcher() for _ in range(n_sequence)]
        """One for each sequence, shared with its `TextStream`, which ends when the matcher has finished."""

    def apply(self, logits: Tensor) -> Tensor:
        """(B, V) -> (B, V): -inf for tokens that may not follow."""
        excluded = np.zeros(logits.shape, dtype=bool)
        for row, matcher in zip(excluded, self.matchers, strict=True):
            if (mask := matcher.mask()) is not None:
                np.logical_not(mask, out=row)
        return logits.masked_fill(torch.from_numpy(excluded).to(logits.device), -math.inf)

    def accept(self, tokens: Sequence[int]) -> None:
        for matcher, token in zip(self.matchers, tokens, strict=True):
            matcher.accept(token)

    def reorder(self, rows: Sequence[int]) -> None:
        self.matchers = [copy(self.matchers[row]) for row in rows]
