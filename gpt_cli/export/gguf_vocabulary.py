"""A vocabulary for llama.cpp that gives the same ids.

Of llama.cpp's tokenizers GPT-2's byte-level BPE fits ours. Bytes are one without merges. For a character vocabulary
the merges join the UTF-8 bytes of each character; no other merge can consume a part of them, as UTF-8 marks the first
byte of a character. GGUF cannot express a vocabulary without an end of text (llama.cpp then takes id 11), so
`<|endoftext|>` is added as the last id; its logit is the mean of all others, so it is never the most likely token.

The tokenizer of an imported model is one if its file is a BPE of ours but for its added tokens: llama.cpp has no
normalizer, puts no space before a text, and does not know which added tokens take white space with them.
"""

from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

from gpt_cli.errors import RequestError
from gpt_cli.literals import Pattern
from gpt_cli.tokenizer import BPETokenizer, CharTokenizer, ForeignTokenizer, Tokenizer
from gpt_cli.tokenizer.bpe_vocabulary import BYTE_ENCODER, END_OF_TEXT, bytes_to_unicode
from gpt_cli.tokenizer.pretokenizer import pre_tokenizer

MERGES = "tokenizer.ggml.merges"
UNUSED_MERGE = "ÿ ÿ"  # a merge of two bytes that UTF-8 never has: llama.cpp refuses a file without merges
_PATTERNS: dict[Pattern, str] = {"gpt2": "gpt-2", "gpt4": "llama-bpe"}  # its gpt-4o differs beyond ASCII
_IGNORE_MERGES: tuple[Pattern, ...] = ("gpt4",)  # llama.cpp maps a word that is a token to that token
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5  # types of tokens
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")  # at each of which llama.cpp stops


@dataclass(frozen=True)
class GGUFVocabulary:
    """A vocabulary for GGUF; tokens and merges are in GPT-2's byte-to-unicode spelling.

    types   of the tokens, where they are not normal ones
    ends    the tokens at which a text ends, at most three
    begin   the token that is put before a text, if one is
    end     the token that is put after a text, if one is
    """

    tokens: list[str]
    types: dict[int, int]
    merges: list[str]
    pattern: str
    ends: tuple[int, ...]
    begin: int | None = None
    end: int | None = None
    padding: int | None = None

    @property
    def end_of_text(self) -> int:
        """The token that ends a text."""
        return self.ends[0]

    def keys(self) -> dict[str, Any]:
        """The metadata of GGUF, by key."""
        optional = {"padding_token_id": self.padding, "add_eos_token": None if self.end is None else True}
        metadata = {
            "model": "gpt2",
            "pre": self.pattern,
            "tokens": self.tokens,
            "token_type": [self.types.get(i, _NORMAL) for i in range(len(self.tokens))],
            "merges": self.merges,
            "bos_token_id": self.end_of_text if self.begin is None else self.begin,
            "eos_token_id": self.end_of_text,
            "add_bos_token": self.begin is not None,
            **dict(zip(_END_KEYS[1:], self.ends[1:], strict=False)),
            **{key: value for key, value in optional.items() if value is not None},
        }
        return {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}


def further_end_key(vocabulary: GGUFVocabulary) -> str:
    """The key of one more end token. Raises RequestError if llama.cpp has none."""
    if len(vocabulary.ends) == len(_END_KEYS):
        raise RequestError(f"llama.cpp knows {len(_END_KEYS)} end tokens, and this model has more")
    return f"tokenizer.ggml.{_END_KEYS[len(vocabulary.ends)]}"


def gguf_vocabulary(tokenizer: Tokenizer) -> GGUFVocabulary:
    """The vocabulary of `tokenizer` for llama.cpp. Raises RequestError, with the reason, if it cannot be expressed."""
    if isinstance(tokenizer, ForeignTokenizer):
        vocabulary = _of_foreign(tokenizer)
    elif isinstance(tokenizer, BPETokenizer):
        vocabulary = _of_bpe(tokenizer)
    elif isinstance(tokenizer, CharTokenizer):
        if tokenizer.unk_id is not None:
            raise RequestError(
                "llama.cpp has no <unk>: it leaves out the characters that a vocabulary lacks",
                hint="train with tokenizer.unknown=error, or with tokenizer.kind=byte or bpe, which lack nothing",
            )
        tokens = [bytes_to_unicode(character.encode()) for character in tokenizer.characters]
        merges = [f"{t[:i]} {t[i]}" for t in tokens for i in range(1, len(t))]
        vocabulary = GGUFVocabulary(tokens, {}, list(dict.fromkeys(merges)), _PATTERNS["gpt2"], ())
    else:
        vocabulary = GGUFVocabulary(list(BYTE_ENCODER), {}, [], _PATTERNS["gpt2"], ())
    vocabulary = replace(vocabulary, merges=vocabulary.merges or [UNUSED_MERGE])
    if vocabulary.ends:
        return vocabulary
    end = len(vocabulary.tokens)
    types = {**vocabulary.types, end: _CONTROL}
    return replace(vocabulary, tokens=[*vocabulary.tokens, END_OF_TEXT], types=types, ends=(end,))


def _of_bpe(tokenizer: BPETokenizer) -> GGUFVocabulary:
    vocabulary = tokenizer.vocabulary
    if vocabulary.pattern not in _PATTERNS:
        raise RequestError(
            f"llama.cpp does not split text as the pattern {vocabulary.pattern} does",
            hint="train with tokenizer.pattern=gpt2 or gpt4, or export it for Transformers: --to hf",
        )
    _require_same_word_ids(tokenizer)
    special = vocabulary.special
    tokens = [t.decode() if i in special else bytes_to_unicode(t) for i, t in enumerate(vocabulary.tokens)]
    merges = [f"{tokens[left]} {tokens[right]}" for left, right, _ in vocabulary.merges]
    ends = () if tokenizer.eot_id is None else (tokenizer.eot_id,)
    return GGUFVocabulary(tokens, dict.fromkeys(special, _CONTROL), merges, _PATTERNS[vocabulary.pattern], ends)


def _of_foreign(tokenizer: ForeignTokenizer) -> GGUFVocabulary:
    added = tokenizer.added_tokens
    if tokenizer.bpe is None or any(token[flag] for token in added for flag in ("lstrip", "rstrip", "single_word")):
        raise RequestError(
            "of imported tokenizers llama.cpp runs byte-level BPEs with a known pattern, without a normalizer, a space"
            " before the text, and added tokens that depend on what is around them",
            hint="export it for Transformers: --to hf",
        )
    base = _of_bpe(tokenizer.bpe)
    _require_separate([token["content"] for token in added], [bool(token["normalized"]) for token in added])
    if len(tokenizer.ends) > len(_END_KEYS):
        raise RequestError(f"llama.cpp knows {len(_END_KEYS)} end tokens, and this model has {len(tokenizer.ends)}")
    begin, end = tokenizer.begin_ids, tokenizer.suffix_ids
    if len(begin) > 1 or (end and end != tokenizer.ends[:1]):
        raise RequestError("llama.cpp puts one begin token before a text, and the end token after it, and no others")
    types = {token["id"]: _CONTROL if token["special"] else _USER_DEFINED for token in added}
    unused = range(len(base.tokens), tokenizer.vocab_size)
    return GGUFVocabulary(
        tokens=[*base.tokens, *(f"[PAD{i}]" for i in unused)],
        types=types | dict.fromkeys(unused, _UNUSED),
        merges=base.merges,
        pattern=base.pattern,
        ends=tokenizer.ends,
        begin=begin[0] if begin else None,
        end=end[0] if end else None,
        padding=tokenizer.named_id("pad_token"),
    )


def _require_separate(texts: list[str], normalized: list[bool]) -> None:
    """Raise RequestError for overlapping added tokens: llama.cpp finds the longest first, Transformers the leftmost."""
    for (one, is_late), (other, other_is_late) in permutations(zip(texts, normalized, strict=True), 2):
        overlaps = any(one.endswith(other[:n]) for n in range(1, min(len(one), len(other))))
        if overlaps or (other in one and is_late != other_is_late):
            raise RequestError(f"llama.cpp would find the added tokens {one!r} and {other!r} in another way")


def _require_same_word_ids(tokenizer: BPETokenizer) -> None:
    """Raise RequestError if llama.cpp would give a word that is a token other ids (its `ignore_merges`)."""
    vocabulary = tokenizer.vocabulary
    ignores_merges = vocabulary.pattern in _IGNORE_MERGES
    if ignores_merges == vocabulary.ignore_merges:
        return
    split = pre_tokenizer(vocabulary.pattern)
    for i, token in enumerate(vocabulary.tokens):
        text = token.decode(errors="ignore")
        if i in vocabulary.special or text.encode() != token or len(split.pre_tokenize_str(text)) > 1:
            continue  # no word
        if tokenizer.encode(text).tolist() != [i] or vocabulary.ignore_merges:
            raise RequestError(
                f"llama.cpp would encode {text!r} in another way than this tokenizer",
                hint="export it for Transformers: --to hf",
            )
