"""The tokens and merges of a byte-level BPE, as a value and as Hugging Face's tokenizer.json.

A file is read strictly: what changes the ids of a text, or loses some of it, is refused. It is written canonically.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from gpt_cli.literals import Pattern
from gpt_cli.tokenizer.pretokenizer import RULES

END_OF_TEXT = "<|endoftext|>"

_Kind = TypeVar("_Kind")
_PATTERNS = {rule.published: pattern for pattern, rule in RULES.items()}
_MUST_BE_OFF = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")


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

    @property
    def spellings(self) -> list[str]:
        """The tokens as the file spells them."""
        return [t.decode() if i in self.special else bytes_to_unicode(t) for i, t in enumerate(self.tokens)]


_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_SUBSTITUTES = iter(range(0x100, 0x200))
BYTE_ENCODER = tuple(chr(byte if byte in _PRINTABLE else next(_SUBSTITUTES)) for byte in range(256))
"""GPT-2's character for each byte: the byte's if Latin-1 can print it, else the next from U+0100 on."""
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


def read_vocabulary(file: Mapping[str, Any], *, strict: bool = True) -> Vocabulary:
    """The vocabulary of a parsed tokenizer.json whose added tokens are special ones.

    Raises ValueError for a file that is damaged, or that is no byte-level BPE with a known split pattern: one that
    changes the text (a normalizer, a prefix space) or, where `strict`, has a post-processor, or added tokens that are
    ordinary ones or take white space with them.
    """
    model = _field(file, "model", dict)
    if model.get("type", "BPE") != "BPE":
        raise ValueError(f"its model is {model['type']!r}, not a byte-level BPE")
    if file.get("normalizer") is not None:
        raise ValueError("its normalizer changes the text, which then cannot be decoded as it was")
    for setting in _MUST_BE_OFF:
        if model.get(setting):
            raise ValueError(f"it needs {setting} ({model[setting]!r}), which is not supported")
    processor = file.get("post_processor")
    if strict and processor is not None and not (isinstance(processor, dict) and processor.get("type") == "ByteLevel"):
        raise ValueError("its post-processor puts tokens around a text")
    added = _read_added_tokens(file, strict)
    ids = {spelling: _id(i, spelling) for spelling, i in _field(model, "vocab", dict).items()}
    for content, i in added.items():
        if ids.setdefault(content, i) != i:
            raise ValueError(f"the added token {content!r} has two ids, {i} and {ids[content]}")
    spellings = sorted(ids, key=ids.__getitem__)
    if [ids[spelling] for spelling in spellings] != list(range(len(ids))):
        raise ValueError(f"the ids of its {len(ids)} tokens are not 0 to {len(ids) - 1}")
    return Vocabulary(
        tokens=tuple(s.encode() if s in added else unicode_to_bytes(s) for s in spellings),
        merges=tuple(_read_merge(merge, ids) for merge in _field(model, "merges", list)),
        special=frozenset(added.values()),
        pattern=_read_pattern(_field(file, "pre_tokenizer", dict)),
        ignore_merges=model.get("ignore_merges") is True,
    )


def read_gpt2_files(encoder: Mapping[str, Any], merges: str) -> Vocabulary:
    """The vocabulary of OpenAI's encoder.json and vocab.bpe, or of Hugging Face's vocab.json and merges.txt, the same.

    Raises ValueError if they are damaged or do not belong together.
    """
    header, *lines = merges.removesuffix("\n").split("\n")
    if not header.startswith("#version"):
        raise ValueError("its merges do not begin with a line '#version'")
    end = [{"content": END_OF_TEXT, "id": encoder[END_OF_TEXT]}] if END_OF_TEXT in encoder else []
    model = {"vocab": encoder, "merges": lines}
    return read_vocabulary({"added_tokens": end, "pre_tokenizer": byte_level(), "model": model})


def _read_added_tokens(file: Mapping[str, Any], strict: bool) -> dict[str, int]:
    added: dict[str, int] = {}
    for token in _field({"added_tokens": [], **file}, "added_tokens", list):
        content = _field(token, "content", str)
        flags = any(map(token.get, ("single_word", "lstrip", "rstrip")))
        if strict and (flags or token.get("special", True) is not True):
            raise ValueError(f"its added token {content!r:.80} is an ordinary one, or has flags")
        if content in added:
            raise ValueError(f"the token {content!r} is added twice")
        added[content] = _id(token.get("id"), content)
    return added


def _read_merge(merge: Any, ids: Mapping[str, int]) -> tuple[int, int, int]:
    """A merge is written `"left right"`, in newer files `["left", "right"]`."""
    match merge.split(" ") if isinstance(merge, str) else merge:
        case [str(left), str(right)] if left in ids and right in ids and left + right in ids:
            return ids[left], ids[right], ids[left + right]
    raise ValueError(f"the merge {merge!r} is not of two tokens into a third")


def _read_pattern(pre_tokenizer: Mapping[str, Any]) -> Pattern:
    match pre_tokenizer:
        case {"add_prefix_space": True}:
            raise ValueError("it puts a space before every text, which then cannot be decoded as it was")
        case {"type": "ByteLevel", "add_prefix_space": False} if pre_tokenizer.get("use_regex", True) is True:
            return "gpt2"
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(regex)}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        } if regex in _PATTERNS:
            return _PATTERNS[regex]
    raise ValueError("it does not split text with GPT-2's, GPT-4's or GPT-4o's pattern, which are the ones supported")


def parse_object(text: str, name: str = "it", *, distinct: bool = False) -> dict[str, Any]:
    """The object of a JSON text. Raises ValueError for anything else and, if `distinct`, for a key that is repeated."""
    try:
        table = json.loads(text, object_pairs_hook=_distinct if distinct else None)
    except RecursionError:
        raise ValueError(f"{name} is nested too deep") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{name} is not JSON: {error}") from None
    if not isinstance(table, dict):
        raise ValueError(f"{name} is not a JSON object")
    return table


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key is there twice")
    return table


def _field(table: Any, name: str, kind: type[_Kind]) -> _Kind:
    value = table.get(name) if isinstance(table, dict) else None
    if not isinstance(value, kind):
        raise ValueError(f"{name!r} is missing, or no {kind.__name__}")
    return value


def _id(value: Any, token: str) -> int:
    if type(value) is not int:
        raise ValueError(f"the token {token!r} has no id, but {value!r}")
    return value


def write_vocabulary(vocabulary: Vocabulary) -> str:
    """The text of the tokenizer.json: the same on every machine and with every version of the library."""
    spellings = vocabulary.spellings
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": i, "content": spellings[i], **flags} for i in sorted(vocabulary.special)]
    split = byte_level()
    if vocabulary.pattern != "gpt2":
        steps = [isolated(RULES[vocabulary.pattern].published), byte_level(use_regex=False)]
        split = {"type": "Sequence", "pretokenizers": steps}
    model = {
        "type": "BPE",
        **dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")),
        **{"fuse_unk": False, "byte_fallback": False, "ignore_merges": vocabulary.ignore_merges},
        "vocab": {spelling: i for i, spelling in enumerate(spellings)},
        "merges": [f"{spellings[left]} {spellings[right]}" for left, right, _ in vocabulary.merges],
    }
    file: dict[str, Any] = {"version": "1.0", "truncation": None, "padding": None}
    file |= {"added_tokens": added, "normalizer": None}
    file |= {"pre_tokenizer": split, "post_processor": None, "decoder": byte_level(), "model": model}
    return json.dumps(file, ensure_ascii=False, indent=2)


def byte_level(*, add_prefix_space: bool = False, use_regex: bool = True) -> dict[str, Any]:
    """A pre-tokenizer or decoder of a tokenizer.json: bytes as printable characters."""
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True, "use_regex": use_regex}


def isolated(regex: str) -> dict[str, Any]:
    """A pre-tokenizer of a tokenizer.json: each match of `regex` alone."""
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
