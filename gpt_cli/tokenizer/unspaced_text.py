"""Bound the memory in which a BPE is learned from text without spaces.

The library's trainer holds every distinct word, in over 32 bytes for each of its own. Text in words repeats them; DNA,
base64 or hashes hardly do, and 100 MB of DNA took 4.7 GB. The words of such text are counted here, and where too many
are distinct, those of a random sample.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from gpt_cli.literals import Pattern
from gpt_cli.tokenizer.pretokenizer import pre_tokenizer, split_chunks

UNSPACED = 48  # characters without a space from which their words are counted here
MAX_HELD = 16_000_000  # bytes of distinct words; the trainer takes some 700 MB for them
_WORD = 8  # bytes that a word counts as beside its own: the trainer holds a list for each
_AT_ONCE = 1000  # words
_FIND_UNSPACED = re.compile(rf"(?<!\S)\S{{{UNSPACED}}}")


def bound_unspaced(chunks: Iterable[str], pattern: Pattern) -> Iterator[str | list[str]]:
    """Yield the words of `chunks`: those of long stretches without spaces at the end, as lists of single words.

    All of them, each as often as it occurs, unless the distinct ones of those stretches have more than `MAX_HELD`
    bytes: then a sample, repeated to the weight of all. The sample depends on the text alone.
    """
    sample = _WordSample(pattern)
    for chunk in chunks:
        if _FIND_UNSPACED.search(chunk) is None:
            yield chunk
            continue
        start = end = 0
        for piece in split_chunks(chunk, 1, pattern):
            if len(piece) >= UNSPACED:
                yield chunk[start:end]
                sample.add(piece)
                start = end + len(piece)
            end += len(piece)
        yield chunk[start:]
    yield from sample.take()


class _WordSample:
    """Counts of the words of a text, or of one in `_stride` of them."""

    def __init__(self, pattern: Pattern) -> None:
        self._split: Callable[[str], list[tuple[str, tuple[int, int]]]] = pre_tokenizer(pattern).pre_tokenize_str
        self._counts: Counter[str] = Counter()
        self._held = 0
        self._stride = 1
        self._random = random.Random(0)

    def add(self, text: str) -> None:
        if self._random.random() * self._stride >= 1:
            return
        for _, (start, end) in self._split(text):
            word = text[start:end]
            self._counts[word] += 1
            if self._counts[word] == 1:
                self._held += _size(word)
        while self._held > MAX_HELD:
            self._halve()

    def _halve(self) -> None:
        """Keep each occurrence of a word with probability one half."""
        counts = ((word, self._random.getrandbits(count).bit_count()) for word, count in self._counts.items())
        self._counts = Counter({word: count for word, count in counts if count})
        self._held = sum(map(_size, self._counts))
        self._stride *= 2

    def take(self) -> Iterator[list[str]]:
        """Remove and yield the words."""
        while self._counts:
            word, count = self._counts.popitem()
            count *= self._stride
            for start in range(0, count, _AT_ONCE):
                yield [word] * min(_AT_ONCE, count - start)


def _size(word: str) -> int:
    return len(word.encode()) + _WORD
