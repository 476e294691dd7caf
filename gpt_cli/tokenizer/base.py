"""The `Tokenizer` protocol, and what tokenizers of every kind share."""

import hashlib
from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpt_cli.errors import RequestError, UserError
from gpt_cli.files import replace_file
from gpt_cli.terminal.escape import escape_control_chars

Ids = npt.NDArray[np.uint32]

_MAX_LISTED = 10  # unknown characters that an error lists
_CONTINUATION_BYTES = bytes(range(0x80, 0xC0))  # of a character in UTF-8: all but its first byte


class TokenPrefixes:
    """Prefix searches, by bisection, in the bytes of the tokens 0 ... V - 1: `pieces`, empty for one without text."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces
        self._ids = sorted((token for token, piece in enumerate(pieces) if piece), key=pieces.__getitem__)
        self._sorted = [pieces[token] for token in self._ids]
        self._longest = max(map(len, self._sorted), default=0)

    def starting_with(self, data: bytes) -> list[int]:
        """The tokens of which `data` is a prefix."""
        begin = bisect_left(self._sorted, data)
        end = bisect_right(self._sorted, data, begin, key=lambda piece: piece[: len(data)])
        return self._ids[begin:end]

    def inside(self, data: bytes) -> list[int]:
        """The tokens that are proper prefixes of `data`."""
        starts = (data[:length] for length in range(1, min(len(data), self._longest + 1)))
        ranges = ((bisect_left(self._sorted, start), bisect_right(self._sorted, start)) for start in starts)
        return [token for begin, end in ranges for token in self._ids[begin:end]]

    def extensible_end(self, tokens: Sequence[int]) -> int:
        """The largest number of tokens at the end of `tokens`, all with text, whose bytes begin one longer token."""
        data, count = b"", 0
        for number, token in enumerate(reversed(tokens), start=1):
            data = self.pieces[token] + data
            if not self.pieces[token] or len(data) >= self._longest:
                break
            last = self.starting_with(data)[-1:]
            if last and len(self.pieces[last[0]]) > len(data):
                count = number
        return count


class Tokenizer(Protocol):
    """Encode text as ids, and decode them. Immutable; two are equal if and only if their files are.

    Lossless: `decode(encode(text)) == text` for every text that encodes, except that with an `unknown` id every
    character without an id of its own comes back as U+FFFD.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields of the dataclass, without its cached properties."""
        return type(self), tuple(getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]

    @property
    @abstractmethod
    def kind(self) -> str:
        """`char`, `byte`, `bpe` or `hf`."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Ids are 0 ... vocab_size - 1."""

    @property
    def eot_id(self) -> int | None:
        """The id that separates documents; None if the vocabulary has none."""
        return None

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
    def unk_id(self) -> int | None:
        """The id of all unknown characters; None if the vocabulary has none."""
        return None

    @abstractmethod
    def encode(self, text: str, *, allow_special: bool = False) -> Ids:
        """The ids of `text`: (n,) uint32. The text of a special token is that token only if `allow_special`.

        Raises UnknownCharacters, and RequestError for a lone surrogate.
        """

    def encode_utf8(self, data: bytes, *, allow_special: bool = False) -> Ids:
        """`encode` of UTF-8."""
        return self.encode(data.decode(), allow_special=allow_special)

    def encode_prompt(self, text: str, *, allow_special: bool = False) -> Ids:
        """The ids of `text` as a prompt: with the tokens that stand around a text. Raises as `encode` does."""
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
        """The UTF-8 bytes of one token, empty for a special one. Raises UserError as `decode` does."""

    @property
    def is_incremental(self) -> bool:
        """True if a generated text is the concatenation of the `streamed_bytes` of its tokens."""
        return True

    def streamed_bytes(self, token: int) -> bytes:
        """The bytes of one token of a generated text. Raises UserError as `decode` does."""
        return self.token_bytes(token) or self.decode([token]).encode()

    def unknown_characters(self, text: str) -> list[str]:
        """The distinct characters of `text` that have no id of their own, in order of appearance."""
        return []

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
    """A text has `characters` that the vocabulary lacks, distinct, in order of appearance."""

    def __init__(self, places: Mapping[str, int]) -> None:
        """`places`: those characters, and the index of the first of each."""
        self.characters = tuple(places)
        listed = [
            f"'{escape_control_chars(character)}' (U+{ord(character):04X}, first at character {index + 1:,})"
            for character, index in list(places.items())[:_MAX_LISTED]
        ]
        if (unlisted := len(places) - _MAX_LISTED) > 0:
            listed.append(f"and {unlisted} more")
        count = "a character" if len(places) == 1 else f"{len(places)} characters"
        message = f"the text has {count} that the vocabulary lacks: {', '.join(listed)}"
        super().__init__(message, kind="unknown characters")


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
        code, place = ord(text[error.start]), error.start + 1
    if 0xDC80 <= code <= 0xDCFF:  # a byte of the command line, decoded with surrogateescape
        raise RequestError(f"the text is not UTF-8: its byte 0x{code - 0xDC00:02x} as character {place}")
    raise RequestError(
        f"the text has half a surrogate pair (U+{code:04X}) as character {place}, which is not Unicode text"
    )


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
        raise UserError(f"token id {array[first]} at position {first} is outside the vocabulary, 0 to {vocab_size - 1}")
    return array
