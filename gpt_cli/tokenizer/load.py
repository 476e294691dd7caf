"""A tokenizer out of its file, whatever its kind: the constructor that trusts nothing."""

import json
from pathlib import Path
from typing import Any

from gpt_cli.errors import UserError
from gpt_cli.files import read_file
from gpt_cli.tokenizer import byte, char
from gpt_cli.tokenizer.base import Tokenizer
from gpt_cli.tokenizer.bpe import BPETokenizer
from gpt_cli.tokenizer.byte import ByteTokenizer
from gpt_cli.tokenizer.char import CharTokenizer
from gpt_cli.tokenizer.huggingface import read_vocabulary

_LARGEST = 128 << 20  # bytes; the largest published ones have a quarter of it


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in a file: ours (characters, bytes), or Hugging Face's (byte-level BPE).

    Raises UserError for a file that cannot be read, is damaged, or would not give back every text it encodes.
    """
    data = read_file(path, limit=_LARGEST)
    try:
        return parse_tokenizer(data.decode())
    except ValueError as error:
        raise UserError(
            f"this is no tokenizer that gpt can use: {str(error)[:200]}",
            where=str(path),
            hint="take a tokenizer.json of `gpt tokenize`, or one of a byte-level BPE such as GPT-2's",
        ) from None


def parse_tokenizer(text: str) -> Tokenizer:
    """The same from the text of such a file. Raises ValueError with the reason."""
    try:
        file = json.loads(text, object_pairs_hook=_table, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    match file:
        case {"format": char.FORMAT, "characters": str(characters), **rest} if not rest:
            return CharTokenizer(characters)
        case {"format": byte.FORMAT, **rest} if not rest:
            return ByteTokenizer()
        case {"format": name}:
            raise ValueError(f"its format is {name!r}, or it has fields that this format has not")
        case {"model": _}:
            return BPETokenizer(read_vocabulary(file))
    raise ValueError("it has neither a format nor a model")


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key is there twice")
    return table


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
