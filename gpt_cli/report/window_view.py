"""Show a training window as pairs of a context and its target."""

from typing import Any

from gpt_cli.corpus.training_window import TrainingWindow, decode_bytes
from gpt_cli.terminal.table import render_pairs
from gpt_cli.tokenizer import Tokenizer
from gpt_cli.tokenizer.vocab_stats import repr_token

_MAX_CONTEXT = 40  # characters; a longer context is truncated at its start


def render_window(window: TrainingWindow, tokenizer: Tokenizer, position: str) -> str:
    """Render a window: its position, ids and tokens, then a sentence for each context and its target."""
    pairs = {
        "window": position,
        "ids": " ".join(map(str, window.ids)),
        "tokens": " ".join(repr_token(decode_bytes(tokenizer, (token,))) for token in window.ids),
    }
    sentences = [
        _sentence(
            repr_token(decode_bytes(tokenizer, pair.context)), repr_token(decode_bytes(tokenizer, (pair.target,)))
        )
        for pair in window.pairs()
    ]
    return "\n".join([render_pairs(pairs), "", *sentences])


def window_json(window: TrainingWindow, tokenizer: Tokenizer) -> dict[str, Any]:
    """The same for JSON. Bytes of an incomplete character are escaped as \\xe2."""

    def text(ids: tuple[int, ...]) -> str:
        return decode_bytes(tokenizer, ids).decode(errors="backslashreplace")

    return {
        "at": window.at,
        "ids": list(window.ids),
        "pieces": [text((token,)) for token in window.ids],
        "pairs": [
            {
                "context": list(pair.context),
                "context_text": text(pair.context),
                "target": pair.target,
                "target_text": text((pair.target,)),
            }
            for pair in window.pairs()
        ],
    }


def _sentence(context: str, target: str) -> str:
    text = context if len(context) <= _MAX_CONTEXT else "'..." + context[4 - _MAX_CONTEXT :]
    return f"when the context is {text} the target is {target}"
