"""From the text of a prompt to the tokens that a model continues. Without torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpt_cli.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class Opening:
    """The tokens that an engine continues: those of a prompt; the last may be the first of the text (see heal.py).

    Shapes: V vocabulary.
    """

    tokens: Sequence[int]
    new_bytes: bytes = b""
    """The bytes that the last token adds to the text of the prompt. Empty: it belongs to the prompt."""
    logits: npt.NDArray[np.float32] | None = field(default=None, repr=False)
    """(V,): from which the last token was drawn."""
    total: float = 0.0
    """The sum of the log-probabilities of the tokens in place of those taken back, in nats, after the processors."""

    @property
    def new_tokens(self) -> Sequence[int]:
        """The first token of the text, if it is here."""
        return self.tokens[-1:] if self.new_bytes else ()

    @property
    def key(self) -> object:
        """Equal for openings of the same text, which differ only in how the prompt is tokenized."""
        return self.new_bytes, *self.new_tokens

    @property
    def new_log_probs(self) -> list[float]:
        """The log-probability of each of `new_tokens` under the model itself."""
        return [] if self.logits is None else [float(log_softmax(self.logits)[token]) for token in self.new_tokens]


def log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """(V,) -> (V,): log-probabilities, in nats."""
    shifted = logits.astype(np.float64) - logits.max()
    log_probs: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return log_probs


def encode_prompt(tokenizer: Tokenizer, text: str, *, parse_special: bool = False) -> list[int]:
    """The ids of `text`, at least one. An empty prompt stands for the start of a text.

    With `parse_special` the text of a special token is encoded as that token.

    That is what the tokenizer puts before a text, else the end-of-text token if the vocabulary has one, else a newline,
    else token 0. Raises UnknownCharacters for characters that the vocabulary lacks.
    """
    ids = tokenizer.encode_prompt(text, allow_special=parse_special)
    if len(ids):
        return [int(token) for token in ids]
    if tokenizer.eot_id is not None:
        return [tokenizer.eot_id]
    newline = () if tokenizer.unknown_characters("\n") else tokenizer.encode("\n")
    return [int(token) for token in newline] or [0]
