"""Weight decay and dropout by how often a text is read (docs/recipes.md has the measurements)."""

import math
from typing import Any

LARGE_STEP = 8_192
"""Tokens of a step from which ten passes over a text are enough: with more, a model learned it by heart."""
DECAY_PER_EPOCH = 2.9
"""Of a text that is read often, in units of one over the learning rate."""
_ENOUGH_EPOCHS = 6.0  # from which the decay is whole; it grows with the square of the epochs until then
_LEAST_DECAY, _MOST_DECAY = 0.1, 4.0
_MOST_DROPOUT, _FIRST_EPOCHS, _LAST_EPOCHS = 0.2, 1.5, 10.0


def weight_decay(epochs: float, tokens_per_step: float, train_tokens: float, lr: float) -> float:
    """`optim.weight_decay` for a text that is read so often, in steps of so many tokens at a peak rate of `lr`.

    Decoupled decay averages weights over 1 / (lr * decay) steps (Wang and Aitchison, 2024). A text that is repeated
    wants that average to be over a third of an epoch, whatever its size, the model's and the step's: so the decay
    grows with the step and falls with the text. With fewer epochs there is less to forget.
    """
    steps_per_epoch = max(1.0, train_tokens / tokens_per_step)
    of_many = DECAY_PER_EPOCH / (lr * steps_per_epoch)
    decay = of_many * min(1.0, epochs / _ENOUGH_EPOCHS) ** 2
    return float(f"{min(max(decay, _LEAST_DECAY), _MOST_DECAY):.2g}")


def regularization(
    epochs: float, tokens_per_step: float, train_tokens: float, lr: float, *, chooses_decay: bool
) -> dict[str, Any]:
    """Return `model.dropout` and, with `chooses_decay`, `optim.weight_decay` for a text that is read so often.

    Dropout does the work of the decay, more slowly, so there is none where the decay is ours to choose.
    """
    if chooses_decay:
        decay = weight_decay(epochs, tokens_per_step, train_tokens, lr)
        return {"model.dropout": 0.0, "optim.weight_decay": decay}
    grown = math.log(max(epochs, _FIRST_EPOCHS) / _FIRST_EPOCHS) / math.log(_LAST_EPOCHS / _FIRST_EPOCHS)
    return {"model.dropout": round(_MOST_DROPOUT * min(1.0, grown), 2)}
