"""Train the tokenizer of a config."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer as HFTokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from gpt_cli.config.schema import TokenizerConfig
from gpt_cli.errors import RequestError, UserError
from gpt_cli.files.locations import similar_paths
from gpt_cli.literals import Pattern
from gpt_cli.tokenizer.base import Tokenizer, encode_text
from gpt_cli.tokenizer.bpe import BPETokenizer
from gpt_cli.tokenizer.bpe_vocabulary import END_OF_TEXT
from gpt_cli.tokenizer.byte import ByteTokenizer
from gpt_cli.tokenizer.char import CharTokenizer, code_points
from gpt_cli.tokenizer.hf_tokenizer import read_vocabulary
from gpt_cli.tokenizer.loader import load_tokenizer
from gpt_cli.tokenizer.pretokenizer import CUTS_MARKS, SAMPLED, has_many_marks, pre_tokenizer, split_chunks
from gpt_cli.tokenizer.unspaced_text import bound_unspaced

NEEDS_FILE = "tokenizer.kind hf is the tokenizer of an imported model, which tokenizer.file names"
BLOCK = 1 << 16  # characters; the unit of work of a core
_COUNT_BLOCK = 1 << 24  # characters counted at once, to bound the memory
_LONG_WORD = 1000  # characters


def train_tokenizer(texts: Iterable[str], config: TokenizerConfig, *, at_most: bool = False) -> Tokenizer:
    """The tokenizer of `config`: trained on `texts`, or read from `config.file`.

    Deterministic on every machine. Raises RequestError if the texts do not support the vocabulary size, unless that is
    the one of a BPE `at_most`, or the file does not match the config, UserError if there is no text.
    """
    if config.file is not None:
        return _load(Path(config.file), config)
    match config.kind:
        case "char":
            return _train_char(texts, config)
        case "byte":
            return ByteTokenizer()
        case "hf":
            raise RequestError(NEEDS_FILE)
        case "bpe":
            assert config.vocab_size is not None  # the caller has chosen it
            if config.allow_special:  # the special token needs no merges
                texts = (part for text in texts for part in text.split(END_OF_TEXT))
            return _train_bpe(texts, config.vocab_size, config.pattern or "gpt2", at_most)


def _load(path: Path, config: TokenizerConfig) -> Tokenizer:
    if not path.exists():
        choices = similar_paths(path)
        raise RequestError(f"tokenizer.file {path} does not exist", keys=["tokenizer.file"], choices=choices)
    tokenizer = load_tokenizer(path, config.pattern)
    if tokenizer.kind != config.kind:
        raise RequestError(
            f"tokenizer.kind is {config.kind}, but tokenizer.file holds a {tokenizer.kind} tokenizer",
            where=str(path),
            kind="set",
            keys=["tokenizer.kind", "tokenizer.file"],
            choices=[tokenizer.kind],
        )
    if config.vocab_size not in (None, tokenizer.vocab_size):
        raise RequestError(
            f"tokenizer.vocab_size is {config.vocab_size}, but tokenizer.file has {tokenizer.vocab_size} ids",
            where=str(path),
            keys=["tokenizer.vocab_size", "tokenizer.file"],
        )
    if isinstance(tokenizer, BPETokenizer) and config.pattern not in (None, tokenizer.vocabulary.pattern):
        raise RequestError(
            f"tokenizer.pattern is {config.pattern}, but tokenizer.file has the pattern {tokenizer.vocabulary.pattern}",
            where=str(path),
            keys=["tokenizer.pattern", "tokenizer.file"],
        )
    if config.unknown == "token" and tokenizer.unk_id is None:
        raise RequestError(
            "tokenizer.unknown is token, but tokenizer.file has no <unk>",
            where=str(path),
            keys=["tokenizer.unknown", "tokenizer.file"],
        )
    return tokenizer


def _train_char(texts: Iterable[str], config: TokenizerConfig) -> CharTokenizer:
    """The characters that occur `min_count` times or more, by code point."""
    counts = np.zeros(0x110000, dtype=np.int64)
    for text in texts:
        encode_text(text)
        for start in range(0, len(text), _COUNT_BLOCK):
            block_counts = np.bincount(code_points(text[start : start + _COUNT_BLOCK]))
            counts[: len(block_counts)] += block_counts
    if not counts.any():
        raise UserError("the text is empty: there are no characters to make a vocabulary of")
    frequent = np.flatnonzero(counts >= config.min_count)
    if not len(frequent):
        raise RequestError(
            f"no character occurs tokenizer.min_count {config.min_count:,} times: the most frequent one"
            f" {counts.max():,} times",
            keys=["tokenizer.min_count"],
        )
    return CharTokenizer("".join(map(chr, frequent)), has_unknown=config.unknown == "token")


def _train_bpe(texts: Iterable[str], vocab_size: int, pattern: Pattern, at_most: bool) -> BPETokenizer:
    """The 256 bytes, then merges of the most frequent pair (ties: lower ids), then `<|endoftext|>`.

    A pair must occur at least twice.
    """
    tokenizer = HFTokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizer(pattern)
    trainer = BpeTrainer(
        vocab_size=vocab_size - 1,
        min_frequency=2,
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    start: list[str] = []
    words = bound_unspaced(_trainer_chunks(_keep_start(texts, start), pattern), pattern)
    _wait_for(lambda: tokenizer.train_from_iterator(words, trainer))
    n_learned = tokenizer.get_vocab_size()
    if n_learned + 1 < vocab_size and not at_most:
        key, value = "tokenizer.vocab_size", str(n_learned + 1)
        if pattern in CUTS_MARKS and has_many_marks("".join(start)):  # it cuts words at combining marks
            key, value = "tokenizer.pattern", "o200k"
        raise RequestError(
            f"tokenizer.vocab_size {vocab_size:,} is out of reach: the text supports {n_learned + 1:,} ids",
            kind="set",
            keys=dict.fromkeys([key, "tokenizer.vocab_size"]),
            choices=[value],
        )
    file = json.loads(tokenizer.to_str())
    return BPETokenizer(read_vocabulary({**file, "added_tokens": [{"id": n_learned, "content": END_OF_TEXT}]}))


def _keep_start(texts: Iterable[str], start: list[str]) -> Iterator[str]:
    """Yield `texts`, and append the first `SAMPLED` characters of them to `start`."""
    missing = SAMPLED
    for text in texts:
        if missing > 0:
            start.append(text[:missing])
            missing -= len(text)
        yield text


def _wait_for(work: Callable[[], None]) -> None:
    """Call `work` in a thread and wait for it, so that Ctrl-C interrupts: compiled code looks for no signal itself."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            work()
            done.set_result(None)
        except BaseException as error:  # it is raised where it is waited for
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    done.result()


def _trainer_chunks(texts: Iterable[str], pattern: Pattern) -> Iterator[str]:
    """`texts` in blocks, for the cores."""
    split = pre_tokenizer(pattern).pre_tokenize_str
    for text in texts:
        encode_text(text)
        for chunk in split_chunks(text, BLOCK, pattern):
            yield from _cut_long_words(chunk, split)


def _cut_long_words(text: str, split: Callable[[str], list[tuple[str, tuple[int, int]]]]) -> Iterator[str]:
    """`text` in parts whose words, as `split` makes them, are shorter than three times `_LONG_WORD` characters.

    The time of the library's trainer grows with the square of the longest word: of 300 kB of DNA it took 39 seconds.
    Text is cut only at the end of `_LONG_WORD` characters that are one or two words.
    """
    start = 0
    for end in range(_LONG_WORD, len(text), _LONG_WORD):
        window = text[end - _LONG_WORD : end]
        if len(window.split(None, 1)) < 2 and len(split(window)) <= 2:
            yield text[start:end]
            start = end
    yield text[start:]
