"""Somebody else's tokenizer.json, run by Hugging Face's `tokenizers`: its ids are exact whatever the file asks for.

A run keeps the file unchanged inside its own tokenizer.json, with the settings beside it in a model's directory: the
tokens that begin, end and pad, and the chat template. Single tokens have bytes where the decoder treats each by itself;
long documents are encoded in parts where the file is a byte-level BPE with one of our patterns. Otherwise a
RequestError names what is missing.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer as HFTokenizer

from gpt_cli.errors import RequestError
from gpt_cli.tokenizer.base import Ids, Tokenizer, TokenPrefixes, encode_text, validate_ids
from gpt_cli.tokenizer.bpe import BPETokenizer
from gpt_cli.tokenizer.bpe_vocabulary import read_vocabulary, unicode_to_bytes

FORMAT = "gpt-hf-1"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NO_PREFIX = {"add_prefix_space": False, "prepend_scheme": "never", "prepend": ""}  # no space before a text
_Variant = Literal["file", "spans", "part"]
"""A variant of the file: as it is; without the post-processor, which may leave white space out of the offsets of
tokens; or without the space before a text."""


@dataclass(frozen=True)
class ForeignTokenizer(Tokenizer):
    """A tokenizer.json of Hugging Face's library, and the settings beside it in a model's directory.

    file           the text of the tokenizer.json
    size           ids, those without a token included: a model may have more rows than its tokenizer has tokens
    ends           the tokens at which sampling stops; the first one also separates documents
    named          the texts of special tokens by their name in Transformers: bos_token, eos_token, pad_token, ...
    chat_template  the source of the Jinja template, if there is one
    split_special  text that reads like a special token is ordinary text in prompts, too

    Raises ValueError for a file that the library cannot read, that has more ids than `size`, or that draws its ids.
    """

    file: str = field(repr=False)
    size: int
    ends: tuple[int, ...] = ()
    named: tuple[tuple[str, str], ...] = ()
    chat_template: str | None = None
    split_special: bool = False

    kind: ClassVar[str] = "hf"

    def __post_init__(self) -> None:
        table = json.loads(self.file)
        object.__setattr__(self, "file", json.dumps(table, ensure_ascii=False))  # equal files have equal texts
        if table["model"].get("dropout"):
            raise ValueError("its BPE dropout gives a text other ids each time")
        tokens = self._library().get_vocab(with_added_tokens=True)
        if not tokens or max(tokens.values()) >= self.size:
            raise ValueError(f"it has the id {max(tokens.values(), default=-1)}, and vocab_size is {self.size}")
        if bad := [token for token in self.ends if not 0 <= token < self.size]:
            raise ValueError(f"the end token {bad[0]} is outside the vocabulary of {self.size} ids")

    @property
    def vocab_size(self) -> int:
        return self.size

    @property
    def eot_id(self) -> int | None:
        return self.ends[0] if self.ends else None

    @property
    def end_ids(self) -> frozenset[int]:
        return frozenset(self.ends)

    @property
    def begin_ids(self) -> tuple[int, ...]:
        return self._surrounding[0]

    @property
    def suffix_ids(self) -> tuple[int, ...]:
        """The ids that stand after each text."""
        return self._surrounding[1]

    def named_id(self, name: str) -> int | None:
        """The id of a token by its name in Transformers, such as pad_token; None without one."""
        text = dict(self.named).get(name)
        return None if text is None else self._library().token_to_id(text)

    def encode(self, text: str, *, allow_special: bool = False) -> Ids:
        if self.core is not None and not allow_special:
            return self.core.encode(text)
        return self._encode(text, split=not allow_special)

    def encode_prompt(self, text: str, *, allow_special: bool = False) -> Ids:
        return self._encode(text, split=self.split_special and not allow_special, with_surrounding=True)

    def encode_part(self, text: str) -> Ids:
        return self._encode(text, "part", split=True)

    def encode_chat(self, rendered: str) -> Ids:
        """The ids of the text that the chat template made, which has its own begin and end tokens."""
        return self._encode(rendered, split=self.split_special)

    def encode_spans(self, text: str, *, allow_special: bool = False) -> tuple[Ids, npt.NDArray[np.int64]]:
        encode_text(text)
        library = self._library("spans", split=self.split_special and not allow_special)
        with _library_errors("the tokenizer of this model cannot encode the text"):
            encoding = library.encode(text, add_special_tokens=False)
        begin, end = self._surrounding
        sizes = np.array([0, *(len(character.encode()) for character in text)], dtype=np.int64).cumsum()
        starts = sizes[[start for start, _ in encoding.offsets]]
        starts = np.maximum.accumulate(np.concatenate([np.zeros(len(begin) + 1, np.int64), starts[1:]]))
        ids = np.array([*begin, *encoding.ids, *end], dtype=np.uint32)
        return ids, np.concatenate([starts, np.full(len(ids) + 1 - len(starts), sizes[-1])])[: len(ids) + 1]

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        return self._library().decode(validate_ids(ids, self.size).tolist(), skip_special_tokens=False)

    def decode_shown(self, ids: Sequence[int]) -> str:
        """The text of `ids` without special tokens, as Transformers' pipelines show it."""
        return self._library().decode(validate_ids(ids, self.size).tolist())

    def token_bytes(self, token: int) -> bytes:
        validate_ids([token], self.size)
        if self._pieces is None:
            problem = (
                f"the decoder of this tokenizer ({self._decoder['type']}) joins tokens, so single ones have no bytes"
            )
            raise RequestError(f"{problem}: training, regular expressions and bits per byte need them")
        return self._pieces[token]

    def streamed_bytes(self, token: int) -> bytes:
        return self.token_bytes(token)  # none for a special one: nobody reads those

    @property
    def is_incremental(self) -> bool:
        return bool(self._decoder["type"] == "ByteLevel")

    @cached_property
    def prefixes(self) -> TokenPrefixes | None:
        return TokenPrefixes(self._pieces) if self.is_incremental and self._pieces is not None else None

    def to_json(self) -> str:
        return f'{self.settings_json[:-1]}, "tokenizer": {self.file}}}'

    @property
    def settings_json(self) -> str:
        """The contents of the tokenizer's file but for the tokenizer.json of the model."""
        settings = {name: getattr(self, name) for name in ("size", "ends", "named", "chat_template", "split_special")}
        return json.dumps({"format": FORMAT, **settings, "named": dict(self.named)}, ensure_ascii=False)

    @property
    def is_lossless(self) -> bool:
        """True if every text can be decoded from its ids: no normalizer, no white space that added tokens take away."""
        stripping = any(token["lstrip"] or token["rstrip"] for token in self.added_tokens)
        return self.bpe is not None and not stripping

    @property
    def core(self) -> BPETokenizer | None:
        """The same ids for text without special tokens, in parts and fast; None if the file is no BPE of ours."""
        return self.bpe if all(token["special"] for token in self.added_tokens) else None

    @cached_property
    def bpe(self) -> BPETokenizer | None:
        """The file as a BPE of ours, apart from its added tokens and post-processor; None if it is none."""
        try:
            return BPETokenizer(read_vocabulary(self._table, strict=False))
        except ValueError:
            return None

    @property
    def added_tokens(self) -> list[dict[str, Any]]:
        """The added tokens of the file: id, content and flags of each."""
        tokens: list[dict[str, Any]] = self._table["added_tokens"]
        return tokens

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of special tokens, which are not shown."""
        return frozenset(token["id"] for token in self.added_tokens if token["special"])

    @cached_property
    def _table(self) -> dict[str, Any]:
        table: dict[str, Any] = {"added_tokens": [], "decoder": None, **json.loads(self.file)}
        return table

    @property
    def _decoder(self) -> Mapping[str, Any]:
        return self._table["decoder"] or {"type": "none"}

    @cached_property
    def _libraries(self) -> dict[tuple[_Variant, bool], HFTokenizer]:
        return {}

    def _library(self, variant: _Variant = "file", *, split: bool = False) -> HFTokenizer:
        """The library's tokenizer of a variant of the file; `split`: the text of special tokens is ordinary text."""
        if (variant, split) not in self._libraries:
            file = self.file
            if variant == "spans":
                file = json.dumps({**self._table, "post_processor": None})
            elif variant == "part":
                file = json.dumps(json.loads(file, object_hook=_without_prefix))
            library = open_tokenizer(file)
            library.encode_special_tokens = split
            self._libraries[variant, split] = library
        return self._libraries[variant, split]

    def _encode(self, text: str, variant: _Variant = "file", *, split: bool, with_surrounding: bool = False) -> Ids:
        encode_text(text)
        library = self._library(variant, split=split)
        with _library_errors("the tokenizer of this model cannot encode the text"):
            (encoding,) = library.encode_batch_fast([text], add_special_tokens=with_surrounding)
        return np.array(encoding.ids, dtype=np.uint32)

    @cached_property
    def _surrounding(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids that the post-processor puts before and after a text."""
        alone = self._encode("a", split=False).tolist()
        whole = self._encode("a", split=False, with_surrounding=True).tolist()
        if not alone:  # a vocabulary without this letter
            return tuple(whole), ()
        before = next(k for k in range(len(whole) + 1) if whole[k : k + len(alone)] == alone)
        return tuple(whole[:before]), tuple(whole[before + len(alone) :])

    @cached_property
    def _pieces(self) -> tuple[bytes, ...] | None:
        """The bytes of each token inside a text; None if they depend on its neighbours."""
        decode = _token_decoder(self._decoder)
        if decode is None:
            return None
        spellings = ((i, self._library().id_to_token(i)) for i in range(self.size))
        return tuple(b"" if s is None or i in self.special_ids else decode(s) for i, s in spellings)


def parse_foreign(table: Mapping[str, Any]) -> ForeignTokenizer:
    """The tokenizer of a parsed file of FORMAT. Raises ValueError for a damaged one."""
    match table:
        case {
            "format": "gpt-hf-1",
            "size": int(size),
            "ends": list(ends),
            "named": dict(named),
            "chat_template": None | str() as template,
            "split_special": bool(split_special),
            "tokenizer": {"model": dict()} as file,
            **rest,
        } if not rest and all(type(token) is int for token in ends):
            if all(isinstance(text, str) for text in named.values()):
                text = json.dumps(file, ensure_ascii=False)
                return ForeignTokenizer(text, size, tuple(ends), tuple(named.items()), template, split_special)
    raise ValueError(f"its fields are not those of the format {FORMAT!r}")


def open_tokenizer(file: str) -> HFTokenizer:
    """The library's tokenizer, without the padding and truncation of batches. Raises ValueError."""
    with _library_errors("the tokenizers library cannot read it", ValueError):
        tokenizer = HFTokenizer.from_str(file)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


@contextmanager
def _library_errors(problem: str, kind: type[Exception] = RequestError) -> Iterator[None]:
    """Raise an error of `kind` for whatever the library raises: plain exceptions, and panics, which are none."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise kind(f"{problem}: {' '.join(str(error).split()):.200}") from None


def _without_prefix(part: dict[str, Any]) -> dict[str, Any]:
    """An object of a parsed file without the space before a text. A vocabulary has ids, and no type."""
    is_step = isinstance(part.get("type"), str)
    return {key: _NO_PREFIX.get(key, value) for key, value in part.items()} if is_step else part


def _token_decoder(decoder: Mapping[str, Any]) -> Callable[[str], bytes] | None:
    """From the spelling of a token inside a text to its bytes; None if its neighbours matter, too."""
    steps = decoder.get("decoders", [decoder])  # of a sequence
    replaced: list[tuple[str, str]] = []
    for step in steps:
        match step:
            case {"type": "ByteLevel"} if not replaced:
                return _byte_level
            case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)}:
                replaced.append((pattern, content))
            case {"type": "Metaspace", "replacement": str(space)}:
                replaced.append((space, " "))
            case {"type": "Fuse" | "ByteFallback" | "Strip"}:
                pass  # Strip takes away what stands at the start of a whole text
            case _:
                return None
    has_bytes = any(step["type"] == "ByteFallback" for step in steps)

    def decode(spelling: str) -> bytes:
        if has_bytes and (byte := _BYTE.fullmatch(spelling)):
            return bytes([int(byte[1], 16)])
        for pattern, content in replaced:
            spelling = spelling.replace(pattern, content)
        return spelling.encode()

    return decode


def _byte_level(spelling: str) -> bytes:
    """As the library decodes: what is not spelled in bytes, such as an added token with a space, is text."""
    try:
        return unicode_to_bytes(spelling)
    except ValueError:
        return spelling.encode()
