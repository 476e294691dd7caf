"""The `Tokenizer` protocol, and the checks that all kinds share."""

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpt_cli.errors import RequestError, UserError
from gpt_cli.files import replace_file
from gpt_cli.terminal.escape import escape_control_chars
from gpt_cli.tokenizer.token_prefixes import TokenPrefixes

Ids = npt.NDArray[np.uint32]

_MAX_LISTED = 10  # unknown characters that an error lists
_CONTINUATION_BYTES = bytes(range(0x80, 0xC0))  # of a character in UTF-8: all but its first byte


class Tokenizer(Protocol):
    """Encodes text to ids and decodes them. Immutable; two are equal if and only if their files are.

    Lossless: `decode(encode(text)) == text` for every text that encodes, except that with an `unknown` id every
    character without an id of its own comes back as U+FFFD.
    """

    @property
    @abstractmethod
    def kind(self) -> str:
        """`char`, `byte`, `bpe` or `hf`."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Ids are 0 ... vocab_size - 1."""

    @property
    @abstractmethod
    def eot_id(self) -> int | None:
        """The id that separates documents; None if the vocabulary has none."""

    @property
    def end_ids(self) -> frozenset[int]:
        """The ids at which a generated text ends."""
        return frozenset() if self.eot_id is None else frozenset({self.eot_id})

    @property
    def begin_ids(self) -> tuple[int, ...]:
        """The ids that stand before each text, such as a begin token."""
        return ()

    @property
    def prefixes(self) -> TokenPrefixes | None:
        """Prefix searches in the tokens of a generated text; None if none begins another, or they have no bytes."""
        return None

    @property
    @abstractmethod
    def unk_id(self) -> int | None:
        """The id of all unknown characters; None if the vocabulary has none."""

    @abstractmethod
    def encode(self, text: str, *, allow_special: bool = False) -> Ids:
        """The ids of `text`: (n,) uint32. The text of a special token is encoded as that token if `allow_special`, else
        as ordinary text.

        Raises UnknownCharacters, and RequestError for a lone surrogate.
        """

    def encode_utf8(self, data: bytes, *, allow_special: bool = False) -> Ids:
        """`encode` of UTF-8."""
        return self.encode(data.decode(), allow_special=allow_special)

    def encode_prompt(self, text: str, *, allow_special: bool = False) -> Ids:
        """The ids of `text` as a prompt: with what the tokenizer puts around a text. Raises as `encode` does."""
        return self.encode(text, allow_special=allow_special)

    def encode_part(self, text: str) -> Ids:
        """The ids of `text` as the continuation of other tokens. Raises as `encode` does."""
        return self.encode(text)

    def encode_spans(self, text: str, *, allow_special: bool = False) -> tuple[Ids, npt.NDArray[np.int64]]:
        """((N,) ids of `text` as a prompt, (N + 1,) offsets in its UTF-8 at which each begins, and its length).

        A character that takes several tokens belongs to the last of them. Raises as `encode` does.
        """
        ids = self.encode_prompt(text, allow_special=allow_special)
        if self.unk_id is not None:  # one id per character
            lengths = np.array([len(character.encode()) for character in text], dtype=np.int64)
        else:
            lengths = token_sizes(self)[ids, 0]
            for i in np.flatnonzero(lengths == 0):  # special
                lengths[i] = len(self.decode(ids[i : i + 1]).encode())
        return ids, np.concatenate([[0], lengths.cumsum()])

    @abstractmethod
    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        """The text of `ids`. Special tokens become their text; invalid UTF-8 and unknown characters become U+FFFD.

        Raises UserError for an id outside the vocabulary.
        """

    @abstractmethod
    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes of one token, empty for a special one.

        Raises UserError for an id outside the vocabulary.
        """

    @property
    def is_incremental(self) -> bool:
        """True if a generated text is the concatenation of the `streamed_bytes` of its tokens."""
        return True

    def streamed_bytes(self, token: int) -> bytes:
        """The bytes of one token of a generated text. Raises as `token_bytes` does."""
        return self.token_bytes(token) or self.decode([token]).encode()

    @abstractmethod
    def unknown_characters(self, text: str) -> list[str]:
        """The distinct characters of `text` that have no id of their own, in order of appearance."""

    @abstractmethod
    def to_json(self) -> str:
        """The contents of the tokenizer's file, in a canonical form."""

    @property
    def digest(self) -> str:
        """sha256 (hex) of `to_json`; identifies the tokenizer of data and weights."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def save(self, path: Path) -> None:
        """Write the file that `load_tokenizer` reads, atomically."""
        replace_file(path, self.to_json().encode())


class UnknownCharacters(RequestError):  # noqa: N818 (named for what it carries)
    """A text has characters that the vocabulary lacks: `characters`, distinct, in order of appearance.

    `places` are those characters and the index of the first of each.
    """

    def __init__(self, places: Mapping[str, int]) -> None:
        self.characters = tuple(places)
        listed = ", ".join(_describe_character(*place) for place in list(places.items())[:_MAX_LISTED])
        unlisted = len(self.characters) - _MAX_LISTED
        super().__init__(
            f"the text has {_count(len(self.characters))} that the vocabulary lacks: {listed}"
            + (f", and {unlisted} more" if unlisted > 0 else ""),
            kind="unknown characters",
        )


def _count(characters: int) -> str:
    return "a character" if characters == 1 else f"{characters} characters"


def _describe_character(character: str, index: int) -> str:
    return f"'{escape_control_chars(character)}' (U+{ord(character):04X}, first at character {index + 1:,})"


def drop_unknown(tokenizer: Tokenizer, text: str) -> tuple[str, list[str]]:
    """`text` without the characters that the vocabulary lacks, and those characters."""
    unknown = tokenizer.unknown_characters(text)
    return text.translate(dict.fromkeys(map(ord, unknown))) if unknown else text, unknown


def encode_text(text: str, encoding: str = "utf-8") -> bytes:
    """The bytes of `text` in a Unicode encoding.

    Raises RequestError for a lone surrogate, which Python strings can hold.
    """
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        if 0xDC80 <= ord(text[error.start]) <= 0xDCFF:  # a byte of the command line, decoded with surrogateescape
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


def token_sizes(tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """(V, 2) bytes and characters of each token; special ones stand for no text."""
    pieces = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    first_bytes = [piece.translate(None, _CONTINUATION_BYTES) for piece in pieces]
    return np.array([list(map(len, pieces)), list(map(len, first_bytes))], dtype=np.int64).T


def validate_ids(ids: Sequence[int] | npt.NDArray[Any], vocab_size: int) -> npt.NDArray[Any]:
    """`ids` as an integer array (n,). Raises UserError with the first id outside the vocabulary."""
    array = np.asarray(ids) if len(ids) else np.zeros(0, dtype=np.uint32)
    if array.size and (array.min() < 0 or array.max() >= vocab_size):
        first = int(np.argmax((array < 0) | (array >= vocab_size)))
        raise UserError(
            f"token id {array[first]} at position {first} is outside the vocabulary of {vocab_size:,} ids",
            hint=f"ids go from 0 to {vocab_size - 1}; these may belong to another tokenizer",
        )
    return array
