"""A window of a text that training takes, shown as pairs of a context and its target."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpt_cli.corpus.tokens import MappedTokens, Tokens
from gpt_cli.errors import RequestError
from gpt_cli.shuffle import training_offset
from gpt_cli.terminal.table import render_pairs
from gpt_cli.terminal.words import plural
from gpt_cli.tokenizer import Tokenizer
from gpt_cli.tokenizer.vocab_stats import repr_token

CONTEXT_LENGTH = 8
"""Tokens of the longest context in a window."""
_MAX_CONTEXT = 40  # characters; a longer context is truncated at its start


@dataclass(frozen=True)
class TrainingWindow:
    """The T + 1 tokens of one training window: T inputs, and the target of the last."""

    at: int
    """Index of the first token in the split."""
    ids: tuple[int, ...]

    def pairs(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield (context, target) for the T contexts of 1 to T tokens that a window trains on at once."""
        for end in range(1, len(self.ids)):
            yield self.ids[:end], self.ids[end]


def cut_window(tokens: Tokens | MappedTokens, index: int, seed: int) -> TrainingWindow:
    """Return the window `index` that training with `seed` takes from the (n,) ids of the training split.

    Raises RequestError where the split is too short.
    """
    if len(tokens) <= CONTEXT_LENGTH:
        message = f"there are {plural(len(tokens), 'token')}: too few for a context of {CONTEXT_LENGTH} and its target"
        raise RequestError(message)
    at = training_offset(index, len(tokens), CONTEXT_LENGTH, seed)
    return TrainingWindow(at, tuple(tokens[at : at + CONTEXT_LENGTH + 1].tolist()))


def render_window(window: TrainingWindow, tokenizer: Tokenizer, position: str) -> str:
    """Render a window: its position, ids and tokens, then a sentence for each context and its target."""
    pairs = {
        "window": position,
        "ids": " ".join(map(str, window.ids)),
        "tokens": " ".join(repr_token(_decode_bytes(tokenizer, (token,))) for token in window.ids),
    }
    sentences = [
        _sentence(repr_token(_decode_bytes(tokenizer, context)), repr_token(_decode_bytes(tokenizer, (target,))))
        for context, target in window.pairs()
    ]
    return "\n".join([render_pairs(pairs), "", *sentences])


def window_json(window: TrainingWindow, tokenizer: Tokenizer) -> dict[str, Any]:
    """The same for JSON. Bytes of an incomplete character are escaped as \\xe2."""

    def text(ids: tuple[int, ...]) -> str:
        return _decode_bytes(tokenizer, ids).decode(errors="backslashreplace")

    return {
        "at": window.at,
        "ids": list(window.ids),
        "pieces": [text((token,)) for token in window.ids],
        "pairs": [
            {
                "context": list(context),
                "context_text": text(context),
                "target": target,
                "target_text": text((target,)),
            }
            for context, target in window.pairs()
        ],
    }


def _sentence(context: str, target: str) -> str:
    text = context if len(context) <= _MAX_CONTEXT else "'..." + context[4 - _MAX_CONTEXT :]
    return f"when the context is {text} the target is {target}"


def _decode_bytes(tokenizer: Tokenizer, ids: tuple[int, ...]) -> bytes:
    """Return the bytes of the tokens; for a special token those of its text."""
    return b"".join(tokenizer.token_bytes(token) or tokenizer.decode([token]).encode() for token in ids)
