"""Decode tokens while they are generated."""

import codecs
from collections.abc import Sequence

from gpt_cli.tokenizer.base import Tokenizer
from gpt_cli.tokenizer.foreign import ForeignTokenizer

_CONTEXT = 32  # tokens of the prompt that may change how the first generated ones are decoded


class StreamDecoder:
    """Decodes tokens incrementally; bytes of an incomplete character are held back.

    The results of `push`, `extend` and finally `flush`, concatenated, are the text of all tokens after `prompt`: what
    `tokenizer.decode` makes of them, without the special tokens of a foreign tokenizer unless `special`.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = (), *, special: bool = False) -> None:
        self._tokenizer, self._special = tokenizer, special
        self._window = None
        if isinstance(tokenizer, ForeignTokenizer) and not tokenizer.is_incremental:
            self._window = _Window(tokenizer, prompt[-_CONTEXT:], special=special)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._bytes: dict[int, bytes] = {}  # cache: `token_bytes` takes microseconds

    def push(self, token: int) -> str:
        """The characters that `token` completes. Raises UserError for an id outside the vocabulary."""
        return self.extend((token,))

    def extend(self, tokens: Sequence[int]) -> str:
        """The characters that `tokens` complete. Raises UserError as `push` does."""
        if self._window is not None:
            return "".join(map(self._window.push, tokens))
        return self._utf8.decode(b"".join(map(self._bytes_of, tokens)))

    def held_before(self, token: int) -> int:
        """The number of characters that are held back and end before the text of `token`, which is not pushed yet.

        None if it continues the incomplete character, else the U+FFFD that this becomes.
        """
        if self._window is not None:
            return self._window.held_before(token)
        held, first = self._utf8.getstate()[0], self._bytes_of(token)[:1]
        continues = not held or not first or len((held + first).decode(errors="replace")) == 1
        return 0 if continues else len(held.decode(errors="replace"))

    def _bytes_of(self, token: int) -> bytes:
        data = self._bytes.get(token)
        if data is None:
            data = self._tokenizer.streamed_bytes(token)
            if self._special and not data:
                data = self._tokenizer.decode([token]).encode()
            self._bytes[token] = data
        return data

    def push_bytes(self, data: bytes) -> str:
        """The characters that `data`, the end of a token's bytes, completes. Only where tokens have bytes."""
        assert self._window is None
        return self._utf8.decode(data)

    def flush(self) -> str:
        """The rest at the end: U+FFFD for an incomplete character."""
        return self._utf8.decode(b"", final=True) if self._window is None else self._window.advance()


class _Window:
    """Decodes by the library, as the difference of two texts: for decoders whose tokens depend on their neighbours.

    The window begins with tokens whose text is out already, so that nothing is taken away at its start. Bytes of a
    character are held until it is complete. The library makes U+FFFD of all of a run of bytes that is no UTF-8 in
    whole; characters of it that are out already stay.
    """

    def __init__(self, tokenizer: ForeignTokenizer, prompt: Sequence[int], *, special: bool) -> None:
        self._decode = tokenizer.decode if special else tokenizer.decode_shown
        self._unseen = frozenset[int]() if special else tokenizer.special_ids
        self._ids = [token for token in prompt if token not in self._unseen]
        self._shown = len(self._ids)

    def push(self, token: int) -> str:
        if token in self._unseen:
            return ""
        self._ids.append(token)
        return self.advance(hold=True)

    def held_before(self, token: int) -> int:
        n_held = len(self._ids) - self._shown
        if not n_held or token in self._unseen:
            return 0
        new = self._decode([*self._ids, token])[len(self._decode(self._ids[: self._shown])) :]
        if new.endswith("\ufffd"):  # may go on
            return 0
        return min(n_held, len(new) - len(new.lstrip("\ufffd")))

    def advance(self, *, hold: bool = False) -> str:
        """The text that is not out yet; with `hold` "" while it ends in an incomplete character."""
        before, text = self._decode(self._ids[: self._shown]), self._decode(self._ids)
        if (hold and text.endswith("\ufffd")) or text == before:
            return ""
        self._ids = self._ids[self._shown :]
        self._shown = len(self._ids)
        return text[len(before) :] if text.startswith(before) else self._decode(self._ids)
