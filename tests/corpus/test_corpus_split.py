"""Every character falls into one split, once (or as often as its weight says), wherever blocks end."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_cli.config.schema import DataConfig, TokenizerConfig
from gpt_cli.corpus import blocks as blocks_module
from gpt_cli.corpus import encode as encode_module
from gpt_cli.corpus.blocks import SPLITS, CorpusText, SourceFile, SplitBlock
from gpt_cli.corpus.decoding import Notify
from gpt_cli.corpus.encode import CutRule, batches, encode_stream, encode_texts
from gpt_cli.corpus.readers import Stream, TextFile
from gpt_cli.corpus.scan import CorpusStats, scan
from gpt_cli.corpus.split import SplitPlan, split_blocks
from gpt_cli.errors import UserError
from gpt_cli.literals import Pattern
from gpt_cli.tokenizer import BPETokenizer, ByteTokenizer, CharTokenizer, train_tokenizer
from gpt_cli.tokenizer.bpe_vocabulary import END_OF_TEXT
from gpt_cli.tokenizer.pretokenizer import RULES, last_safe_split

END = "\0"  # stands for the end of text
DEFAULT_CONFIG = DataConfig()

document_lists = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=6)
file_lists = st.lists(document_lists, min_size=1, max_size=4)
fractions = st.sampled_from([0.1, 0.25, 0.5])


def file_of(documents: list[str], name: str) -> TextFile:
    def read(_note: Notify) -> Iterator[Stream]:
        for number, document in enumerate(documents):
            chunks = [document[:3], document[3:]] if len(document) > 3 else [document]
            yield f"{name}:{number}", [chunk.encode() for chunk in chunks]

    return TextFile(name, None, read)


def text_of(files: list[list[str]], weights: list[int] | None = None, validates: int = 0) -> CorpusText:
    weights = weights or [1] * len(files)
    members = [
        SourceFile(file_of(documents, str(number)), weight, number >= len(files) - validates)
        for number, (documents, weight) in enumerate(zip(files, weights, strict=True))
    ]
    return CorpusText(members, pytest.fail)


def look(text: CorpusText, data: DataConfig, end_lines: bool) -> tuple[CorpusStats, SplitPlan]:
    actual = scan(text, end_lines=end_lines, progress=lambda *_: None)
    return actual, SplitPlan.of(data, actual)


def divide(text: CorpusText, data: DataConfig, *, end_lines: bool, block: int = 5) -> dict[str, str]:
    """What each split says, with END where an end of text stands; UserError becomes an empty dict."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks_module, "BLOCK", block)
        patch.setattr(encode_module, "BLOCK", 2 * block)
        try:
            actual, borders = look(text, data, end_lines)
        except UserError:
            return {}
        split_texts: dict[str, str] = {}
        for batch in batches(split_blocks(text, borders, actual, end_lines=end_lines), CutRule()):
            for part in batch.blocks:
                end = END if part.followed and not end_lines else ""
                split_texts[batch.split] = split_texts.get(batch.split, "") + part.text + end
    return split_texts


def reference(documents: list[str], cuts: tuple[int, int], end: str) -> dict[str, str]:
    """The definition: every character with its place, `end` after each document but the last."""
    split_texts = dict.fromkeys(SPLITS, "")
    position = 0
    for number, document in enumerate(documents, start=1):
        for character in document:
            split = SPLITS[(position >= cuts[0]) + (position >= cuts[1])]
            split_texts[split] += character
            position += 1
        if number < len(documents):
            split_texts[split] += end
    return {split: text for split, text in split_texts.items() if text}


@given(file_lists, fractions, st.sampled_from([0.0, 0.1, 0.3]), st.integers(1, 9))
def test_by_characters_the_text_is_cut_once_in_order(
    files: list[list[str]], val_fraction: float, test_fraction: float, block: int
) -> None:
    data = DataConfig(val_fraction=val_fraction, test_fraction=test_fraction)
    documents = [document for file in files for document in file]
    size = sum(map(len, documents))
    cuts = int((1 - val_fraction - test_fraction) * size), int((1 - test_fraction) * size)
    if actual := divide(text_of(files), data, end_lines=False, block=block):
        assert actual == reference(documents, cuts, END)


@given(file_lists, fractions)
def test_without_an_end_of_text_a_newline_keeps_documents_apart(files: list[list[str]], val_fraction: float) -> None:
    documents = [document for file in files for document in file]
    ended_documents = [document if document.endswith("\n") else document + "\n" for document in documents]
    joined_text = "".join([*ended_documents[:-1], documents[-1]])
    if actual := divide(text_of(files), DataConfig(val_fraction=val_fraction), end_lines=True):
        cut = int((1 - val_fraction) * len(joined_text))
        assert actual == {"train": joined_text[:cut], "val": joined_text[cut:]}


@given(file_lists, fractions, st.sampled_from([0.0, 0.25]), st.randoms(use_true_random=False))
def test_by_documents_each_is_whole_in_the_split_that_its_content_decides(
    files: list[list[str]], val_fraction: float, test_fraction: float, order: object
) -> None:
    data = DataConfig(split="documents", val_fraction=val_fraction, test_fraction=test_fraction)
    all_documents = [document for file in files for document in file]
    shuffled_documents = list(all_documents)
    order.shuffle(shuffled_documents)  # type: ignore[attr-defined]
    results: list[dict[str, set[str]]] = []
    for documents in (all_documents, shuffled_documents):
        text = text_of([documents])
        try:
            actual, borders = look(text, data, False)
        except UserError:
            assert len(set(all_documents)) <= 2 + bool(test_fraction)
            return
        splits: dict[str, set[str]] = {split: set() for split in SPLITS}
        for stretch in split_blocks(text, borders, actual, end_lines=False):
            assert stretch.starts
            assert stretch.ends
            splits[stretch.split].add(stretch.text)
        results.append(splits)
    assert results[0] == results[1]
    assert sum(map(len, results[0].values())) == len(set(all_documents))  # equal documents are in one split
    assert results[0]["train"]
    assert results[0]["val"]
    assert bool(results[0]["test"]) == bool(test_fraction)


@given(st.lists(document_lists, min_size=3, max_size=6, unique_by=tuple))
def test_by_files_no_file_is_divided(files: list[list[str]]) -> None:
    text = text_of(files)
    actual, borders = look(text, DataConfig(split="files", val_fraction=0.3), False)
    file_splits = [SPLITS[unit] for unit in borders.units]
    expected = {
        split: [d for file, s in zip(files, file_splits, strict=True) if s == split for d in file] for split in SPLITS
    }
    read_documents: dict[str, list[str]] = {split: [] for split in SPLITS}
    for stretch in split_blocks(text, borders, actual, end_lines=False):
        read_documents[stretch.split].append(stretch.text)
    assert read_documents == expected


@given(file_lists, st.lists(st.integers(1, 3), min_size=4, max_size=4), fractions)
def test_a_weight_repeats_training_text_and_leaves_the_rest_alone(
    files: list[list[str]], weights: list[int], val_fraction: float
) -> None:
    data = DataConfig(val_fraction=val_fraction)
    if not (unweighted := divide(text_of(files), data, end_lines=False)):
        return
    weighted = divide(text_of(files, weights[: len(files)]), data, end_lines=False)
    assert weighted["val"] == unweighted["val"]
    expected: list[str] = []
    n_remaining = int((1 - val_fraction) * sum(len(document) for file in files for document in file))
    for file, weight in zip(files, weights, strict=False):
        train_parts: list[str] = []
        for document in file:
            train_parts += [document[:n_remaining]] if n_remaining else []
            n_remaining = max(0, n_remaining - len(document))
        expected += train_parts * weight
    assert [text for text in weighted["train"].split(END) if text] == [p for d in expected for p in d.split(END) if p]


def test_repetitions_are_kept_apart() -> None:
    data = DataConfig(val_fraction=0.5)
    assert divide(text_of([["abcdef"]], [3]), data, end_lines=False) == {"train": f"abc{END}abc{END}abc", "val": "def"}
    assert divide(text_of([["abcdef"]], [3]), data, end_lines=True) == {"train": "abc\nabc\nabc", "val": "def"}


@given(file_lists, document_lists, st.sampled_from([0.0, 0.25]))
def test_a_val_source_validates_whole_and_nothing_else_does(
    files: list[list[str]], validates: list[str], test_fraction: float
) -> None:
    data = DataConfig(val_source="x", test_fraction=test_fraction)
    if actual := divide(text_of([*files, validates], validates=1), data, end_lines=False):
        assert actual["val"] == END.join(validates)
        assert actual["train"] + actual.get("test", "") == END.join(d for file in files for d in file) or test_fraction


@given(file_lists)
def test_a_fingerprint_knows_where_texts_end_but_not_what_they_are_called(files: list[list[str]]) -> None:
    def fingerprint(files: list[list[str]], validates: int = 0) -> str:
        return scan(text_of(files, validates=validates), end_lines=True, progress=lambda *_: None).fingerprint

    all_documents = [document for file in files for document in file]
    assert fingerprint(files) == fingerprint([all_documents]) == fingerprint([[d] for d in all_documents])
    assert (
        fingerprint([all_documents])
        != fingerprint([all_documents, ["x"]])
        != fingerprint([all_documents, ["x"]], validates=1)
    )
    assert len(all_documents) == 1 or fingerprint([all_documents]) != fingerprint([["".join(all_documents)]])


def test_a_text_that_changes_between_two_readings_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "CACHE_BYTES", 0)
    documents = ["once upon a time", "there was"]
    text = text_of([documents])
    actual, borders = look(text, DEFAULT_CONFIG, True)
    for changed_documents in (["once upon a time", "there is"], documents[:1], [*documents, "and is"]):
        with pytest.raises(UserError, match="changed while it was read"):
            list(split_blocks(text_of([changed_documents]), borders, actual, end_lines=True))


WORDS = "the cat sat on the mat, and the rat's 12345 ran;\n\n  it's a tab\t\r\n'LL be   spaces \u3000 wide\n"
BPE = {
    pattern: train_tokenizer(
        [WORDS * 20], TokenizerConfig.model_validate({"kind": "bpe", "vocab_size": 290, "pattern": pattern})
    )
    for pattern in RULES
}
boundary_text = st.lists(
    st.sampled_from(
        [
            " ",
            "  ",
            "\n",
            "\r\n",
            "\t",
            "'",
            "'s",
            "the",
            "Cat",
            "12",
            "345",
            ";",
            "!!",
            "//",
            "\u3000",
            "é",
            "世界",
            END_OF_TEXT,
        ]
    ),
    max_size=40,
).map("".join)


@settings(max_examples=300)
@given(boundary_text, boundary_text, st.sampled_from(sorted(RULES)), st.booleans())
def test_where_a_text_is_cut_changes_no_id_whatever_follows(
    text: str, suffix: str, pattern: Pattern, special: bool
) -> None:
    bpe = BPE[pattern]
    cut = last_safe_split(text, pattern)
    ids = [bpe.encode(half, allow_special=special) for half in (text[:cut], text[cut:] + suffix)]
    assert np.concatenate(ids).tolist() == bpe.encode(text + suffix, allow_special=special).tolist()


@given(
    st.lists(boundary_text.filter(bool), min_size=1, max_size=5),
    st.sampled_from(sorted(RULES)),
    st.integers(1, 30),
    st.booleans(),
)
def test_the_ids_of_segments_are_those_of_whole_documents(
    documents: list[str], pattern: Pattern, block: int, special: bool
) -> None:
    bpe = BPE[pattern]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks_module, "BLOCK", block)
        patch.setattr(encode_module, "BLOCK", block)
        text = text_of([documents])
        data = DataConfig(val_source="none", split="characters")
        try:
            actual, borders = look(text, data, False)
        except UserError:
            return
        ids: list[int] = []
        rule = CutRule(bpe.vocabulary.pattern)  # type: ignore[attr-defined]
        for batch in batches(split_blocks(text, borders, actual, end_lines=False), rule):
            texts = [part.data for part in batch.blocks]
            followed = [part.followed for part in batch.blocks]
            ids += encode_texts(bpe, texts, [False] * len(texts), followed, special)[0].tolist()
    encoded = [bpe.encode(document, allow_special=special).tolist() for document in documents]
    expected = [id for document in encoded for id in [*document, bpe.eot_id]]
    assert ids == expected[:-1]


@given(st.lists(boundary_text, max_size=8), st.sampled_from(sorted(RULES)))
def test_the_ids_of_a_stream_are_those_of_the_whole_text(chunks: list[str], pattern: Pattern) -> None:
    text = "".join(chunks)
    for tokenizer in (BPE[pattern], CharTokenizer("".join(sorted({*text, "a"}))), ByteTokenizer()):
        assert encode_stream(tokenizer, iter(chunks)).tolist() == tokenizer.encode(text).tolist()


SPACED_TOKENS = ("<a b>", "b> c", "<|end of\n text|>", "b", END_OF_TEXT)


def spaced_tokenizer(pattern: Pattern) -> BPETokenizer:
    """Special tokens with white space in them, that overlap each other, and one that is in another."""
    vocabulary = BPE[pattern].vocabulary  # type: ignore[attr-defined]
    texts = [text.encode() for text in SPACED_TOKENS if text != END_OF_TEXT]
    new_ids = range(len(vocabulary.tokens), len(vocabulary.tokens) + len(texts))
    tokens = (*vocabulary.tokens, *texts)
    return BPETokenizer(replace(vocabulary, tokens=tokens, special=vocabulary.special | set(new_ids)))


@settings(max_examples=300)
@given(
    st.lists(
        st.sampled_from([*SPACED_TOKENS, "<a ", "b>", " c", "<|end", " of\n", "text|>", "the", " ", "\n", "!", "世"]),
        max_size=30,
    ).map("".join),
    st.sampled_from(sorted(RULES)),
    st.integers(1, 30),
    st.integers(8, 60),
)
def test_no_segment_ends_inside_a_special_token(text: str, pattern: Pattern, block: int, longest_word: int) -> None:
    bpe = SPACED_BPE[pattern]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode_module, "BLOCK", block)
        parts = [text[i : i + block] for i in range(0, len(text), block)]
        blocks = [
            SplitBlock("train", part.encode(), number == 0, is_last, is_last)
            for number, part in enumerate(parts)
            for is_last in [number + 1 == len(parts)]
        ]
        cut_batches = list(batches(blocks, CutRule(pattern, SPACED_TOKENS)))
        patch.setattr(encode_module, "LONGEST_WORD", longest_word)
        forced_batches = list(batches(blocks, CutRule(pattern, SPACED_TOKENS)))
    expected_ids = bpe.encode(text, allow_special=True).tolist()
    texts = [part.text for batch in cut_batches for part in batch.blocks]
    assert "".join(texts) == text
    assert [id for part in texts for id in bpe.encode(part, allow_special=True).tolist()] == expected_ids
    # A text that is cut anyway, for want of white space, keeps its special tokens.
    texts = [part.text for batch in forced_batches for part in batch.blocks]
    ids = [id for part in texts for id in bpe.encode(part, allow_special=True).tolist()]
    special = bpe.vocabulary.special
    assert [id for id in ids if id in special] == [id for id in expected_ids if id in special]


SPACED_BPE = {pattern: spaced_tokenizer(pattern) for pattern in RULES}
