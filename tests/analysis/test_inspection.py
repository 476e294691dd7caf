"""`gpt data inspect` tells what is in a text: every figure equals its plain definition."""

import json
import math
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.analysis import inspection, text_sample
from gpt_cli.analysis.baselines import ORDERS, KneserNey
from gpt_cli.analysis.counts import LineLengths, LineStats
from gpt_cli.analysis.duplicates import PASSAGE, HashPrefixSample, PassageHasher, hash_texts, hash_windows
from gpt_cli.analysis.inspection import inspect_text
from gpt_cli.analysis.split_text import SplitText
from gpt_cli.analysis.text_report import TextReport, advise
from gpt_cli.analysis.text_sample import SystematicSample, text_blocks
from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.blocks import CorpusText, SourceFile
from gpt_cli.corpus.readers import TextFile
from gpt_cli.errors import UserError
from tests.support.command import ROOT, Run, in_process
from tests.support.waiting import HANG

pytestmark = pytest.mark.system

SMALL = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def codes(text: str) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


def look(text: str | list[str], val_fraction: float = 0.1) -> TextReport:
    return inspect_text(split_corpus([text] if isinstance(text, str) else text, val_fraction=val_fraction), no_progress)


def split_corpus(texts: list[str], **keys: Any) -> SplitText:
    """Texts, each in a file of its own, as `data` with these keys divides them."""
    files = [
        TextFile(str(i), None, lambda _, text=text: iter([("it", [text.encode()])])) for i, text in enumerate(texts)
    ]
    text = CorpusText([SourceFile(file, 1, validates=False) for file in files], pytest.fail)
    return SplitText.of(text, DataConfig(**keys), no_progress)


def no_progress(*_: object) -> None:
    pass


def prose(lines: int, seed: int = 0) -> str:
    """Lines of random words: none is like another."""
    random = np.random.default_rng(seed)
    words = ["".join(random.choice(list("abcdefghijklmnop"), 5)) for _ in range(400)]
    return "".join(" ".join(random.choice(words, 9)) + "\n" for _ in range(lines))


class Reference:
    """Modified Kneser-Ney as it is written in Chen and Goodman (1998), on dictionaries of counts."""

    def __init__(self, text: list[int], vocab_size: int, order: int) -> None:
        self.vocab_size, self.order = vocab_size, min(order, len(text))
        grams = {n: Counter(tuple(text[i : i + n]) for i in range(len(text) - n + 1)) for n in range(1, self.order + 1)}
        self.counts: dict[int, dict[tuple[int, ...], int]] = {self.order: dict(grams[self.order])}
        for n in range(1, self.order):
            self.counts[n] = Counter(gram[1:] for gram in grams[n + 1])

    def discount(self, n: int, count: int) -> float:
        counts_of_counts = Counter(self.counts[n].values())
        actual = (0.5, 1.0, 1.5)
        if all(counts_of_counts[i] for i in (1, 2, 3, 4)):
            y = counts_of_counts[1] / (counts_of_counts[1] + 2 * counts_of_counts[2])
            estimates = tuple(i - (i + 1) * y * counts_of_counts[i + 1] / counts_of_counts[i] for i in (1, 2, 3))
            if all(0 < d <= i for i, d in enumerate(estimates, start=1)):
                actual = estimates
        return actual[min(count, 3) - 1] if count else 0.0

    def probability(self, context: tuple[int, ...], character: int, n: int | None = None) -> float:
        n = min(self.order, len(context) + 1) if n is None else n
        if n == 0:
            return 1 / self.vocab_size
        context = context[len(context) - n + 1 :]
        backoff = self.probability(context[1:], character, n - 1)
        followers = {gram[-1]: count for gram, count in self.counts[n].items() if gram[:-1] == context}
        if not (total := sum(followers.values())):
            return backoff
        reserved_mass = sum(self.discount(n, count) for count in followers.values())
        own_count = followers.get(character, 0)
        return (own_count - self.discount(n, own_count) + reserved_mass * backoff) / total


@given(SMALL, SMALL, st.integers(1, 5))
def test_ngram_probabilities_equal_those_of_a_dictionary_of_counts(
    train: list[int], val: list[int], order: int
) -> None:
    reference = Reference(train, 4, order)
    model = KneserNey(np.array(train), 4, 5)
    if order < 5:  # a model of a lower order is what learning only that order gives
        assert np.array_equal(
            model.probabilities(np.array(val), [order])[order],
            KneserNey(np.array(train), 4, order).probabilities(np.array(val), [order])[order],
        )
    expected = [
        reference.probability(tuple(val[max(0, i - order + 1) : i]), character) for i, character in enumerate(val)
    ]
    assert model.probabilities(np.array(val), [order])[order].tolist() == pytest.approx(expected, rel=1e-9)


@given(SMALL, st.lists(st.integers(0, 5), max_size=7), st.integers(1, 8))
def test_after_any_context_the_probabilities_are_positive_and_sum_to_one(
    train: list[int], context: list[int], order: int
) -> None:
    model = KneserNey(np.array(train), 6, 8)
    probabilities = [model.probabilities(np.array([*context, character]), [order])[order][-1] for character in range(6)]
    assert min(probabilities) > 0
    assert sum(probabilities) == pytest.approx(1, abs=1e-12)


def test_estimated_discounts_are_used_where_there_is_enough_to_estimate_them_from() -> None:
    train = np.random.default_rng(0).zipf(1.5, 3000) % 9
    reference = Reference(train.tolist(), 9, 3)
    assert reference.discount(3, 1) not in (0.5, 0)
    val = np.random.default_rng(1).zipf(1.5, 40) % 9
    expected = [reference.probability(tuple(val[max(0, i - 2) : i].tolist()), int(c)) for i, c in enumerate(val)]
    actual = KneserNey(train, 9, 3).probabilities(val, [3])[3]
    assert actual.tolist() == pytest.approx(expected, rel=1e-9)


def test_an_alphabet_of_any_size_has_room_in_the_keys() -> None:
    text = np.arange(1_000_000, 1_000_040) % 1_100_000
    probabilities = KneserNey(text, 1_100_000, 8).probabilities(text, [8])[8]
    assert probabilities[8:].min() > 0.2  # it was all there


def test_the_baselines_are_the_bits_of_the_validation_text() -> None:
    text = prose(60)
    actual = look(text)
    alphabet = sorted(set(text))
    cut = int(0.9 * len(text))
    train, val = ([alphabet.index(c) for c in part] for part in (text[:cut], text[cut:]))
    for order in (1, 2, 3):
        reference = Reference(train, len(alphabet), order)
        bits = -sum(
            math.log2(reference.probability(tuple(val[max(0, i - order + 1) : i]), c)) for i, c in enumerate(val)
        )
        baseline = actual.baseline(ORDERS[order])
        assert baseline.bits_per_character == pytest.approx(bits / len(val), rel=1e-9)
        assert baseline.nats_per_character == pytest.approx(math.log(2) * baseline.bits_per_character)
    assert actual.baseline("uniform").bits_per_character == pytest.approx(math.log2(len(alphabet)))


def test_bits_per_byte_count_the_bytes_of_the_text() -> None:
    actual = look("αβγδ" * 500)
    for baseline in actual.baselines:
        assert baseline.bits_per_byte == pytest.approx(baseline.bits_per_character / 2)


def test_a_compressor_is_charged_for_what_validation_adds_to_training() -> None:
    single_text, doubled_text = prose(200), prose(200) * 2
    assert (
        look(doubled_text, 0.5).baseline("xz").bits_per_character
        < 0.1 * look(single_text, 0.5).baseline("xz").bits_per_character
    )


@given(st.lists(st.text("ab\n\r", max_size=12), min_size=1), st.data())
def test_line_facts_equal_those_of_a_split_whatever_the_pieces(chunks: list[str], data: st.DataObject) -> None:
    text = "".join(chunks)
    lengths = LineLengths()
    for chunk in chunks:
        if chunk:
            lengths.add(codes(chunk))
    *ended_lines, last_line = text.split("\n")
    lines = [line.removesuffix("\r") for line in ended_lines] + [last_line] * bool(last_line)
    sizes = sorted(map(len, lines))
    expected = LineStats(
        lines=len(lines),
        blank=sizes.count(0),
        median_length=sizes[(len(sizes) - 1) // 2] if sizes else 0,
        mean_length=sum(sizes) / len(sizes) if sizes else 0.0,
        longest=max(sizes, default=0),
        ends=len(re.findall("\r\n|\r|\n", text)),
        crlf=text.count("\r\n"),
        cr=len(re.findall("\r(?!\n)", text)),
    )
    assert lengths.stats() == expected


@given(st.text("ab", max_size=200), st.integers(1, 70))
def test_passages_hash_alike_exactly_if_they_are_alike_whatever_the_pieces(text: str, size: int) -> None:
    hasher = PassageHasher()
    actual = [hasher.add(codes(text[i : i + size])) for i in range(0, len(text), size)]
    offsets = [int(offset) for _, piece_places in actual for offset in piece_places]
    hashes = [int(value) for values, _ in actual for value in values]
    windows = [text[offset : offset + PASSAGE] for offset in offsets]
    assert all(len(window) == PASSAGE for window in windows)
    assert len(set(zip(windows, hashes, strict=True))) == len(set(windows)) == len(set(hashes))
    expected_places = [
        i
        for i in range(len(text) - PASSAGE + 1)
        if sum(a != b for a, b in zip(text[i:], text[i + 1 : i + 32], strict=False)) >= 16
    ]
    assert offsets == expected_places


def test_hashes_of_passages_are_spread_evenly_and_do_not_collide() -> None:
    random = np.random.default_rng(0)
    hashes = hash_windows(random.integers(97, 101, 1 << 18).astype(np.uint32))  # four letters only
    assert len(np.unique(hashes)) == len(hashes)
    for bit in range(64):
        assert np.mean(hashes >> np.uint64(bit) & np.uint64(1)) == pytest.approx(0.5, abs=0.01)


def test_a_sample_of_hashes_keeps_every_copy_of_what_it_keeps_and_stays_small() -> None:
    texts = [str(i % 7000) for i in range(10_000)]
    sample = HashPrefixSample(1000)
    for start in range(0, len(texts), 300):
        sample.add(hash_texts(texts[start : start + 300]), np.arange(start, min(start + 300, len(texts))))
    hashes, offsets = sample.arrays()
    assert sample.level > 0
    assert 300 < len(hashes) <= 1000
    kept_texts = {texts[offset] for offset in offsets}
    assert offsets.tolist() == [i for i, text in enumerate(texts) if text in kept_texts]
    assert 1 - len(np.unique(hashes)) / len(hashes) == pytest.approx(0.3, abs=0.06)


def test_a_sample_of_many_small_pieces_is_that_of_one_large_one() -> None:
    hashes = hash_texts(map(str, range(5000)))
    piecewise_sample, full_sample = HashPrefixSample(600), HashPrefixSample(600)
    for offset in range(5000):
        piecewise_sample.add(hashes[offset : offset + 1], np.array([offset]))
    full_sample.add(hashes, np.arange(5000))
    assert piecewise_sample.level == full_sample.level
    for piecewise_array, full_array in zip(piecewise_sample.arrays(), full_sample.arrays(), strict=True):
        assert np.array_equal(piecewise_array, full_array)


@given(st.lists(st.text("ab\n", min_size=1, max_size=30), min_size=1, max_size=8), st.integers(1, 17))
def test_blocks_are_the_documents_as_training_joins_them(texts: list[str], size: int) -> None:
    *first_texts, last_text = texts
    joined_text = "".join(text if text.endswith("\n") else f"{text}\n" for text in first_texts) + last_text
    if min(int(0.5 * len(joined_text)), len(joined_text) - int(0.5 * len(joined_text))) < 2:
        return
    text = split_corpus(texts, val_fraction=0.5)
    actual = list(text_blocks((data.decode() for _, data, _ in text.read(no_progress)), 0, size))
    assert "".join(actual) == joined_text
    assert all(len(block) == size for block in actual[:-1])


def test_a_sample_of_a_large_text_is_spread_over_it_bounded_and_has_its_end() -> None:
    sample = SystematicSample(1 << 20)
    for i in range(64):
        sample.add(chr(64 + i) * (1 << 18))
    end = 1 << 24
    assert sample.stride == 16
    assert set(sample.text(0, end - 1000)) > set("@DHLPTX")
    assert 100_000 < len(sample.text(0, end - 1000, 200_000)) <= 200_000
    assert sample.text(end - 1000, end) == chr(64 + 63) * 1000


@given(st.integers(0, 40), st.lists(st.text("ab", max_size=30)), st.integers(1, 17))
def test_blocks_end_at_multiples_of_their_size_wherever_they_start(start: int, texts: list[str], size: int) -> None:
    actual = list(text_blocks(texts, start, size))
    assert "".join(actual) == "".join(texts)
    ends = [start + sum(map(len, actual[: i + 1])) for i in range(len(actual))]
    assert all(end % size == 0 for end in ends[:-1])
    assert all(1 <= len(block) <= size for block in actual)


@pytest.mark.parametrize("limit", [1 << 17, 1 << 19, 1 << 24])
def test_a_sample_is_the_same_whatever_the_pieces(limit: int) -> None:
    text = prose(2000) * 30
    whole, piecewise = SystematicSample(limit), SystematicSample(limit)
    whole.add(text)
    sizes = np.random.default_rng(0).integers(1, 1 << 18, 100).cumsum().tolist()
    for start, end in zip([0, *sizes], sizes, strict=False):
        piecewise.add(text[start:end])
    assert (piecewise.characters, piecewise.stride) == (len(text), whole.stride)
    for start, end in ((0, len(text)), (100_000, 2_000_001), (len(text) - 70_000, len(text))):
        assert piecewise.text(start, end) == whole.text(start, end)
        assert piecewise.text(start, end, 200_000) == whole.text(start, end, 200_000)


def test_a_small_text_is_its_own_sample() -> None:
    sample = SystematicSample()
    text = prose(3000)
    sample.add(text)
    for start, end in ((0, 100_000), (100_000, len(text)), (0, len(text))):
        assert sample.text(start, end) == text[start:end]


def test_rare_and_invisible_characters_are_listed_with_code_point_name_and_count() -> None:
    actual = look("ab" * 50 + "\x07é\ufffd\u200b" + "c" * 4 + "d" * 5)
    rare_characters = {c.code_point: (c.name, c.count) for c in actual.rare}
    assert rare_characters["U+00E9"] == ("LATIN SMALL LETTER E WITH ACUTE", 1)
    assert rare_characters["U+0063"][1] == 4
    assert "U+0064" not in rare_characters
    assert [c.code_point for c in actual.invisible] == ["U+0007", "U+200B", "U+FFFD"]


@given(st.text(min_size=4))
def test_counts_of_characters_and_bytes_are_those_of_python(text: str) -> None:
    text = text.encode(errors="ignore").decode() + "abcd"
    actual = look(text, 0.4)
    assert (actual.characters, actual.bytes, actual.distinct_characters) == (
        len(text),
        len(text.encode()),
        len(set(text)),
    )


def test_a_leak_is_measured_as_the_share_that_was_planted() -> None:
    train, fresh_text = prose(900, seed=1), prose(50, seed=2)
    leaked_text = "".join(line + "\n" for line in train.splitlines()[100:150])
    actual = look(train + fresh_text + leaked_text, 1 - len(train) / len(train + fresh_text + leaked_text))
    assert actual.leak.passages.share == pytest.approx(0.5, abs=0.02)
    assert (actual.leak.lines.compared, actual.leak.lines.copies) == (100, 50)
    assert actual.duplicate_lines.copies == 50
    assert actual.leak.longest[0].text.strip() == leaked_text.strip()
    assert any("also occur in the training text" in sentence for sentence in advise(actual))


def test_near_copies_count_as_far_as_they_are_alike() -> None:
    train = prose(900, seed=1)
    copied_lines = train.splitlines()[100:200]
    changed_text = "".join(f"{line[:20]}#{line[21:]}\n" for line in copied_lines)
    actual = look(train + changed_text, 1 - len(train) / len(train + changed_text))
    assert actual.leak.lines.copies == 0
    line = len(copied_lines[0]) + 1
    assert actual.leak.passages.share == pytest.approx((line - PASSAGE) / line, abs=0.03)


def test_characters_that_only_validation_has_are_named(run: Run) -> None:
    Path("text.txt").write_text(prose(100) + "ж" + "я" * 3)
    assert "2 characters only in the validation text: 'ж' 'я'" in run("text.txt").stdout


def test_a_text_of_one_character_has_nothing_to_tell_and_is_told_so() -> None:
    assert [b.bits_per_character for b in look("a" * 1000).baselines if "gram" in b.name] == [0.0] * 5


def test_a_leak_in_a_large_text_is_estimated_from_a_sample_of_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    train, fresh_text = prose(900, seed=1), prose(50, seed=2)
    leaked_text = "".join(line + "\n" for line in train.splitlines()[100:150])
    text = train + fresh_text + leaked_text
    monkeypatch.setattr(inspection, "HASHES", 8000)
    actual = look(text, 1 - len(train) / len(text))
    assert actual.compared_share < 1
    assert actual.leak.passages.compared < 8000
    assert actual.leak.passages.share == pytest.approx(0.5, abs=0.12)
    assert actual.leak.longest == ()


def test_rows_of_dashes_and_short_lines_are_no_leak() -> None:
    rule = "-" * 70 + "\n" + " " * 40 + "x\n" + "ROMEO:\n"
    text = "".join(rule + line + "\n" for line in prose(200).splitlines())
    assert look(text).leak.lines.copies == 0
    assert look(text).leak.passages.share < 0.01


@pytest.mark.parametrize("ending", ["", "ß€\x07" * 300])
def test_what_is_kept_for_the_test_is_not_looked_at(ending: str) -> None:
    text = prose(300)
    text = text[: len(text) // 10 * 10]
    fraction = (len(text) // 4 + len(ending)) / (len(text) + len(ending))
    report = inspect_text(split_corpus([text + ending], val_fraction=0.25, test_fraction=fraction), no_progress)
    visible_text = text[: report.characters]
    assert len(visible_text) == report.train_characters + report.val_characters < len(text)
    assert report == look(visible_text, report.val_characters / len(visible_text))


def test_a_leak_is_measured_between_the_documents_that_train_and_those_that_validate() -> None:
    own_texts = [prose(20, seed=n) for n in range(40)]
    shared_text = prose(20, seed=99)
    actual = inspect_text(
        split_corpus([text + shared_text for text in own_texts], split="documents", val_fraction=0.25), no_progress
    )
    clean_report = inspect_text(split_corpus(own_texts, split="documents", val_fraction=0.25), no_progress)
    assert (actual.documents, actual.duplicate_documents.copies) == (40, 0)
    assert 0.45 < actual.leak.passages.share < 0.55
    assert clean_report.leak.passages.share < 0.01


@pytest.mark.parametrize("split", ["documents", "files"])
def test_the_last_line_that_trains_and_the_first_that_validates_are_two(split: str) -> None:
    texts = [f"line number {n}" for n in range(1, 6)]
    stats = inspect_text(split_corpus(texts, split=split, val_fraction=0.4), no_progress).lines
    assert (stats.lines, stats.longest) == (5, len(texts[0]))
    assert stats == inspect_text(split_corpus(texts, split="characters", val_fraction=0.4), no_progress).lines


def test_copies_of_documents_and_of_lines_are_counted_and_shown() -> None:
    first, second = prose(5, seed=3), prose(5, seed=4)
    actual = look([first, second, first])
    assert (actual.duplicate_documents.compared, actual.duplicate_documents.copies) == (3, 1)
    assert (actual.duplicate_lines.compared, actual.duplicate_lines.copies) == (15, 5)
    assert {line.text for line in actual.repeated} == set(first.splitlines())
    assert all(line.count == 2 for line in actual.repeated)


def test_the_size_of_a_block_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f"{line}\r\n" for line in (prose(1500) + prose(30)).splitlines())
    report = look(text)
    monkeypatch.setattr(inspection, "text_blocks", lambda pieces, start: text_blocks(pieces, start, text_sample.PART))
    assert look(text) == report
    assert report.lines.crlf == 1530


def test_a_carriage_return_and_a_newline_of_two_splits_are_two_line_ends() -> None:
    lengths = LineLengths()
    lengths.add(codes("ab\r"))
    lengths.end_line()
    lengths.add(codes("\ncd\n"))
    stats = lengths.stats()
    assert (stats.ends, stats.cr, stats.crlf, stats.lines, stats.blank) == (3, 1, 0, 3, 1)


def test_a_text_without_line_ends_is_read_in_bounded_pieces() -> None:
    actual = look("abcdefghij klmnop " * 80_000)
    assert actual.lines.lines == 1
    assert actual.lines.longest == actual.characters == 1_440_000


def test_text_passes_through_a_sample_unchanged_and_cut_where_training_cuts() -> None:
    text = prose(300)
    pieces = [(split, data.decode()) for split, data, _ in split_corpus([text], val_fraction=0.25).read(no_progress)]
    sample = SystematicSample()
    for block in text_blocks(piece for _, piece in pieces):
        sample.add(block)
    cut = int(0.75 * len(text))
    assert sum(len(piece) for split, piece in pieces if split == "train") == cut
    assert (sample.text(0, cut), sample.text(cut, sample.characters)) == (text[:cut], text[cut:])
    large = SystematicSample(1 << 20)
    for _ in range(40):
        large.add("x" * (1 << 17))
    assert len(large.text(0, 40 << 17)) < (1 << 20) + (1 << 20)


def test_a_large_text_is_measured_on_a_sample_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "LEARN", 1 << 17)
    text = prose(8000)
    actual = look(text)
    assert actual.learned_on <= 1 << 17 < actual.train_characters
    assert actual.measured_on == actual.val_characters
    assert actual.characters == len(text)


def test_a_sound_text_needs_no_mending_and_a_good_loss_is_named() -> None:
    actual = look(prose(5000))
    advice = advise(actual)
    lowest_bits = min(baseline.bits_per_character for baseline in actual.baselines)
    assert f"below {lowest_bits * math.log(2):.2f} nats" in advice[0]
    assert advice[1:] == ["No problems found."]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ab\r\n" * 60_000, "60,000 of 60,000 line ends are a carriage return and newline"),
        ("ab\r" * 60_000 + "ab\n" * 40, "60,000 of 60,040 line ends are a carriage return alone"),
        ("ab\ufffd" * 80_000, "could not be decoded"),
        ("ab\u200b" * 80_000, "invisible characters"),
        ("abc\n" * 60_000 + "é", "too few to train a token"),
        ("".join(map(chr, range(0x4E00, 0x5200))) * 200, "BPE suit"),
        (prose(100), "memorises them"),
    ],
)
def test_each_oddity_gets_its_sentence(text: str, message: str) -> None:
    assert any(message in sentence for sentence in advise(look(text)))


def test_a_text_too_small_to_split_is_one_clear_error() -> None:
    for text in ("", "a", "abc"):
        with pytest.raises(UserError, match="too small to split"):
            look(text)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`gpt data inspect` in this process, in a directory that holds text.txt."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(prose(300) + "\x1b[31m é\n")

    return in_process(capsys, "data", "inspect")


def test_the_tables_show_facts_baselines_and_advice_and_never_drive_the_terminal(run: Run) -> None:
    answer = run("text.txt")
    assert (answer.rc, answer.stderr) == (0, "")
    assert "\x1b" not in answer.stdout
    for fragment in ("'\\x1b'", "U+001B", "U+00E9", "latin small letter e with acute", "8-gram", "xz", "- A good loss"):
        assert fragment in answer.stdout


@pytest.mark.parametrize("options", [[], ["--window", "0"]])
def test_looking_at_a_text_loads_neither_torch_nor_matplotlib(options: list[str], tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(prose(50))
    program = (
        "import sys; from gpt_cli.cli.main import main; code = main(sys.argv[1:]);"
        " sys.exit(code or len({'torch', 'matplotlib'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program, "data", "inspect", str(tmp_path / "text.txt"), *options]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT, timeout=HANG)


def test_json_is_one_object_with_every_figure(run: Run) -> None:
    actual = json.loads(run("text.txt", "--json", "--val-fraction", "0.2").stdout)
    assert actual["corpus"] == ["text.txt"]
    assert actual["val_characters"] == pytest.approx(0.2 * actual["characters"], abs=1)
    assert {b["name"] for b in actual["baselines"]} == {"uniform", *ORDERS.values(), "zlib", "xz"}
    assert {"rare", "invisible", "leak", "lines", "duplicate_lines", "repeated", "advice"} <= set(actual)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere.txt"], 2, "does not exist"),
        (["empty.txt"], 1, "empty"),
        (["tiny.txt"], 1, "too small to split"),
        (["text.txt", "--val-fraction", "1"], 2, "--val-fraction must be below 1"),
        ([], 2, "CORPUS"),
        (["text.txt", ""], 2, "must not be empty"),
        (["store"], 2, "token store"),
    ],
)
def test_bad_input_is_one_error_line(run: Run, arguments: list[str], code: int, message: str) -> None:
    Path("empty.txt").touch()
    Path("tiny.txt").write_text("ab")
    Path("store").mkdir()
    Path("store/tokens.json").touch()
    answer = run(*arguments)
    assert (answer.rc, answer.stdout) == (code, "")
    assert answer.stderr.startswith("error: ")
    assert message.lower() in answer.stderr.lower()


def test_on_tiny_shakespeare_the_known_split_is_measured(shared_data: Path) -> None:
    text = (shared_data / "shakespeare.txt").read_text()
    actual = look(text)
    assert (actual.train_characters, actual.val_characters) == (1_003_854, 111_540)
    assert [c.character for c in actual.rare] == ["$", "&"]
    assert actual.leak.passages.copies == 0
    assert actual.baseline("8-gram").bits_per_character == pytest.approx(2.1918, abs=0.001)
