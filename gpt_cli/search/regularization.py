"""Dropout and weight decay by how often a text is read, as measured with Muon (docs/recipes.md)."""

_BY_EPOCHS = ((15.0, 0.2, 0.6), (10.0, 0.2, 0.4), (3.0, 0.0, 0.4), (1.5, 0.0, 0.2))
"""(more epochs than, dropout, weight decay), the most epochs first."""
_ELSE = (0.0, 0.1)


def dropout_and_decay(epochs: float) -> tuple[float, float]:
    """(`model.dropout`, `optim.weight_decay`) for a text that is read so often."""
    return next(((dropout, decay) for least, dropout, decay in _BY_EPOCHS if epochs > least), _ELSE)
