"""The `Tokenizer` protocol, and the checks that all kinds share."""

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpt_cli.errors import RequestError, UserError
from gpt_cli.files import replace_file
from gpt_cli.terminal.escape import escape_control_chars

Ids = npt.NDArray[np.uint32]

_LISTED = 10  # unknown characters that an error spells out


class Tokenizer(Protocol):
    """Text to ids and back: an immutable value, equal to another one exactly if their files are equal.

    Lossless: `decode(encode(text)) == text` for every text that encodes, except that with an `unknown` id every
    character without an id of its own comes back as U+FFFD.
    """

    @property
    @abstractmethod
    def kind(self) -> str:
        """`char`, `byte` or `bpe`."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Ids are 0 ... vocab_size - 1."""

    @property
    @abstractmethod
    def eot_id(self) -> int | None:
        """The id that separates documents, where the vocabulary has one."""

    @property
    @abstractmethod
    def unk_id(self) -> int | None:
        """The id that stands for every character without one of its own, where the vocabulary has it."""

    @abstractmethod
    def encode(self, text: str, *, allow_special: bool = False) -> Ids:
        """The ids of `text`: (n,) uint32. What looks like a special token is text like any other, unless
        `allow_special`: then it is that token, wherever it stands.

        Raises UnknownCharacters, and RequestError for half a surrogate pair, which no UTF-8 text can hold.
        """

    def encode_utf8(self, data: bytes, *, allow_special: bool = False) -> Ids:
        """`encode` of a text that is given in UTF-8."""
        return self.encode(data.decode(), allow_special=allow_special)

    @abstractmethod
    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        """The text of `ids`. Special tokens give their text; bytes that are not UTF-8, and `unknown`, give U+FFFD.

        Raises UserError for an id outside the vocabulary.
        """

    @abstractmethod
    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes of one token, empty for a special one.

        Raises UserError for an id outside the vocabulary.
        """

    @abstractmethod
    def unknown_characters(self, text: str) -> list[str]:
        """The distinct characters of `text` that have no id of their own, in order of appearance."""

    @abstractmethod
    def to_json(self) -> str:
        """The text of the tokenizer's file: canonical, so equal tokenizers give equal text."""

    @property
    def digest(self) -> str:
        """sha256 (hex) of `to_json`: what pairs a tokenizer with the data and the weights made with it."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def save(self, path: Path) -> None:
        """Write the file that `load_tokenizer` reads, atomically."""
        replace_file(path, self.to_json().encode())


class UnknownCharacters(RequestError):  # noqa: N818 (named for what it carries)
    """A text has characters that the vocabulary lacks: `characters`, distinct, in order of appearance."""

    def __init__(self, characters: Iterable[str], text: str) -> None:
        self.characters = tuple(characters)
        listed = ", ".join(_introduce(character, text) for character in self.characters[:_LISTED])
        unlisted = len(self.characters) - _LISTED
        super().__init__(
            f"the text has {_count(len(self.characters))} that the vocabulary lacks: {listed}"
            + (f", and {unlisted} more" if unlisted > 0 else ""),
            hint="leave them out with --unknown skip, or take a model whose training text has them",
        )


def _count(characters: int) -> str:
    return "a character" if characters == 1 else f"{characters} characters"


def _introduce(character: str, text: str) -> str:
    visible = escape_control_chars(character)
    return f"'{visible}' (U+{ord(character):04X}, first at character {text.index(character) + 1})"


def encode_text(text: str, encoding: str = "utf-8") -> bytes:
    """The bytes of `text` in a Unicode encoding.

    Raises RequestError for half a surrogate pair: Python strings can hold one, Unicode text cannot.
    """
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        if 0xDC80 <= ord(text[error.start]) <= 0xDCFF:  # what Python makes of a byte of the command line
            raise RequestError(
                f"the text is not UTF-8: its byte 0x{ord(text[error.start]) - 0xDC00:02x}, as character"
                f" {error.start + 1}, belongs to no character",
                hint="give it as UTF-8, or in a file",
            ) from None
        raise RequestError(
            f"the text has half a surrogate pair (U+{ord(text[error.start]):04X}) as character"
            f" {error.start + 1}, which is not Unicode text",
            hint="read the text as UTF-8, and replace what does not decode",
        ) from None


def validate_ids(ids: Sequence[int] | npt.NDArray[Any], vocab_size: int) -> npt.NDArray[Any]:
    """`ids` as an integer array (n,) inside the vocabulary; raises UserError naming the first that is not."""
    array = np.asarray(ids) if len(ids) else np.zeros(0, dtype=np.uint32)
    if array.size and (array.min() < 0 or array.max() >= vocab_size):
        first = int(np.argmax((array < 0) | (array >= vocab_size)))
        raise UserError(
            f"token id {array[first]} at position {first} is outside the vocabulary of {vocab_size:,} ids",
            hint=f"ids go from 0 to {vocab_size - 1}; these may belong to another tokenizer",
        )
    return array
