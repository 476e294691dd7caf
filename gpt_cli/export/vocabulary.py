"""Our tokenizers as a tokenizer.json of Hugging Face's: the same ids for every text, the same text for all ids.

bpe   its own file is one already
byte  a byte-level BPE of the 256 bytes that never merges
char  a word-level vocabulary whose words are single characters; what it lacks is an error, or `<unk>`
"""

import json
from typing import Any

from gpt_cli.tokenizer import BPETokenizer, CharTokenizer, Tokenizer
from gpt_cli.tokenizer.vocabulary import PRINTABLE

UNKNOWN = "<unk>"
_REPLACEMENT = "\ufffd"  # what we decode an unknown character to
_ANY_CHARACTER = r"[\s\S]"


def tokenizer_json(tokenizer: Tokenizer) -> str:
    """The text of tokenizer.json."""
    if isinstance(tokenizer, BPETokenizer):
        return tokenizer.to_json()
    parts = _char_parts(tokenizer) if isinstance(tokenizer, CharTokenizer) else _byte_parts()
    fixed: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
    }
    return json.dumps({**fixed, "post_processor": None, **parts}, ensure_ascii=False, indent=2)


def tokenizer_config(tokenizer: Tokenizer, context_length: int, allow_special: bool) -> dict[str, Any]:
    """What tokenizer_config.json says: the special tokens, and whether text that reads like one becomes it."""
    end = None if tokenizer.end_of_text is None else tokenizer.decode([tokenizer.end_of_text])
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_length,
        "bos_token": end,
        "eos_token": end,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": not allow_special,
    }


def _byte_parts() -> dict[str, Any]:
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    vocab = {spelling: byte for byte, spelling in enumerate(PRINTABLE)}
    return {"pre_tokenizer": level, "decoder": level, "model": {"type": "BPE", "vocab": vocab, "merges": []}}


def _char_parts(tokenizer: CharTokenizer) -> dict[str, Any]:
    vocab = {character: i for i, character in enumerate(tokenizer.characters)}
    decoders: list[dict[str, Any]] = [{"type": "Fuse"}]
    if tokenizer.unknown is not None:
        vocab[UNKNOWN] = (
            tokenizer.unknown
        )  # no single character is spelled like this, so none becomes it by its spelling
        decoders.insert(0, {"type": "Replace", "pattern": {"String": UNKNOWN}, "content": _REPLACEMENT})
    split = {"type": "Split", "pattern": {"Regex": _ANY_CHARACTER}, "behavior": "Isolated", "invert": False}
    return {
        "pre_tokenizer": split,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": UNKNOWN},
    }
