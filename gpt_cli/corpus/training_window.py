"""A window of a text that training takes: its contexts, and the token that follows each."""

from collections.abc import Iterator
from dataclasses import dataclass

from gpt_cli.corpus.store import MappedTokens, Tokens
from gpt_cli.errors import RequestError
from gpt_cli.shuffle import training_offset
from gpt_cli.terminal.words import plural
from gpt_cli.tokenizer import Tokenizer

CONTEXT_LENGTH = 8
"""Tokens of the longest context in a window."""


@dataclass(frozen=True)
class ContextTarget:
    context: tuple[int, ...]
    target: int


@dataclass(frozen=True)
class TrainingWindow:
    """The T + 1 tokens of one training window: T inputs, and the target of the last."""

    at: int
    """Index of the first token in the split."""
    ids: tuple[int, ...]

    def pairs(self) -> Iterator[ContextTarget]:
        """The T contexts of 1 to T tokens that a window trains on at once, each with its target."""
        for end in range(1, len(self.ids)):
            yield ContextTarget(self.ids[:end], self.ids[end])


def cut_window(tokens: Tokens | MappedTokens, index: int, seed: int) -> TrainingWindow:
    """The window `index` that training with `seed` takes from the (n,) ids of the training split.

    Raises RequestError where the split is too short.
    """
    if len(tokens) <= CONTEXT_LENGTH:
        raise RequestError(
            f"there are {plural(len(tokens), 'token')}: too few for a context of {CONTEXT_LENGTH} and its target"
        )
    at = training_offset(index, len(tokens), CONTEXT_LENGTH, seed)
    return TrainingWindow(at, tuple(tokens[at : at + CONTEXT_LENGTH + 1].tolist()))


def decode_bytes(tokenizer: Tokenizer, ids: tuple[int, ...]) -> bytes:
    """The bytes of the tokens; for a special token those of its text."""
    return b"".join(tokenizer.token_bytes(token) or tokenizer.decode([token]).encode() for token in ids)
