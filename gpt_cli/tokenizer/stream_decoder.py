"""Tokens to text while they are being generated."""

import codecs
from collections.abc import Sequence

from gpt_cli.tokenizer.base import Tokenizer


class StreamDecoder:
    """Decodes tokens as they come, holding back bytes until they are whole characters.

    What `push`, `extend` and at the end `flush` return, joined, is `tokenizer.decode` of all the tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._bytes: dict[int, bytes] = {}  # of the tokens met so far: asking the tokenizer takes microseconds

    def push(self, token: int) -> str:
        """The characters that `token` completes: none for half a character, often several for a word.

        Raises UserError for an id outside the vocabulary.
        """
        return self.extend((token,))

    def extend(self, tokens: Sequence[int]) -> str:
        """The characters that `tokens` complete. Raises UserError as `push` does."""
        known = self._bytes
        for token in tokens:
            if token not in known:
                known[token] = self._tokenizer.token_bytes(token) or self._tokenizer.decode([token]).encode()
        return self._utf8.decode(b"".join([known[token] for token in tokens]))

    def flush(self) -> str:
        """The text left at the end: U+FFFD for an incomplete character."""
        return self._utf8.decode(b"", final=True)
