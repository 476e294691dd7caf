"""Dropout and weight decay by how often a text is read, as measured with Muon (docs/recipes.md)."""

from typing import Any

_BY_EPOCHS = ((15.0, 0.2, 0.6), (10.0, 0.2, 0.4), (3.0, 0.0, 0.4), (2.2, 0.0, 0.2), (0.0, 0.0, 0.1))
"""(more epochs than, dropout, weight decay), the most epochs first."""
_WITHOUT_DECAY = ((10.0, 0.2), (3.0, 0.1))
"""(more epochs than, dropout) where the decay is not ours to choose."""


def regularization(epochs: float, *, chooses_decay: bool) -> dict[str, Any]:
    """`model.dropout` and, with `chooses_decay`, `optim.weight_decay` for a text that is read so often."""
    if not chooses_decay:
        return {"model.dropout": next((dropout for least, dropout in _WITHOUT_DECAY if epochs > least), 0.0)}
    dropout, decay = next((one[1:] for one in _BY_EPOCHS if epochs > one[0]), _BY_EPOCHS[-1][1:])
    return {"model.dropout": dropout, "optim.weight_decay": decay}
