"""Weight decay and dropout by how often a text is read (docs/recipes.md has the measurements)."""

import math
from typing import Any

LARGE_STEP = 8_192
"""Tokens of a step from which ten passes over a text are enough: with more, a model learned it by heart."""
DECAY_PER_EPOCH = 2.9
"""Of a text that is read often, in units of one over the learning rate."""
_ENOUGH_EPOCHS = 6.0  # from which the decay is whole; it grows with the square of the epochs until then
_LEAST_DECAY, _MOST_DECAY = 0.1, 4.0
_SMALL_TEXT, _TINY_TEXT = 400_000, 20_000  # tokens of texts without dropout, and with the most
_MOST_DROPOUT = 0.2
_LEFT_TO_DROPOUT = 0.85  # of the decay of a tiny text
_EXAMPLES = ((15.0, 0.2, 0.6), (10.0, 0.2, 0.4), (3.0, 0.0, 0.4), (2.2, 0.0, 0.2), (0.0, 0.0, 0.1))
"""(epochs at least, dropout, weight decay) of examples, of which fewer sizes were measured."""
_WITHOUT_DECAY = ((10.0, 0.2), (3.0, 0.1), (0.0, 0.0))
"""(epochs at least, dropout) where the decay is not ours to choose."""


def regularization(
    epochs: float, tokens_per_step: float, train_tokens: float, lr: float, *, chooses_decay: bool, is_text: bool = True
) -> dict[str, Any]:
    """Return `model.dropout` and, with `chooses_decay`, `optim.weight_decay` for training data that is read so often.

    Without `is_text` the data are examples.
    """
    if not chooses_decay:
        return {"model.dropout": next(dropout for least, dropout in _WITHOUT_DECAY if epochs >= least)}
    if is_text:
        return regularize_text(epochs, tokens_per_step, train_tokens, lr)
    dropout, decay = next((dropout, decay) for least, dropout, decay in _EXAMPLES if epochs >= least)
    return {"model.dropout": dropout, "optim.weight_decay": decay}


def regularize_text(epochs: float, tokens_per_step: float, train_tokens: float, lr: float) -> dict[str, Any]:
    """Return dropout and weight decay for a text that is read so often, in steps of so many tokens at a rate of `lr`.

    Decoupled decay averages weights over 1 / (lr * decay) steps (Wang and Aitchison, 2024). A text that is repeated
    wants that average to be over a third of an epoch, whatever its size, the model's and the step's: so the decay
    grows with the step and falls with the text. With fewer epochs there is less to forget. For a small text that would
    be a few steps: the smaller it is, the more of the work is left to dropout.
    """
    small = math.log(_SMALL_TEXT / max(_TINY_TEXT, min(train_tokens, _SMALL_TEXT)))
    share = small / math.log(_SMALL_TEXT / _TINY_TEXT)  # 0 to 1
    seen_often = min(1.0, epochs / _ENOUGH_EPOCHS) ** 2
    steps_per_epoch = max(1.0, train_tokens / tokens_per_step)
    of_many = min(DECAY_PER_EPOCH / (lr * steps_per_epoch), _MOST_DECAY)
    decay = max(of_many * (1.0 - _LEFT_TO_DROPOUT * share) * seen_often, _LEAST_DECAY)
    return {
        "model.dropout": round(_MOST_DROPOUT * share * seen_often, 2),
        "optim.weight_decay": float(f"{decay:.2g}"),
    }
