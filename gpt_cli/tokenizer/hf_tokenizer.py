"""Hugging Face's tokenizer.json of a byte-level BPE: read strictly, written canonically."""

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from gpt_cli.literals import Pattern
from gpt_cli.tokenizer.bpe_vocabulary import END_OF_TEXT, Vocabulary, bytes_to_unicode, unicode_to_bytes
from gpt_cli.tokenizer.pretokenizer import RULES

_Kind = TypeVar("_Kind")
_KINDS: dict[type, str] = {dict: "an object", list: "an array", str: "a string"}
_PATTERNS = {rule.published: pattern for pattern, rule in RULES.items()}

# Settings that change the ids of a text or lose some of it; they must be off.
_FLAGS = ("single_word", "lstrip", "rstrip")
_MUST_BE_OFF = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")


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
    if strict:
        _refuse_unknown_parts(file)
    added = _read_added_tokens(file)
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
    return read_vocabulary({"added_tokens": end, "pre_tokenizer": _pre_tokenizer("gpt2"), "model": model})


def _refuse_unknown_parts(file: Mapping[str, Any]) -> None:
    """Raise ValueError for what a `Vocabulary` does not have: a post-processor, or flags of added tokens."""
    processor = file.get("post_processor")
    if processor is not None and not (isinstance(processor, dict) and processor.get("type") == "ByteLevel"):
        raise ValueError("its post-processor puts tokens around a text")
    for token in _field({"added_tokens": [], **file}, "added_tokens", list):
        flags = token if isinstance(token, dict) else {}
        if flags.get("special", True) is not True or any(flags.get(flag) for flag in _FLAGS):
            raise ValueError(f"its added token {flags.get('content')!r:.80} is an ordinary one, or has flags")


def _read_added_tokens(file: Mapping[str, Any]) -> dict[str, int]:
    added = {}
    for token in _field({"added_tokens": [], **file}, "added_tokens", list):
        content = _field(token, "content", str)
        if content in added:
            raise ValueError(f"the token {content!r} is added twice")
        added[content] = _id(token.get("id"), content)
    return added


def _read_merge(merge: Any, ids: Mapping[str, int]) -> tuple[int, int, int]:
    """A merge is written `"left right"`, in newer files `["left", "right"]`."""
    pair = merge.split(" ") if isinstance(merge, str) else merge
    match pair:
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


def _field(table: Any, name: str, kind: type[_Kind]) -> _Kind:
    value = table.get(name) if isinstance(table, dict) else None
    if not isinstance(value, kind):
        raise ValueError(f"{name!r} is missing, or not {_KINDS[kind]}")
    return value


def _id(value: Any, token: str) -> int:
    if type(value) is not int:
        raise ValueError(f"the token {token!r} has no id, but {value!r}")
    return value


def write_vocabulary(vocabulary: Vocabulary) -> str:
    """The text of the tokenizer.json: the same on every machine and with every version of the library."""
    spellings = [
        token.decode() if i in vocabulary.special else bytes_to_unicode(token)
        for i, token in enumerate(vocabulary.tokens)
    ]
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [_added_token(i, spellings[i]) for i in sorted(vocabulary.special)],
            "normalizer": None,
            "pre_tokenizer": _pre_tokenizer(vocabulary.pattern),
            "post_processor": None,
            "decoder": _byte_level(use_regex=True),
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": vocabulary.ignore_merges,
                "vocab": {spelling: i for i, spelling in enumerate(spellings)},
                "merges": [f"{spellings[left]} {spellings[right]}" for left, right, _ in vocabulary.merges],
            },
        },
        ensure_ascii=False,
        indent=2,
    )


def _added_token(token: int, content: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": token, "content": content, **flags}


def _pre_tokenizer(pattern: Pattern) -> dict[str, Any]:
    if pattern == "gpt2":
        return _byte_level(use_regex=True)
    split = {"type": "Split", "pattern": {"Regex": RULES[pattern].published}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, _byte_level(use_regex=False)]}


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}
