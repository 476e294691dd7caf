"""Train the tokenizer of a config.

The library learns the merges of a BPE. Text without spaces is prepared for it, as its time grows with the square of the
longest word (of 300 kB of DNA it took 39 seconds), and its memory with the distinct words: over 32 bytes for each of
their own. Text in words repeats them; DNA, base64 or hashes hardly do, and 100 MB of DNA took 4.7 GB. So long words are
cut, and of too many distinct ones a random sample is learned from.
"""

import json
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future

import numpy as np
from tokenizers import Tokenizer as HFTokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from gpt_cli.config.schema import TokenizerConfig
from gpt_cli.errors import RequestError, UserError
from gpt_cli.literals import Pattern
from gpt_cli.tokenizer.alphabets import ByteTokenizer, CharTokenizer, code_points
from gpt_cli.tokenizer.base import Tokenizer, encode_text
from gpt_cli.tokenizer.bpe import BPETokenizer
from gpt_cli.tokenizer.bpe_vocabulary import END_OF_TEXT, read_vocabulary
from gpt_cli.tokenizer.loader import check_tokenizer, load_configured
from gpt_cli.tokenizer.pretokenizer import CUTS_MARKS, SAMPLED, choose_pattern, pre_tokenizer, split_chunks

NEEDS_FILE = "tokenizer.kind hf is the tokenizer of an imported model, which tokenizer.file names"
BLOCK = 1 << 16  # characters; the unit of work of a core
_COUNT_BLOCK = 1 << 24  # characters counted at once, to bound the memory
_LONG_WORD = 1000  # characters
UNSPACED = 48  # characters without a space from which their words are counted here
MAX_HELD = 16_000_000  # bytes of distinct words; the trainer takes some 700 MB for them
_AT_ONCE = 1000  # words
_FIND_UNSPACED = re.compile(rf"(?<!\S)\S{{{UNSPACED}}}")


def train_tokenizer(texts: Iterable[str], config: TokenizerConfig, *, at_most: bool = False) -> Tokenizer:
    """The tokenizer of `config`: trained on `texts`, or read from `config.file`.

    Deterministic on every machine. Raises RequestError if the texts do not support the vocabulary size, unless that is
    the one of a BPE `at_most`, or the file does not match the config, UserError if there is no text.
    """
    if config.file is not None:
        tokenizer = load_configured(config)
        check_tokenizer(tokenizer, config, config.file)
        return tokenizer
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
        message = f"no character occurs tokenizer.min_count {config.min_count:,} times: the most frequent one"
        raise RequestError(f"{message} {counts.max():,} times", keys=["tokenizer.min_count"])
    return CharTokenizer("".join(map(chr, frequent)), has_unknown=config.unknown == "token")


def _train_bpe(texts: Iterable[str], vocab_size: int, pattern: Pattern, at_most: bool) -> BPETokenizer:
    """The 256 bytes, then merges of the most frequent pair (ties: lower ids), then `<|endoftext|>`.

    A pair must occur at least twice.
    """
    tokenizer = HFTokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizer(pattern)
    alphabet = ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=vocab_size - 1, min_frequency=2, initial_alphabet=alphabet, show_progress=False)
    start: list[str] = []
    words = bound_unspaced(_trainer_chunks(texts, pattern, start), pattern)
    _wait_for(lambda: tokenizer.train_from_iterator(words, trainer))
    n_learned = tokenizer.get_vocab_size()
    if n_learned + 1 < vocab_size and not at_most:
        key, value = "tokenizer.vocab_size", str(n_learned + 1)
        if pattern in CUTS_MARKS and choose_pattern("".join(start)) not in CUTS_MARKS:
            key, value = "tokenizer.pattern", "o200k"
        raise RequestError(
            f"tokenizer.vocab_size {vocab_size:,} is out of reach: the text supports {n_learned + 1:,} ids",
            kind="set",
            keys=dict.fromkeys([key, "tokenizer.vocab_size"]),
            choices=[value],
        )
    file = json.loads(tokenizer.to_str())
    return BPETokenizer(read_vocabulary({**file, "added_tokens": [{"id": n_learned, "content": END_OF_TEXT}]}))


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


def _trainer_chunks(texts: Iterable[str], pattern: Pattern, start: list[str]) -> Iterator[str]:
    """Yield `texts` in blocks, for the cores, whose words are shorter than three times `_LONG_WORD` characters.

    Text is cut inside words only at the end of `_LONG_WORD` characters that are one or two of them. The first texts,
    of `SAMPLED` characters or more, are appended to `start`.
    """
    split = pre_tokenizer(pattern).pre_tokenize_str
    for text in texts:
        encode_text(text)
        if sum(map(len, start)) < SAMPLED:
            start.append(text[:SAMPLED])
        for chunk in split_chunks(text, BLOCK, pattern):
            begin = 0
            for end in range(_LONG_WORD, len(chunk), _LONG_WORD):
                window = chunk[end - _LONG_WORD : end]
                if len(window.split(None, 1)) < 2 and len(split(window)) <= 2:
                    yield chunk[begin:end]
                    begin = end
            yield chunk[begin:]


def bound_unspaced(chunks: Iterable[str], pattern: Pattern) -> Iterator[str | list[str]]:
    """Yield the words of `chunks`: those of long stretches without spaces at the end, as lists of single words.

    All of them, each as often as it occurs, unless the distinct ones of those stretches have more than `MAX_HELD`
    bytes: then a sample, repeated to the weight of all. The sample depends on the text alone.
    """
    split = pre_tokenizer(pattern).pre_tokenize_str
    counts, held, stride, noise = Counter[str](), 0, 1, random.Random(0)  # of one stretch in `stride`
    for chunk in chunks:
        if _FIND_UNSPACED.search(chunk) is None:
            yield chunk
            continue
        start = end = 0
        for piece in split_chunks(chunk, 1, pattern):
            end += len(piece)
            if len(piece) < UNSPACED:
                continue
            yield chunk[start : end - len(piece)]
            start = end
            if noise.random() * stride < 1:
                words = [piece[first:last] for _, (first, last) in split(piece)]
                held += _held_bytes(set(words) - counts.keys())
                counts.update(words)
            while held > MAX_HELD:  # keep each occurrence of a word with probability one half
                halved = {word: noise.getrandbits(count).bit_count() for word, count in counts.items()}
                counts, stride = Counter({word: count for word, count in halved.items() if count}), 2 * stride
                held = _held_bytes(counts)
        yield chunk[start:]
    while counts:
        word, count = counts.popitem()
        for first in range(0, count * stride, _AT_ONCE):
            yield [word] * min(_AT_ONCE, count * stride - first)


def _held_bytes(words: Iterable[str]) -> int:
    """The bytes of distinct words, and 8 for the list that the trainer holds for each."""
    return sum(len(word.encode()) + 8 for word in words)
