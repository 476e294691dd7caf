"""The figures of a classifier on labelled texts: loss, accuracy, macro F1 and the confusion matrix.

Shapes: E texts, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpt_cli.corpus.mapped import MappedTokens
from gpt_cli.model.sequence_classifier import SequenceClassifier
from gpt_cli.parallel.world import ALONE, World
from gpt_cli.runtime.device import Runtime
from gpt_cli.runtime.oom import is_out_of_memory, oom_as_user_error
from gpt_cli.training.labelled_rows import LabelledRows, pad_rows

_CPU_NUMBERS, _NUMBERS = 2**22, 2**27  # in the widest layer of a forward pass, as for texts
_ = MappedTokens


@dataclass(frozen=True)
class LabelledEvaluation:
    """Labelled texts to evaluate on."""

    rows: LabelledRows
    runtime: Runtime


@dataclass(frozen=True, eq=False)
class ClassEvaluation:
    """The figures of a model on labelled texts."""

    log_probs: npt.NDArray[np.float64]
    """(E, K) natural logarithms."""
    classes: npt.NDArray[np.int64]
    """(E,) the true ones."""
    tokens: int
    """Tokens that were read."""
