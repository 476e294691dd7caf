"""Tokens to text while they are being generated."""

import codecs

from gpt_cli.tokenizer.base import Tokenizer


class StreamDecoder:
    """Decodes one token at a time, holding back bytes until they are whole characters.

    What `push` and at the end `flush` return, joined, is `tokenizer.decode` of all the tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The characters that `token` completes: none for half a character, often several for a word.

        Raises UserError for an id outside the vocabulary.
        """
        special = not (piece := self._tokenizer.token_bytes(token))
        return self._utf8.decode(self._tokenizer.decode([token]).encode() if special else piece)

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that was never completed."""
        return self._utf8.decode(b"", final=True)
