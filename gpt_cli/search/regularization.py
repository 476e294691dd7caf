"""Dropout and weight decay by how often a text is read, as measured with Muon (docs/recipes.md)."""

from typing import Any

_BY_EPOCHS = ((15.0, 0.2, 0.6), (10.0, 0.2, 0.4), (3.0, 0.0, 0.4), (2.2, 0.0, 0.2), (0.0, 0.0, 0.1))
"""(epochs at least, dropout, weight decay), the most epochs first."""
_WITHOUT_DECAY = ((10.0, 0.2), (3.0, 0.1), (0.0, 0.0))
"""(epochs at least, dropout) where the decay is not ours to choose."""


LARGE_STEP = 8_192
"""Tokens of a step from which ten passes over a text are enough: with more, a model learned it by heart."""
_SMALL_STEP, _MEASURED_STEP, _LARGEST_STEP = 2_048, 4_096, 16_384  # tokens
_REPEATED = 3.0  # epochs from which the decay keeps a model from memorising


def regularization(epochs: float, tokens_per_step: int, *, chooses_decay: bool) -> dict[str, Any]:
    """`model.dropout` and, with `chooses_decay`, `optim.weight_decay` for a text that is read so often.

    The decays are those of steps of 2,048 to 4,096 tokens. Where a text is repeated, larger steps, of which there are
    fewer, have a decay in proportion: weights are then averaged over as many tokens (Wang and Aitchison, 2024).
    """
    if not chooses_decay:
        return {"model.dropout": next(dropout for least, dropout in _WITHOUT_DECAY if epochs >= least)}
    dropout, decay = next((dropout, decay) for least, dropout, decay in _BY_EPOCHS if epochs >= least)
    if epochs >= _REPEATED and tokens_per_step > _MEASURED_STEP:
        decay = round(decay * min(tokens_per_step, _LARGEST_STEP) / _SMALL_STEP, 2)
    return {"model.dropout": dropout, "optim.weight_decay": decay}
