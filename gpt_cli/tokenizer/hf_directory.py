"""The tokenizer of a model's directory of Transformers: tokenizer.json, and what the files beside it say about it.

    tokenizer_config.json    names of special tokens, begin and end tokens that are put around a text, chat template
    special_tokens_map.json  the names, in older directories
    chat_template.jinja      the chat template, in newer ones
    generation_config.json   the tokens at which sampling stops; without it those of config.json

What Transformers makes of them when it loads the directory is written into the tokenizer.json that is kept: special
tokens that only a name declares, and begin and end tokens by `add_bos_token` and `add_eos_token`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as HFTokenizer
from tokenizers.processors import TemplateProcessing

from gpt_cli.files import read_file
from gpt_cli.tokenizer.foreign import ForeignTokenizer

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
CHAT_TEMPLATE, CONFIG = "chat_template.jinja", "tokenizer_config.json"
FILES = (CONFIG, "special_tokens_map.json", CHAT_TEMPLATE, "generation_config.json")
"""The files that are read beside tokenizer.json and config.json."""
_LIMIT = 16 << 20  # bytes of each


def read_hf_directory(directory: Path, file: str, size: int | None = None) -> ForeignTokenizer:
    """The tokenizer of `directory`, whose tokenizer.json has the text `file`, for a model of `size` rows.

    `size` None: as many as there are ids. Raises ValueError for files that are damaged or do not fit together.
    """
    settings = _read(directory / "special_tokens_map.json") | _read(directory / CONFIG)
    try:
        tokenizer = HFTokenizer.from_str(file)
    except Exception as error:  # the library raises nothing more specific
        raise ValueError(f"the tokenizers library cannot read it: {error}") from None
    named = {name: text for name in NAMES if (text := _content(settings.get(name))) is not None}
    changed = _add_special_tokens(tokenizer, settings, named)
    changed = _set_post_processor(tokenizer, settings, named) or changed
    if size is None:
        size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    return ForeignTokenizer(
        file=json.dumps(json.loads(tokenizer.to_str() if changed else file), ensure_ascii=False),
        size=size,
        ends=tuple(token for token in _ends(directory, tokenizer, named.get("eos_token")) if 0 <= token < size),
        named=tuple(named.items()),
        chat_template=chat_template(directory),
        split_special=settings.get("split_special_tokens") is True,
    )


def _add_special_tokens(tokenizer: HFTokenizer, settings: Mapping[str, Any], named: Mapping[str, str]) -> bool:
    """Add the special tokens that only tokenizer_config.json declares; returns whether there were any."""
    declared: list[Any] = [settings.get(name) for name in named]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        extra = settings.get(key) or []
        declared += extra.values() if isinstance(extra, dict) else extra
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    missing = [_added_token(value) for value in declared if _content(value) not in (None, *added)]
    tokenizer.add_special_tokens(missing)
    return bool(missing)


def _added_token(value: Any) -> AddedToken:
    flags = {key: value[key] is True for key in ("lstrip", "rstrip", "single_word", "normalized") if key in value}
    return AddedToken(_content(value) or "", special=True, **(flags if isinstance(value, dict) else {}))


def _set_post_processor(tokenizer: HFTokenizer, settings: Mapping[str, Any], named: Mapping[str, str]) -> bool:
    """Have begin and end tokens put around a text as `add_bos_token` and `add_eos_token` say, if they are there."""
    if "add_bos_token" not in settings and "add_eos_token" not in settings:
        return False
    begin = named.get("bos_token") if settings.get("add_bos_token") is True else None
    end = named.get("eos_token") if settings.get("add_eos_token") is True else None
    pieces = [*([begin] if begin else []), "$A", *([end] if end else [])]
    tokens = [(text, tokenizer.token_to_id(text)) for text in (begin, end) if text]
    tokenizer.post_processor = TemplateProcessing(single=pieces, special_tokens=list(dict(tokens).items()))
    return True


def _ends(directory: Path, tokenizer: HFTokenizer, eos: str | None) -> tuple[int, ...]:
    """The tokens at which `generate` stops, the tokenizer's own end first."""
    value = None
    for name in ("generation_config.json", "config.json"):
        value = _read(directory / name).get("eos_token_id") if value is None else value
    own = None if eos is None else tokenizer.token_to_id(eos)
    if value is None:
        return () if own is None else (own,)
    ids = value if isinstance(value, list) else [value]
    if not all(type(token) is int for token in ids):
        raise ValueError(f"eos_token_id is {value!r:.80}")
    return tuple(dict.fromkeys(sorted(ids, key=lambda token: token != own)))


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
    if not path.is_file():
        return {}
    try:
        table = json.loads(read_file(path, _LIMIT))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is not JSON: {error}") from None
    if not isinstance(table, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return table
