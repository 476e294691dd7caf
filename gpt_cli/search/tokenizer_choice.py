"""The tokenizer that suits a text, and the number of tokens that it makes of it."""

from pathlib import Path
from typing import Any

import numpy as np

from gpt_cli.config.section import ConfigValues
from gpt_cli.corpus.vocab_size import choose_vocab_size
from gpt_cli.errors import RequestError
from gpt_cli.literals import Pattern, TokenizerKind
from gpt_cli.terminal.words import plural
from gpt_cli.tokenizer import Tokenizer, load_tokenizer
from gpt_cli.tokenizer.pretokenizer import choose_pattern
from gpt_cli.tokenizer.trainer import NEEDS_FILE

_MAX_CHAR_VOCAB = 512  # a larger alphabet is better encoded as bytes or BPE
_MIN_BPE_CHARACTERS = 1_000_000
_MIN_BPE_CHARACTERS_ON_GPU = 20_000_000  # from which a GPU learns more from BPE, however small the alphabet
_MIN_BPE_VOCAB = 2_048  # a smaller BPE is not worth it
_BYTES_PER_TOKEN = (
    *((256, 1.0), (300, 1.4), (384, 1.9), (512, 2.3), (1_024, 2.8)),
    *((4_096, 3.6), (16_384, 4.2), (50_257, 4.5)),
)
"""(vocabulary size, bytes per token) of BPE on English."""
_SAMPLE_CHARACTERS = 200_000  # of the text, encoded to measure bytes per token


def choose_tokenizer(
    beginning: str,
    characters: int,
    alphabet_size: int,
    has_gpu: bool,
    fixed: ConfigValues,
    *,
    reads_others: bool = False,
) -> tuple[dict[str, Any], str]:
    """(keys of tokenizer and their values, the reason as a sentence); a kind or a size in `fixed` stands.

    `beginning` is the start of the training text, of this many `characters`, long enough to count words in.
    `reads_others`: the model is to read texts of others, whose characters an alphabet may lack.
    """
    ones = plural(alphabet_size, "distinct one")
    size = f"the text has {plural(characters, 'character')}, {ones}"
    if (tokenizer := existing_tokenizer(fixed)) is not None:
        tokens = f"{tokenizer.vocab_size:,} {tokenizer.kind} tokens"
        return {"tokenizer.kind": tokenizer.kind}, f"The {tokens} of {fixed['tokenizer.file']}: {size}."
    pattern: Pattern = fixed.get("tokenizer.pattern") or "gpt2"
    if "tokenizer.pattern" not in fixed and fixed.get("tokenizer.file") is None:
        pattern = choose_pattern(beginning)
    learned_from = min(characters, fixed.get("tokenizer.train_bytes", characters))
    vocab_size = choose_vocab_size(beginning[: learned_from * 9 // 10], learned_from, pattern)
    uses_alphabet = alphabet_size <= _MAX_CHAR_VOCAB and not reads_others  # else bytes or BPE
    kind = fixed.get("tokenizer.kind", _choose_kind(characters, uses_alphabet, vocab_size, has_gpu))
    if kind == "hf":
        raise RequestError(NEEDS_FILE)
    if kind != "bpe":
        return {"tokenizer.kind": kind}, f"One token per {'byte' if kind == 'byte' else 'character'}: {size}."
    values = {"tokenizer.kind": kind, "tokenizer.vocab_size": fixed.get("tokenizer.vocab_size") or vocab_size}
    split = ""
    if "tokenizer.pattern" not in fixed and pattern != "gpt2":
        values["tokenizer.pattern"] = pattern
        split = f" Split by {pattern}: its words have combining marks, at which tokenizer.pattern=gpt2 would cut."
    longer = "" if "tokenizer.vocab_size" in fixed else "; a longer one would get more"
    return values, f"BPE with {values['tokenizer.vocab_size']:,} tokens: {size}{longer}.{split}"


def estimate_bytes_per_token(beginning: str, plan: ConfigValues) -> float:
    """Bytes per token of the BPE of `plan`: measured if its file exists, else its usual figure."""
    if (tokenizer := existing_tokenizer(plan)) is not None:
        sample = beginning[:_SAMPLE_CHARACTERS]
        return max(1.0, len(sample.encode()) / max(1, len(tokenizer.encode(sample))))
    vocab_sizes, bytes_per_token = zip(*_BYTES_PER_TOKEN, strict=True)
    return float(np.interp(plan["tokenizer.vocab_size"], vocab_sizes, bytes_per_token))


def _choose_kind(characters: int, uses_alphabet: bool, vocab_size: int, has_gpu: bool) -> TokenizerKind:
    supports_bpe = characters >= _MIN_BPE_CHARACTERS and vocab_size >= _MIN_BPE_VOCAB
    if supports_bpe and (not uses_alphabet or (has_gpu and characters >= _MIN_BPE_CHARACTERS_ON_GPU)):
        return "bpe"
    return "char" if uses_alphabet else "byte"


def existing_tokenizer(plan: ConfigValues) -> Tokenizer | None:
    """The tokenizer of tokenizer.file; None where that is not set, or is a file still to be written."""
    file = plan.get("tokenizer.file")
    if file is None or not Path(file).exists():
        return None
    return load_tokenizer(Path(file), plan.get("tokenizer.pattern"))
