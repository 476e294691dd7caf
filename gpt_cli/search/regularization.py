"""Dropout and weight decay by how often a text is read, as measured with Muon (docs/recipes.md)."""

from typing import Any

_BY_EPOCHS = ((15.0, 0.2, 0.6), (10.0, 0.2, 0.4), (3.0, 0.0, 0.4), (2.2, 0.0, 0.2), (0.0, 0.0, 0.1))
"""(epochs at least, dropout, weight decay), the most epochs first."""
_WITHOUT_DECAY = ((10.0, 0.2), (3.0, 0.1), (0.0, 0.0))
"""(epochs at least, dropout) where the decay is not ours to choose."""


def regularization(epochs: float, *, chooses_decay: bool) -> dict[str, Any]:
    """`model.dropout` and, with `chooses_decay`, `optim.weight_decay` for a text that is read so often."""
    if not chooses_decay:
        return {"model.dropout": next(dropout for least, dropout in _WITHOUT_DECAY if epochs >= least)}
    dropout, decay = next((dropout, decay) for least, dropout, decay in _BY_EPOCHS if epochs >= least)
    return {"model.dropout": dropout, "optim.weight_decay": decay}
