"""Decode tokens while they are generated."""

import codecs
from collections.abc import Sequence

from gpt_cli.tokenizer.base import Tokenizer


class StreamDecoder:
    """Decodes tokens incrementally; bytes of an incomplete character are held back.

    The results of `push`, `extend` and finally `flush`, concatenated, are `tokenizer.decode` of all tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._bytes: dict[int, bytes] = {}  # cache: `token_bytes` takes microseconds

    def push(self, token: int) -> str:
        """The characters that `token` completes; "" for an incomplete one.

        Raises UserError for an id outside the vocabulary.
        """
        return self.extend((token,))

    def extend(self, tokens: Sequence[int]) -> str:
        """The characters that `tokens` complete. Raises UserError as `push` does."""
        cache = self._bytes
        for token in tokens:
            if token not in cache:
                cache[token] = self._tokenizer.token_bytes(token) or self._tokenizer.decode([token]).encode()
        return self._utf8.decode(b"".join([cache[token] for token in tokens]))

    def flush(self) -> str:
        """The rest at the end: U+FFFD for an incomplete character."""
        return self._utf8.decode(b"", final=True)
