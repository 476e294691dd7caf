"""The tokens and merges of a byte-level BPE, as a value."""

from dataclasses import dataclass

from gpt_cli.literals import Pattern

END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True)
class Vocabulary:
    """The tokens and merges of a BPE.

    tokens         the bytes of each id; for a special token those of its text
    merges         (left, right, merged) ids, first learned first
    special        the ids of special tokens, to which ordinary text is not encoded
    pattern        the pre-tokenizer
    ignore_merges  a word that is a token is encoded as that token, without merges (Llama 3)

    Raises ValueError unless every byte is a token, no token is empty and the merges fit the tokens: so every text can
    be encoded and decoded.
    """

    tokens: tuple[bytes, ...]
    merges: tuple[tuple[int, int, int], ...]
    special: frozenset[int]
    pattern: Pattern
    ignore_merges: bool = False

    def __post_init__(self) -> None:
        ordinary = {token for i, token in enumerate(self.tokens) if i not in self.special}
        if missing := [byte for byte in range(256) if bytes([byte]) not in ordinary]:
            raise ValueError(f"it has no token for the byte 0x{missing[0]:02x}, so there are texts it cannot encode")
        if not all(self.tokens):
            raise ValueError(f"token {self.tokens.index(b'')} is empty")
        if len({merge[:2] for merge in self.merges}) < len(self.merges):
            raise ValueError("a pair of tokens is merged twice")
        for left, right, merged in self.merges:
            if not self.special.isdisjoint((left, right, merged)):
                raise ValueError(f"the merge of tokens {left} and {right} would make text out of a special token")
            if self.tokens[left] + self.tokens[right] != self.tokens[merged]:
                raise ValueError(f"the merge of tokens {left} and {right} is not token {merged}")

    @property
    def eot_id(self) -> int | None:
        """The id of `<|endoftext|>`, if it is a special token."""
        return next((i for i in sorted(self.special) if self.tokens[i] == END_OF_TEXT.encode()), None)


def _printable_bytes() -> tuple[str, ...]:
    """GPT-2's character for each byte: the byte's if Latin-1 can print it, else the next from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    substitutes = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printable else next(substitutes)) for byte in range(256))


BYTE_ENCODER = _printable_bytes()
_BYTE_DECODER = {character: byte for byte, character in enumerate(BYTE_ENCODER)}


def bytes_to_unicode(token: bytes) -> str:
    """Bytes in the spelling of tokenizer.json: `Ġthe` for ` the`."""
    return "".join(BYTE_ENCODER[byte] for byte in token)


def unicode_to_bytes(spelling: str) -> bytes:
    """The inverse of `bytes_to_unicode`. Raises ValueError for a character that stands for no byte."""
    try:
        return bytes(_BYTE_DECODER[character] for character in spelling)
    except KeyError as error:
        raise ValueError(f"the token {spelling!r} is not spelled in bytes: {error} stands for none") from None
