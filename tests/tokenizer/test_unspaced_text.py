"""Text without spaces is learned from in bounded memory, and any other as the library would."""

import random
from collections import Counter
from collections.abc import Iterable
from pydoc_data import topics
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from gpt_cli.config.schema import TokenizerConfig
from gpt_cli.literals import Pattern
from gpt_cli.tokenizer import Tokenizer, train_tokenizer, trainer
from gpt_cli.tokenizer.pretokenizer import RULES
from gpt_cli.tokenizer.trainer import bound_unspaced

PATTERNS = get_args(Pattern)
ENGLISH = "".join(topics.topics[name] for name in sorted(topics.topics))[:60_000]
SHORT = st.sampled_from(
    [" ", "  ", "\n", "\n\n", "\r\n", "a", "Bc", "'s", "12345", "!?", "/\n", "é", "e\u0301", "漢字"]
)
LONG = st.sampled_from(
    ["ACGTTAG" * 9, "a1B2+/" * 12, "漢字。かな、" * 12, "=" * 70, "-\n" * 40, "हिन्दी" * 12, "\n" * 60]
)


def words(chunks: Iterable[str | list[str]], pattern: Pattern) -> Counter[str]:
    """How often each word of `chunks` occurs, as the library splits them."""
    split = Split(Regex(RULES[pattern].published), "isolated").pre_tokenize_str
    texts = (text for chunk in chunks for text in ([chunk] if isinstance(chunk, str) else chunk))
    return Counter(word for text in texts for word, _ in split(text))


def random_dna(size: int) -> str:
    return "".join(random.Random(1).choices("ACGT", k=size))


def train(text: str) -> Tokenizer:
    return train_tokenizer([text], TokenizerConfig(kind="bpe", vocab_size=300))


@pytest.mark.parametrize("pattern", PATTERNS)
@given(parts=st.lists(st.one_of(SHORT, SHORT, LONG), max_size=30))
def test_every_word_is_learned_from_as_often_as_it_occurs(parts: list[str], pattern: Pattern) -> None:
    text = "".join(parts)
    assert words(bound_unspaced([text], pattern), pattern) == words([text], pattern)


def test_text_in_words_goes_to_the_trainer_as_it_is() -> None:
    text = "\n".join(line for line in ENGLISH.splitlines() if max(map(len, line.split()), default=0) < 48)
    assert "".join(chunk for chunk in bound_unspaced([text, text], "gpt2") if isinstance(chunk, str)) == text + text


@pytest.mark.parametrize("width", [60, 1000, None])
def test_too_many_distinct_words_are_sampled_to_the_bound_with_their_weight(
    width: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "MAX_HELD", 50_000)
    dna = random_dna(400_000)
    lines = [dna[i : i + (width or 1000)] for i in range(0, len(dna), width or 1000)]
    chunks = lines if width is None else ["\n".join(lines)]  # the trainer's blocks of a line without an end

    sample = words(bound_unspaced([ENGLISH, *chunks], "gpt2"), "gpt2")

    assert sample == words(bound_unspaced([ENGLISH, *chunks], "gpt2"), "gpt2")
    dna_words = {word: count for word, count in sample.items() if len(word) >= 48 and set(word) <= set("ACGT")}
    assert 10_000 < sum(map(len, dna_words)) <= 50_000
    total = sum(len(word) * count for word, count in dna_words.items())
    assert 0.8 * len(dna) < total < 1.25 * len(dna)
    assert all(sample[word] >= count for word, count in words([ENGLISH], "gpt2").items() if len(word) < 20)


def test_a_vocabulary_of_a_sample_is_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    text, held_out = random_dna(1_100_000)[:1_000_000], random_dna(1_100_000)[1_000_000:]
    full = len(train(text).encode(held_out))
    monkeypatch.setattr(trainer, "MAX_HELD", 200_000)
    assert len(train(text).encode(held_out)) < 1.01 * full
