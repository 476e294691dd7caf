"""Log-probabilities of the tokens of a text, and the places of the tokens in it.

Shapes: V vocabulary.
"""

from dataclasses import dataclass

import numpy as np

from gpt_cli.sampling.prompt import log_softmax
from gpt_cli.serve.text_engine import Logits
from gpt_cli.tokenizer import StreamDecoder


@dataclass(frozen=True)
class TokenLogprob:
    """A token with its natural log-probability before any filter, and those of its likeliest alternatives."""

    token: int
    logprob: float | None
    """None for the first token of a scored text, which nothing predicts."""
    top_logprobs: list[tuple[int, float]]
    """The likeliest tokens, best first, each with its log-probability."""
    filtered_probs: list[float] | None = None
    """Probabilities of `top_logprobs` after temperature and filters. None: unknown, or not requested."""
    new_bytes: bytes = b""
    """All that a first token adds to the prompt, if it begins inside it."""


@dataclass(frozen=True)
class OffsetLogprob:
    """The log-probability of a token whose text begins at character `text_offset` of its choice."""

    text_offset: int
    entry: TokenLogprob


class TokenPlaces:
    """The places of tokens in the text of a choice: where the character begins in which the first byte lies."""

    def __init__(self, decoder: StreamDecoder, start: int = 0) -> None:
        self._decoder, self._n_character = decoder, start

    def begin(self, new_bytes: bytes) -> int:
        """The place of a first token that adds `new_bytes` to the prompt."""
        place = self._n_character
        self._n_character += len(self._decoder.push_bytes(new_bytes))
        return place

    def place(self, token: int, *, ends: bool = False) -> int:
        """The place of the next token; of one that `ends` the text, the end."""
        held = len(self._decoder.flush()) if ends else self._decoder.held_before(token)
        place = self._n_character + held
        self._n_character += held if ends else len(self._decoder.push(token))
        return place


def compute_logprob(logits: Logits, token: int, n_top: int) -> TokenLogprob:
    """The log-probability of `token` under (V,) `logits`, with the `n_top` likeliest tokens."""
    logprobs = log_softmax(logits)
    top: list[tuple[int, float]] = []
    if n_top:
        n_top = min(n_top, len(logprobs))
        ids = np.argpartition(-logprobs, n_top - 1)[:n_top]
        ids = ids[np.lexsort((ids, -logprobs[ids]))]
        top = [(int(i), float(logprobs[i])) for i in ids]
    return TokenLogprob(token, float(logprobs[token]), top)
