"""Decode tokens while they are generated."""

import codecs
from collections.abc import Sequence

from gpt_cli.tokenizer.base import Tokenizer
from gpt_cli.tokenizer.foreign import ForeignTokenizer

_CONTEXT = 32  # tokens of the prompt that may change how the first generated ones are decoded


class StreamDecoder:
    """Decodes tokens incrementally; bytes of an incomplete character are held back.

    The results of `push`, `extend` and finally `flush`, concatenated, are the text of all tokens after `prompt`: what
    `tokenizer.decode` makes of them, without the special tokens of a foreign tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._window = None
        if isinstance(tokenizer, ForeignTokenizer) and not tokenizer.is_incremental:
            self._window = _Window(tokenizer, prompt[-_CONTEXT:])
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._bytes: dict[int, bytes] = {}  # cache: `token_bytes` takes microseconds

    def push(self, token: int) -> str:
        """The characters that `token` completes; "" for an incomplete one.

        Raises UserError for an id outside the vocabulary.
        """
        return self.extend((token,))

    def extend(self, tokens: Sequence[int]) -> str:
        """The characters that `tokens` complete. Raises UserError as `push` does."""
        if self._window is not None:
            return "".join(map(self._window.push, tokens))
        cache = self._bytes
        for token in tokens:
            if token not in cache:
                cache[token] = self._tokenizer.streamed_bytes(token)
        return self._utf8.decode(b"".join([cache[token] for token in tokens]))

    def flush(self) -> str:
        """The rest at the end: U+FFFD for an incomplete character."""
        return self._utf8.decode(b"", final=True) if self._window is None else self._window.flush()


class _Window:
    """Decodes by the library, as the difference of two texts: for decoders whose tokens depend on their neighbours.

    The window begins with tokens whose text is out already, so that nothing is taken away at its start. Bytes of a
    character are held until it is complete. The library makes U+FFFD of all of a run of bytes that is no UTF-8 in
    whole; characters of it that are out already stay.
    """

    def __init__(self, tokenizer: ForeignTokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = [token for token in prompt if token not in tokenizer.special_ids]
        self._shown = len(self._ids)

    def push(self, token: int) -> str:
        if token in self._tokenizer.special_ids:
            return ""
        self._ids.append(token)
        return self._advance(hold=True)

    def flush(self) -> str:
        return self._advance(hold=False)

    def _advance(self, *, hold: bool) -> str:
        decode = self._tokenizer.decode_shown
        before, text = decode(self._ids[: self._shown]), decode(self._ids)
        if hold and text.endswith("\ufffd"):
            return ""
        if text == before:
            return ""
        self._ids, new = self._ids[self._shown :], text[len(before) :]
        self._shown = len(self._ids)
        return new if text.startswith(before) else decode(self._ids)
