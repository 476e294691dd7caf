"""Our tokenizers as tokenizer.json of Hugging Face, with the same ids for every text, and back.

bpe   its own file has that format
byte  a byte-level BPE of the 256 bytes, without merges
char  a word-level vocabulary of single characters; an unknown one is an error, or `<unk>`
"""

import json
from pathlib import Path
from textwrap import shorten
from typing import Any

from gpt_cli.corpus.turn_template import TurnTemplate
from gpt_cli.errors import UserError
from gpt_cli.export.answer_borders import without_answers
from gpt_cli.files import read_file
from gpt_cli.tokenizer import (
    BPETokenizer,
    ByteTokenizer,
    CharTokenizer,
    ForeignTokenizer,
    Tokenizer,
    load_tokenizer,
)
from gpt_cli.tokenizer.bpe_vocabulary import BYTE_ENCODER, END_OF_TEXT
from gpt_cli.tokenizer.hf_directory import read_hf_directory
from gpt_cli.tokenizer.loader import parse_tokenizer

UNKNOWN = "<unk>"
_REPLACEMENT = "\ufffd"  # CharTokenizer decodes <unk> to it
_ANY_CHARACTER = r"[\s\S]"
_MAX_SIZE = 128 << 20  # bytes of a tokenizer.json


def tokenizer_json(tokenizer: Tokenizer) -> str:
    if isinstance(tokenizer, BPETokenizer):
        return tokenizer.to_json()
    if isinstance(tokenizer, ForeignTokenizer):
        return tokenizer.file
    parts = _char_parts(tokenizer) if isinstance(tokenizer, CharTokenizer) else _byte_parts()
    fixed: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
    }
    return json.dumps({**fixed, "post_processor": None, **parts}, ensure_ascii=False, indent=2)


def tokenizer_config(
    tokenizer: Tokenizer, context_length: int, allow_special: bool, *, is_padded: bool = False
) -> dict[str, Any]:
    """Contents of tokenizer_config.json.

    `allow_special`: special tokens in text are encoded as such. `is_padded`: the end of text, if there is one, pads the
    shorter texts of a batch.
    """
    fixed = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_length,
        "clean_up_tokenization_spaces": False,
    }
    if isinstance(tokenizer, ForeignTokenizer):
        template = {} if tokenizer.chat_template is None else {"chat_template": tokenizer.chat_template}
        named = dict(tokenizer.named)
        if is_padded and "pad_token" not in named and "eos_token" in named:
            named["pad_token"] = named["eos_token"]
        return {**fixed, **named, "split_special_tokens": tokenizer.split_special, **template}
    eot = None if tokenizer.eot_id is None else tokenizer.decode([tokenizer.eot_id])
    return {
        **fixed,
        "bos_token": eot,
        "eos_token": eot,
        **({"pad_token": eot} if is_padded else {}),
        "split_special_tokens": not allow_special,
    }


def special_ids(tokenizer: Tokenizer) -> dict[str, Any]:
    """The ids of config.json and generation_config.json: where a text begins and ends, and what pads a batch."""
    if isinstance(tokenizer, ForeignTokenizer):
        ends: Any = list(tokenizer.ends) if len(tokenizer.ends) > 1 else tokenizer.eot_id
        begin, pad = tokenizer.named_id("bos_token"), tokenizer.named_id("pad_token")
        return {"bos_token_id": begin, "eos_token_id": ends, "pad_token_id": pad}
    eot_id = tokenizer.eot_id
    return {"bos_token_id": eot_id, "eos_token_id": eot_id, "pad_token_id": None}


def _byte_parts() -> dict[str, Any]:
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    vocab = {spelling: byte for byte, spelling in enumerate(BYTE_ENCODER)}
    return {"pre_tokenizer": level, "decoder": level, "model": {"type": "BPE", "vocab": vocab, "merges": []}}


def _char_parts(tokenizer: CharTokenizer) -> dict[str, Any]:
    vocab = {character: i for i, character in enumerate(tokenizer.characters)}
    decoders: list[dict[str, Any]] = [{"type": "Fuse"}]
    if tokenizer.unk_id is not None:
        vocab[UNKNOWN] = tokenizer.unk_id  # no single character has this spelling
        decoders.insert(0, {"type": "Replace", "pattern": {"String": UNKNOWN}, "content": _REPLACEMENT})
    split = {"type": "Split", "pattern": {"Regex": _ANY_CHARACTER}, "behavior": "Isolated", "invert": False}
    return {
        "pre_tokenizer": split,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": UNKNOWN},
    }


def read_tokenizer(directory: Path, size: int) -> Tokenizer:
    """The tokenizer of a model of `size` rows: ours as `tokenizer_json` writes them, else the file as it is.

    Raises UserError for files that are damaged or do not fit together.
    """
    path = directory / "tokenizer.json"
    try:
        text = read_file(path, _MAX_SIZE).decode() if path.is_file() else load_tokenizer(directory).to_json()
        table = json.loads(text)
        if (tokenizer := parse_tokenizer(text) if "format" in table else _read_simple(table)) is not None:
            return tokenizer
        foreign = read_hf_directory(directory, text, size)
    except (ValueError, RecursionError) as error:
        reason = shorten(str(error), 200, placeholder=" ...")
        raise UserError(f"the tokenizer cannot be used: {reason}", where=str(path)) from None
    return _as_bpe(foreign) or foreign


def _as_bpe(foreign: ForeignTokenizer) -> BPETokenizer | None:
    """The same tokenizer as a BPE of ours, in which special tokens are no text; None if it is another one."""
    template = None if foreign.chat_template is None else TurnTemplate.from_jinja(foreign.chat_template)
    table = json.loads(foreign.file)
    try:
        bpe = parse_tokenizer(json.dumps(table if template is None else without_answers(table, template)))
    except ValueError:
        return None
    if not isinstance(bpe, BPETokenizer) or (foreign.chat_template is not None and template is None):
        return None
    ends = set(foreign.ends) - {bpe.eot_id}
    if template is not None and ends:
        ends -= set(bpe.encode(template.completion_end).tolist()[:1])
    names_others = any(text != END_OF_TEXT for _, text in foreign.named)
    is_same = foreign.split_special and foreign.size == bpe.vocab_size and not ends and not names_others
    return bpe if is_same else None


def parse_exported(text: str) -> Tokenizer:
    """The inverse of `tokenizer_json`. Raises ValueError for any other text."""
    try:
        file = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return _read_simple(file) or parse_tokenizer(text)


def _read_simple(file: Any) -> Tokenizer | None:
    tokenizers = (read(file) for read in (_read_char, _read_byte) if isinstance(file, dict))
    return next((tokenizer for tokenizer in tokenizers if tokenizer is not None), None)


def _read_char(file: dict[str, Any]) -> CharTokenizer | None:
    """The character tokenizer of a file that `tokenizer_json` wrote, else None."""
    model = file.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) and model.get("type") == "WordLevel" else None
    if not isinstance(vocab, dict) or sorted(map(str, vocab.values())) != sorted(map(str, range(len(vocab)))):
        return None
    words = sorted(vocab, key=lambda word: int(vocab[word]))
    has_unknown = words[-1:] == [UNKNOWN]
    try:
        tokenizer = CharTokenizer("".join(words[: len(words) - has_unknown]), has_unknown)
    except ValueError:
        return None
    return tokenizer if _equal(file, tokenizer) else None


def _read_byte(file: dict[str, Any]) -> ByteTokenizer | None:
    return ByteTokenizer() if _equal(file, ByteTokenizer()) else None


def _equal(file: dict[str, Any], tokenizer: Tokenizer) -> bool:
    """True if a tokenizer.json equals ours; other keys in its model are ignored."""
    ours = json.loads(tokenizer_json(tokenizer))
    model = file.get("model")
    if not isinstance(model, dict) or any(model.get(key) != value for key, value in ours["model"].items()):
        return False
    return all(file.get(key, ours[key]) == ours[key] for key in ("added_tokens", "normalizer", "pre_tokenizer"))
