"""Statistics of a vocabulary and its use."""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpt_cli.terminal.escape import escape_control_chars
from gpt_cli.tokenizer.base import Tokenizer

_CHUNK = 1 << 24  # ids counted at once, to bound the memory

Counts = npt.NDArray[np.int64]


class SlicedIds(Protocol):
    """(n,) ids, in memory or not."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice, /) -> npt.NDArray[Any]: ...


def count_ids(ids: SlicedIds, vocab_size: int) -> Counts:
    """(vocab_size,) how often each id occurs in `ids`."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for start in range(0, len(ids), _CHUNK):
        counts += np.bincount(ids[start : start + _CHUNK], minlength=vocab_size)
    return counts


def longest_tokens(tokenizer: Tokenizer, limit: int) -> list[int]:
    """The `limit` ids whose tokens have the most bytes, the lower id first among equals."""
    return sorted(range(tokenizer.vocab_size), key=lambda token: (-len(tokenizer.token_bytes(token)), token))[:limit]


def repr_token(token: bytes) -> str:
    """A token as a quoted string, safe for a terminal: `' the'`; `'\\xe2\\x82'` for an incomplete character."""
    text = token.decode(errors="backslashreplace")
    return f"'{escape_control_chars(text)}'"
