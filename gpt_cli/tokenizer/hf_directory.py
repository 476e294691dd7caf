"""The tokenizer of a model's directory of Transformers: tokenizer.json, and the files beside it.

    tokenizer_config.json    names of special tokens, flags of added tokens, the class, the chat template
    special_tokens_map.json  the names, in older directories
    chat_template.jinja      the chat template, in newer ones
    generation_config.json   the tokens at which sampling stops; without it those of config.json

The tokenizer.json that is kept is the one that `AutoTokenizer` of Transformers 5 has in memory: with special tokens
that only a name declares, and with the parts that some classes set themselves, whatever the file has there.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from gpt_cli.files import read_file
from gpt_cli.tokenizer.bpe_vocabulary import END_OF_TEXT, byte_level, isolated, parse_object
from gpt_cli.tokenizer.foreign import ForeignTokenizer, open_tokenizer

CHAT_TEMPLATE, CONFIG = "chat_template.jinja", "tokenizer_config.json"
FILES = (CONFIG, "special_tokens_map.json", CHAT_TEMPLATE, "generation_config.json")
"""The files that are read beside tokenizer.json and config.json."""
_LIMIT = 16 << 20  # bytes of each
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")

_CLASS_OF_MODEL = {"gpt2": "GPT2Tokenizer", "qwen3": "Qwen2Tokenizer"}  # where tokenizer_config.json names none
_CLASS_NAMES = {  # the special tokens that a class has where no other is named
    "GPT2Tokenizer": {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT, "unk_token": END_OF_TEXT},
    "Qwen2Tokenizer": {"eos_token": END_OF_TEXT, "unk_token": END_OF_TEXT, "pad_token": END_OF_TEXT},
    "LlamaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
}
_QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def read_hf_directory(directory: Path, file: str, size: int | None = None) -> ForeignTokenizer:
    """The tokenizer of `directory`, whose tokenizer.json has the text `file`, for a model of `size` rows.

    `size` None: as many as there are ids. Raises ValueError for files that are damaged or do not fit together.
    """
    table = parse_object(file, "tokenizer.json")
    table.setdefault("added_tokens", [])
    if not isinstance(table.get("model"), dict):
        raise ValueError("it has no model")
    settings = _read(directory / CONFIG)
    if "added_tokens_decoder" not in settings:
        settings = _read(directory / "special_tokens_map.json") | settings
    model_type = str(_read(directory / "config.json").get("model_type"))
    kind = str(settings.get("tokenizer_class") or _CLASS_OF_MODEL.get(model_type)).removesuffix("Fast")
    special: dict[str, Any] = dict(_CLASS_NAMES[kind]) if _rebuild(table, kind, settings) else {}
    if isinstance(table.get("padding"), dict) and (padding := table["padding"].get("pad_token")):
        special["pad_token"] = padding
    chosen = {key: value for key, value in settings.items() if key.endswith("_token") and value}
    special |= {key: value for key, value in chosen.items() if _content(value) is not None}
    ids = _declare_tokens(table, settings, special)
    size = max(ids.values(), default=-1) + 1 if size is None else size
    named = {name: text for name, value in special.items() if (text := _content(value)) is not None}
    ends = _ends(directory, ids.get(named.get("eos_token", "")))
    return ForeignTokenizer(
        file=json.dumps(table),
        size=size,
        ends=tuple(token for token in ends if 0 <= token < size),
        named=tuple(named.items()),
        chat_template=chat_template(directory),
        split_special=settings.get("split_special_tokens") is True,
    )


def _rebuild(table: dict[str, Any], kind: str, settings: Mapping[str, Any]) -> bool:
    """Set the parts that the class `kind` sets itself. Return whether it does."""
    model, space, is_llama = table["model"], settings.get("add_prefix_space"), kind == "LlamaTokenizer"
    steps = json.dumps([table.get("pre_tokenizer"), table.get("decoder")])
    if kind not in _CLASS_NAMES or model.get("type", "BPE") != "BPE" or (is_llama and '"ByteLevel"' in steps):
        return False
    normalizer: dict[str, Any] | None = None
    if is_llama:
        prepend = "never" if space is False else "always" if settings.get("legacy") is True else "first"
        split = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": prepend, "split": False}
        replace = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
        strip = [] if space is False else [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
        decoder = {"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]}
    else:
        split, decoder = byte_level(add_prefix_space=space is True), byte_level(add_prefix_space=True)
        if kind == "Qwen2Tokenizer":
            level, normalizer = split | {"use_regex": False}, {"type": "NFC"}
            split = {"type": "Sequence", "pretokenizers": [isolated(_QWEN2_PATTERN), level]}
    table |= {"pre_tokenizer": split, "decoder": decoder, "normalizer": normalizer}
    flags = {"fuse_unk": is_llama, "byte_fallback": is_llama}
    model |= {**flags, "dropout": None, "unk_token": None, "ignore_merges": False}
    return True


def _declare_tokens(table: dict[str, Any], settings: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, int]:
    """Bring `added_tokens` up to date: flags in tokenizer_config.json, and special tokens that only a name declares.

    Return the ids of all tokens, in which the library leaves no gaps.
    """
    library = open_tokenizer(json.dumps(table))
    added = {token.content: _flags(token) for token in library.get_added_tokens_decoder().values()}
    for value, is_special in _declarations(settings, named):
        if text := _content(value):
            old = added.get(text, {})
            flags = old if old and is_special else value if isinstance(value, dict) else {}
            added[text] = {flag: flags.get(flag) is True for flag in _FLAGS}
            # What the file calls special stays so: the library does not forget it.
            added[text]["special"] |= is_special or old.get("special") is True
    library.add_tokens([AddedToken(text, **flags) for text, flags in added.items()])
    tokens = sorted(library.get_added_tokens_decoder().items())
    table["added_tokens"] = [{"id": i, "content": token.content, **_flags(token)} for i, token in tokens]
    return library.get_vocab(with_added_tokens=True)


def _flags(token: AddedToken) -> dict[str, bool]:
    return {flag: getattr(token, flag) for flag in _FLAGS}


def _declarations(settings: Mapping[str, Any], named: Mapping[str, Any]) -> Iterator[tuple[Any, bool]]:
    """Yield the tokens of tokenizer_config.json, as text or with flags, and whether their place makes them special."""
    decoder = settings.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict) or not all(map(str.isdecimal, decoder)):
        raise ValueError("added_tokens_decoder is no table by id")
    yield from ((value, False) for _, value in sorted(decoder.items(), key=lambda item: int(item[0])))
    yield from ((value, True) for value in named.values())
    for key in ("additional_special_tokens", "extra_special_tokens"):
        extra = settings.get(key) or []
        if not isinstance(extra, list | dict):
            raise ValueError(f"{key} is {extra!r:.80}")
        yield from ((value, True) for value in (extra.values() if isinstance(extra, dict) else extra))


def _ends(directory: Path, own: int | None) -> list[int]:
    """The tokens at which `generate` stops, the tokenizer's own end first."""
    generation = directory / "generation_config.json"
    value = _read(generation if generation.is_file() else directory / "config.json").get("eos_token_id", own)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(token) is int for token in ids):
        raise ValueError(f"eos_token_id is {value!r:.80}")
    return list(dict.fromkeys(sorted(ids, key=lambda token: token != own)))


def chat_template(directory: Path) -> str | None:
    """The source of the default chat template of a model; None without one. Raises ValueError for a damaged file."""
    if (directory / CHAT_TEMPLATE).is_file():
        return read_file(directory / CHAT_TEMPLATE, _LIMIT).decode()
    source = _read(directory / CONFIG).get("chat_template")
    if isinstance(source, list):  # of several, by name
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = named.get("default")
    return source if isinstance(source, str) else None


def _content(value: Any) -> str | None:
    """The text of a special token, which is spelled alone or with its flags."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _read(path: Path) -> dict[str, Any]:
    """The object in a JSON file; {} where there is no file. Raises ValueError for anything else."""
    return parse_object(read_file(path, _LIMIT).decode(), path.name) if path.is_file() else {}
