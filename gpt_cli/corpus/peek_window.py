"""A window of a text as `gpt data peek` shows it: its contexts, and the token that follows each."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpt_cli.corpus.split import Split
from gpt_cli.corpus.store import Tokens
from gpt_cli.errors import RequestError
from gpt_cli.shuffle import training_offset
from gpt_cli.terminal.plural import plural
from gpt_cli.tokenizer import Tokenizer


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


def cut_window(
    read: Callable[[Split, int, int], Tokens], split: Split, tokens: int, at: int, context_length: int
) -> TrainingWindow:
    """The window of `context_length` tokens that starts at index `at` of the `tokens` of a split.

    Raises RequestError where the split has no such window.
    """
    if tokens <= context_length:
        raise RequestError(
            f"there are {plural(tokens, 'token')}: too few for a context of {context_length:,} and its target",
            hint=f"--context {max(1, tokens - 1)}",
        )
    if not 0 <= at < tokens - context_length:
        raise RequestError(
            f"there is no window of {context_length:,} tokens and a target at {at:,}:"
            f" there are {plural(tokens, 'token')}",
            hint=f"--at goes from 0 to {tokens - context_length - 1}",
        )
    return TrainingWindow(at, tuple(read(split, at, at + context_length + 1).tolist()))


def first_start(tokens: int, context_length: int, seed: int) -> int:
    """The offset of the first training window for `seed`; 0 if there is none."""
    return training_offset(0, tokens, context_length, seed) if tokens > context_length else 0


def decode_bytes(tokenizer: Tokenizer, ids: tuple[int, ...]) -> bytes:
    """The bytes of the tokens; for a special token those of its text."""
    return b"".join(tokenizer.token_bytes(token) or tokenizer.decode([token]).encode() for token in ids)
