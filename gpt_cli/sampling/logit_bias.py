"""Processors that depend on the token alone: a logit bias, and a minimal length.

Shapes: B sequences, V vocabulary.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gpt_cli.errors import RequestError
from gpt_cli.terminal.escape import escape_control_chars
from gpt_cli.tokenizer import Tokenizer

_MAX_LISTED = 9  # pieces that an error spells out


def token_bias(tokenizer: Tokenizer, entries: Sequence[tuple[str | int, float]]) -> dict[int, float]:
    """Logit bias by id: `entries`, and -inf for `<unk>`, which is never sampled.

    A text stands for the one token that it encodes to. Raises RequestError if it encodes to more, for an id outside the
    vocabulary, and if no token is left.
    """
    bias: dict[int, float] = {}
    for name, value in entries:
        if (token := _id(tokenizer, name)) in bias:
            raise RequestError(f"logit_bias: token {token} is given twice", hint="give each token one number")
        bias[token] = value
    if tokenizer.unk_id is not None:
        bias[tokenizer.unk_id] = -math.inf
    banned = {token for token, value in bias.items() if value == -math.inf} | tokenizer.end_ids
    if all(token in banned for token in range(tokenizer.vocab_size)):
        raise RequestError("logit_bias leaves no token that may be written")
    return bias


def _id(tokenizer: Tokenizer, name: str | int) -> int:
    if isinstance(name, int):
        if not 0 <= name < tokenizer.vocab_size:
            raise RequestError(f"logit_bias: there is no id {name} in a vocabulary of {tokenizer.vocab_size:,}")
        return name
    if missing := tokenizer.unknown_characters(name):
        raise RequestError(
            f"logit_bias: '{escape_control_chars(name[:50])}' has characters that the vocabulary lacks:"
            f" {escape_control_chars(''.join(missing)[:50])}"
        )
    ids = tokenizer.encode(name, allow_special=True)
    if len(ids) != 1:
        pieces = [f"'{escape_control_chars(tokenizer.decode([int(token)]))}'" for token in ids[:_MAX_LISTED]]
        raise RequestError(
            f"logit_bias: '{escape_control_chars(name[:50])}' is {len(ids)} tokens, not one: {' '.join(pieces)}",
            hint="gpt tokenize --text shows the tokens of a text",
        )
    return int(ids[0])


class LogitBias:
    """Adds a number to the logits of some tokens; -inf forbids them."""

    def __init__(self, bias: Mapping[int, float], vocab_size: int, device: torch.device) -> None:
        self._bias = torch.zeros(vocab_size, device=device)
        for token, value in bias.items():
            self._bias[token] = value

    def apply(self, logits: Tensor) -> Tensor:
        return logits + self._bias

    def accept(self, tokens: Sequence[int]) -> None:
        """Nothing to do: the bias is constant."""

    def reorder(self, rows: Sequence[int]) -> None:
        """Nothing to do: the bias is the same for all sequences."""


class MinNewTokens:
    """Forbids the `ends`, which end a text, in the first `n` tokens of each of B texts."""

    def __init__(self, ends: Sequence[int], n: Sequence[int]) -> None:
        self._ends, self._n = list(ends), list(n)

    def apply(self, logits: Tensor) -> Tensor:
        rows = [row for row, n in enumerate(self._n) if n > 0]
        if not rows:
            return logits
        logits = logits.clone()
        logits[torch.tensor(rows, device=logits.device)[:, None], self._ends] = -math.inf
        return logits

    def accept(self, tokens: Sequence[int]) -> None:
        self._n = [n - 1 for n in self._n]

    def reorder(self, rows: Sequence[int]) -> None:
        self._n = [self._n[row] for row in rows]
