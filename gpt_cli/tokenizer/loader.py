"""Load a tokenizer of any kind from its file, which is not trusted, and compare it with a config."""

from pathlib import Path
from textwrap import shorten
from typing import Any

from gpt_cli.config.schema import TokenizerConfig
from gpt_cli.errors import RequestError, UserError
from gpt_cli.files import read_file
from gpt_cli.files.locations import similar_paths
from gpt_cli.literals import Pattern
from gpt_cli.tokenizer import alphabets, foreign
from gpt_cli.tokenizer.alphabets import ByteTokenizer, CharTokenizer
from gpt_cli.tokenizer.base import Tokenizer
from gpt_cli.tokenizer.bpe import BPETokenizer
from gpt_cli.tokenizer.bpe_vocabulary import parse_object, read_gpt2_files, read_vocabulary
from gpt_cli.tokenizer.hf_directory import read_hf_directory
from gpt_cli.tokenizer.tiktoken_file import is_tiktoken, read_tiktoken

_MAX_SIZE = 128 << 20  # bytes; four times the largest published files

_FILE_PAIRS = {"encoder.json": "vocab.bpe", "vocab.json": "merges.txt"}
SIBLINGS = _FILE_PAIRS | {merges: encoder for encoder, merges in _FILE_PAIRS.items()}
"""The files of GPT-2's pair, each with the other."""
_NAMES = ("tokenizer.json", *_FILE_PAIRS)  # in a folder


def load_tokenizer(path: Path, pattern: Pattern | None = None) -> Tokenizer:
    """The tokenizer in a file, or in a folder with one; its content decides the kind.

    A file is ours (characters, bytes), a tokenizer.json of Hugging Face's, one of GPT-2's pair encoder.json and
    vocab.bpe (or vocab.json and merges.txt) with the other beside it, or a rank file of tiktoken's, for which
    `pattern` is needed if the file is not a published one.

    Raises UserError for a file that cannot be read, is damaged, or is of a tokenizer that would lose text.
    """
    if path.is_dir():
        files = [path / name for name in _NAMES if (path / name).is_file()]
        if not files:
            raise UserError(f"there is no tokenizer in the folder {path}: no {' or '.join(_NAMES)}")
        path = files[0]
    try:
        return _parse_file(path, read_file(path, limit=_MAX_SIZE), pattern)
    except ValueError as error:
        reason = shorten(str(error), 200, placeholder=" ...")
        raise UserError(f"this is no tokenizer that gpt can use: {reason}", where=str(path)) from None


def load_configured(config: TokenizerConfig) -> Tokenizer:
    """The tokenizer of `config.file`. Raises as `load_tokenizer` does, and RequestError for a missing file."""
    assert config.file is not None
    if not (path := Path(config.file)).exists():
        message = f"tokenizer.file {path} does not exist"
        raise RequestError(message, keys=["tokenizer.file"], choices=similar_paths(path))
    return load_tokenizer(path, config.pattern)


def check_tokenizer(tokenizer: Tokenizer, config: TokenizerConfig, where: str) -> None:
    """Raise RequestError for the first key of `config` that `tokenizer`, whose file or folder is `where`, contradicts.

    The kind always, vocab_size, pattern and file where they are set, unknown where it is `token`.
    """
    actual: dict[str, object] = {"kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size}
    if isinstance(tokenizer, BPETokenizer):
        actual["pattern"] = tokenizer.vocabulary.pattern
    if config.unknown == "token" and tokenizer.unk_id is None:
        actual["unknown"] = "error"
    for name, value in actual.items():
        if (asked := getattr(config, name)) not in (None, value):
            key, problem = f"tokenizer.{name}", f"but the tokenizer has {name} {value}"
            raise RequestError(
                f"{key} is {asked}, {problem}", where=where, kind="set", keys=[key], choices=[str(value)]
            )
    if config.file not in (None, where) and load_configured(config).digest != tokenizer.digest:
        problem = f"tokenizer.file {config.file} is another tokenizer"
        raise RequestError(problem, where=where, kind="set", keys=["tokenizer.file"], choices=[where])


def parse_tokenizer(text: str) -> Tokenizer:
    """The tokenizer of the text of a tokenizer.json. Raises ValueError with the reason."""
    return _parse_json(parse_object(text, distinct=True))


def _parse_file(path: Path, data: bytes, pattern: Pattern | None) -> Tokenizer:
    if is_tiktoken(data):
        return BPETokenizer(read_tiktoken(data, pattern))
    text = data.decode()
    if text.startswith("#version"):
        return BPETokenizer(read_gpt2_files(parse_object(_read_sibling(path), distinct=True), text))
    file = parse_object(text, distinct=True)
    if file and all(type(value) is int for value in file.values()):
        return BPETokenizer(read_gpt2_files(file, _read_sibling(path)))
    try:
        return _parse_json(file)
    except ValueError:
        if "format" not in file and "model" in file:
            read_vocabulary(file, strict=False)  # raises the reason why text would be lost
            if (tokenizer := read_hf_directory(path.parent, text)).is_lossless:
                return tokenizer
        raise


def _read_sibling(path: Path) -> str:
    """The text of the other file of GPT-2's pair."""
    if path.name not in SIBLINGS:
        raise ValueError(f"it is one half of GPT-2's, which would be called {' or '.join(SIBLINGS)}")
    partner = path.with_name(SIBLINGS[path.name])
    if not partner.is_file():
        raise ValueError(f"it is one half of GPT-2's, and {partner.name} is not beside it")
    return read_file(partner, limit=_MAX_SIZE).decode()


def _parse_json(file: dict[str, Any]) -> Tokenizer:
    match file:
        case {"format": alphabets.CHAR_FORMAT, "characters": str(characters), **rest} if not rest:
            return CharTokenizer(characters)
        case {"format": alphabets.CHAR_FORMAT, "characters": str(characters), "unknown": True, **rest} if not rest:
            return CharTokenizer(characters, has_unknown=True)
        case {"format": alphabets.BYTE_FORMAT, **rest} if not rest:
            return ByteTokenizer()
        case {"format": foreign.FORMAT}:
            return foreign.parse_foreign(file)
        case {"format": name}:
            raise ValueError(f"its format is {name!r}, or its fields are not those of this format")
        case {"model": _}:
            return BPETokenizer(read_vocabulary(file))
    raise ValueError("it has neither a format nor a model")
