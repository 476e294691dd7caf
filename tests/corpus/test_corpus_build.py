"""Tokens are the text: all of it, in order, split where the fraction says, made once."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt_cli.config.schema import DataConfig, TokenizerConfig
from gpt_cli.corpus import tokenize_pipeline
from gpt_cli.corpus.prepare import Corpus, prepare_corpus, tokenize_corpus
from gpt_cli.corpus.store import TokenStore
from gpt_cli.errors import RequestError, UserError
from gpt_cli.files import cache_dir
from gpt_cli.tokenizer import BPETokenizer, CharTokenizer
from gpt_cli.tokenizer.bpe_vocabulary import Vocabulary

ENGLISH = "".join(f"Once upon a time there were {n} mice, and the {n}th of them lived in a shoe.\n" for n in range(300))
CHAR = TokenizerConfig(kind="char")
BPE = TokenizerConfig(kind="bpe", vocab_size=300)
KINDS = pytest.mark.parametrize("tokenizer", [CHAR, TokenizerConfig(kind="byte"), BPE], ids=lambda config: config.kind)


@pytest.fixture
def english_file(tmp_path: Path) -> Path:
    path = tmp_path / "english.txt"
    path.write_text(ENGLISH)
    return path


def prepare(source: str | Path | list[str], tokenizer: TokenizerConfig = CHAR, **options: Any) -> Corpus:
    val_fraction = options.pop("val_fraction", 0.1)
    data = DataConfig(source=source if isinstance(source, list) else str(source), val_fraction=val_fraction)
    return prepare_corpus(data, tokenizer, **{"note": pytest.fail, **options})


def write(path: Path, source: Path, tokenizer: TokenizerConfig = CHAR) -> None:
    tokenize_corpus(path, DataConfig(source=str(source)), tokenizer, note=pytest.fail)


def entries() -> list[Path]:
    return sorted((cache_dir() / "stores").glob("*"))


# The split


def test_tiny_shakespeare_is_split_where_all_published_figures_split_it(shared_data: Path) -> None:
    corpus = prepare(shared_data / "shakespeare.txt")
    assert (len(corpus.train), len(corpus.val)) == (1_003_854, 111_540)
    assert corpus.tokenizer.vocab_size == 65


# Tokens


@KINDS
def test_the_tokens_decode_to_the_text(english_file: Path, tokenizer: TokenizerConfig) -> None:
    corpus = prepare(english_file, tokenizer)
    assert corpus.tokenizer.decode(corpus.train) + corpus.tokenizer.decode(corpus.val) == ENGLISH
    assert corpus.source == str(english_file)


@KINDS
def test_the_facts_are_those_of_the_text(tmp_path: Path, tokenizer: TokenizerConfig) -> None:
    (tmp_path / "x.txt").write_text(ENGLISH.replace("mice", "Mäuse"), encoding="utf-8")
    corpus = prepare(tmp_path / "x.txt", tokenizer)
    for split, ids in (("train", corpus.train), ("val", corpus.val)):
        text = corpus.tokenizer.decode(ids)
        facts = corpus.stats[split]  # type: ignore[index]
        assert (facts.characters, facts.bytes, facts.tokens) == (len(text), len(text.encode()), len(ids))
        assert (facts.documents, facts.document_starts) == (1, (0,))


def test_between_documents_stands_the_end_of_text_and_nowhere_else(tmp_path: Path) -> None:
    names = []
    for number, text in enumerate((ENGLISH, "<|endoftext|> is only text here", ENGLISH)):
        (tmp_path / f"{number}.txt").write_text(text)
        names.append(str(tmp_path / f"{number}.txt"))
    corpus = prepare(names, BPE)
    end = corpus.tokenizer.eot_id
    assert np.flatnonzero(corpus.train == end).tolist() == [
        start - 1 for start in corpus.stats["train"].document_starts[1:]
    ]
    assert end not in corpus.val
    decoded_text = corpus.tokenizer.decode(corpus.train) + corpus.tokenizer.decode(corpus.val)
    assert decoded_text == f"{ENGLISH}<|endoftext|><|endoftext|> is only text here<|endoftext|>{ENGLISH}"


@pytest.mark.parametrize("kind", ["char", "byte"])
def test_without_an_end_of_text_a_newline_stands_between_documents(tmp_path: Path, kind: str) -> None:
    for name, text in (("1", "no newline"), ("2", "newline\n"), ("3", "last")):
        (tmp_path / name).write_text(text)
    corpus = prepare(tmp_path, TokenizerConfig.model_validate({"kind": kind}))
    decoded_text = corpus.tokenizer.decode(corpus.train) + corpus.tokenizer.decode(corpus.val)
    assert decoded_text == "no newline\nnewline\nlast"
    assert corpus.stats["train"].document_starts.tolist() == [0, 11, 19]


def test_text_that_reads_like_the_end_of_text_is_it_where_the_config_allows_it(tmp_path: Path) -> None:
    (tmp_path / "stories.txt").write_text(f"{ENGLISH}<|endoftext|>{ENGLISH}")
    prepare(tmp_path / "stories.txt", BPE).tokenizer.save(tmp_path / "tokenizer.json")
    for config in (BPE, TokenizerConfig(kind="bpe", file=str(tmp_path / "tokenizer.json"))):
        for allow_special in (False, True):  # not taken from each other's place in the cache
            corpus = prepare(tmp_path / "stories.txt", config.model_copy(update={"allow_special": allow_special}))
            assert (corpus.train == corpus.tokenizer.eot_id).sum() == allow_special


SIZES = pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 70_000])


@SIZES
def test_every_id_of_a_large_alphabet_survives_from_text_to_store(tmp_path: Path, size: int) -> None:
    characters = "".join(chr(code) for code in range(1, 0x12000) if not 0xD800 <= code < 0xE000 and code != 0xFEFF)[
        :size
    ]
    tokenizer = CharTokenizer(characters)
    tokenizer.save(tmp_path / "tokenizer.json")
    (tmp_path / "text.txt").write_bytes((characters + characters[:0:-1]).encode())
    config = TokenizerConfig(kind="char", file=str(tmp_path / "tokenizer.json"))
    write(tmp_path / "store", tmp_path / "text.txt", config)
    store = TokenStore.open(tmp_path / "store")
    ids = np.concatenate([store.tokens("train"), store.tokens("val")])
    assert ids.dtype == (np.uint16 if size <= 65_536 else np.uint32)
    assert np.array_equal(ids, [*range(size), *range(size - 1, 0, -1)])


@pytest.mark.parametrize("size", [65_536, 65_537])
def test_the_last_id_of_a_large_bpe_ends_documents_in_the_store(tmp_path: Path, size: int) -> None:
    pairs = [(left, right) for left in range(256) for right in range(256)]
    pairs += [(left, right) for left in range(256) for right in range(256, 300)]
    merges = tuple((left, right, 256 + i) for i, (left, right) in enumerate(pairs[: size - 257]))
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [bytes([left, right]) for left, right in pairs[:65_536]]
    tokens += [tokens[left] + tokens[right] for left, right in pairs[65_536:]]
    vocabulary = Vocabulary((*tokens[: size - 1], b"<|endoftext|>"), merges, frozenset({size - 1}), "gpt2")
    BPETokenizer(vocabulary).save(tmp_path / "tokenizer.json")
    for name in ("1.txt", "2.txt"):
        (tmp_path / name).write_text(ENGLISH + "\u07ff")
    config = TokenizerConfig(kind="bpe", file=str(tmp_path / "tokenizer.json"))
    write(tmp_path / "store", tmp_path / "[12].txt", config)
    store = TokenStore.open(tmp_path / "store")
    assert np.flatnonzero(store.tokens("train") == size - 1).tolist() == [store.stats["train"].document_starts[1] - 1]
    assert store.tokenizer.decode(store.tokens("train")).count("<|endoftext|>") == 1


def test_bpe_learns_nothing_from_the_validation_text(tmp_path: Path, english_file: Path) -> None:
    cut = int(0.9 * len(ENGLISH))
    (tmp_path / "other.txt").write_text(ENGLISH[:cut] + "z" * (len(ENGLISH) - cut))
    assert prepare(english_file, BPE).tokenizer == prepare(tmp_path / "other.txt", BPE).tokenizer


def test_the_alphabet_is_that_of_the_whole_text(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("a" * 95 + "only the end has these")
    assert prepare(tmp_path / "x.txt").tokenizer == CharTokenizer("".join(sorted(set("a" + "only the end has these"))))


def test_a_ready_tokenizer_is_taken_and_must_know_the_text(english_file: Path, tmp_path: Path) -> None:
    CharTokenizer("".join(sorted({*ENGLISH, "ß"}))).save(tmp_path / "wide.json")
    assert "ß" in prepare(
        english_file, TokenizerConfig(kind="char", file=str(tmp_path / "wide.json"))
    ).tokenizer.decode(range(len(set(ENGLISH)) + 1))
    CharTokenizer("abc").save(tmp_path / "narrow.json")
    with pytest.raises(RequestError, match="the vocabulary lacks"):
        prepare(english_file, TokenizerConfig(kind="char", file=str(tmp_path / "narrow.json")))
    with pytest.raises(RequestError, match="does not exist"):
        prepare(english_file, TokenizerConfig(kind="char", file=str(tmp_path / "nowhere.json")))


@KINDS
@pytest.mark.parametrize("text", ["a", "ab", "abc", "äöü"])
def test_a_text_too_small_to_split_is_refused(tmp_path: Path, text: str, tokenizer: TokenizerConfig) -> None:
    (tmp_path / "x.txt").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="too small to split"):
        prepare(tmp_path / "x.txt", tokenizer)


def test_a_vocabulary_out_of_reach_is_refused_and_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("a few words only, but enough to split")
    with pytest.raises(RequestError, match="out of reach"):
        prepare(tmp_path / "x.txt", TokenizerConfig(kind="bpe", vocab_size=5000))
    assert entries() == []


def test_progress_ends_with_every_character(english_file: Path) -> None:
    reports: list[tuple[str, int, int]] = []
    prepare(english_file, progress=lambda *report: reports.append(report))
    assert reports == [(stage, len(ENGLISH), len(ENGLISH)) for stage in ("reading", "encoding")]


@pytest.mark.parametrize("source", ["x" * 5000, "\0", "~nobody/x", "~"])
def test_a_source_that_is_no_path_is_refused_in_words(source: str) -> None:
    with pytest.raises(UserError):
        prepare(source, cache=False)


# The cache


def forbid_tokenizing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenize_pipeline, "train_tokenizer", lambda *_: pytest.fail("tokenized again"))


@KINDS
def test_the_second_time_the_tokens_come_from_the_cache(
    english_file: Path, tmp_path: Path, tokenizer: TokenizerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare(english_file, tokenizer)
    forbid_tokenizing(monkeypatch)
    (tmp_path / "moved.txt").write_text(ENGLISH)
    second = prepare(tmp_path / "moved.txt", tokenizer)
    assert np.array_equal(first.train, second.train)
    assert np.array_equal(first.val, second.val)
    assert (first.tokenizer, first.stats, first.fingerprint) == (second.tokenizer, second.stats, second.fingerprint)


def test_whatever_decides_the_tokens_decides_the_cache_entry(english_file: Path, tmp_path: Path) -> None:
    prepare(english_file, BPE)
    prepare(english_file, BPE, val_fraction=0.2)
    prepare(english_file, TokenizerConfig(kind="bpe", vocab_size=301))
    prepare(english_file, TokenizerConfig(kind="bpe", vocab_size=300, pattern="gpt4"))
    prepare(english_file, CHAR)
    for alphabet in (ENGLISH, ENGLISH + "ß"):  # the same file name, another content
        CharTokenizer("".join(sorted(set(alphabet)))).save(tmp_path / "tokenizer.json")
        prepare(english_file, TokenizerConfig(kind="char", file=str(tmp_path / "tokenizer.json")))
    english_file.write_text(ENGLISH + "!")
    prepare(english_file, BPE)
    assert len(entries()) == 8


def test_what_is_in_which_file_decides_the_cache_entry_where_it_decides_the_tokens(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"document {n}\n" * 20}) for n in range(3)]
    for name, file_lines in (("a", lines[:2]), ("b", lines[2:]), ("c", lines[:1]), ("d", lines[1:])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(file_lines))
    first_paths, second_paths = ([str(tmp_path / f"{name}.jsonl") for name in names] for names in ("ab", "cd"))
    for options in ({}, {"weights": [2, 1]}, {"split": "files", "val_fraction": 0.5}):
        for source in (first_paths, second_paths):
            data = DataConfig.model_validate({"source": source, **options})
            assert prepare_corpus(data, CHAR, note=pytest.fail).fingerprint == prepare(first_paths).fingerprint
    assert len(entries()) == 5


def test_without_the_cache_nothing_is_written_but_an_entry_is_used(
    english_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(english_file, cache=False)
    assert entries() == []
    prepare(english_file)
    forbid_tokenizing(monkeypatch)
    prepare(english_file, cache=False)


def test_a_damaged_entry_is_noted_and_made_again(english_file: Path) -> None:
    first = prepare(english_file)
    [entry] = entries()
    (entry / "train-00000.npy").write_bytes(b"damaged")
    notes: list[str] = []
    second = prepare(english_file, note=notes.append)
    assert len(notes) == 1
    assert "damaged" in notes[0]
    assert np.array_equal(first.train, second.train)
    assert TokenStore.open(entry).fingerprint == first.fingerprint


def test_a_damaged_entry_is_left_alone_without_the_cache(english_file: Path) -> None:
    prepare(english_file)
    [entry] = entries()
    (entry / "train-00000.npy").write_bytes(b"damaged")
    prepare(english_file, cache=False, note=lambda _: None)
    assert (entry / "train-00000.npy").read_bytes() == b"damaged"


def test_a_cache_that_cannot_be_written_is_a_note(
    english_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GPT_CACHE", str(tmp_path / "file" / "cache"))
    notes: list[str] = []
    assert len(prepare(english_file, note=notes.append).train)
    assert len(notes) == 1
    assert "not cached" in notes[0]


# Token stores as sources


@KINDS
def test_a_token_store_is_used_as_it_is(
    english_file: Path, tmp_path: Path, tokenizer: TokenizerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = prepare(english_file, tokenizer, cache=False)
    write(tmp_path / "store", english_file, tokenizer)
    english_file.unlink()
    forbid_tokenizing(monkeypatch)
    store_corpus = prepare(tmp_path / "store", tokenizer)
    assert np.array_equal(corpus.train, store_corpus.train)
    assert store_corpus.source == str(tmp_path / "store")
    assert entries() == []


@pytest.mark.parametrize(
    ("tokenizer", "val_fraction", "mismatch"),
    [
        (CHAR, 0.1, "tokenizer.kind=bpe"),
        (TokenizerConfig(kind="bpe", vocab_size=301), 0.1, "tokenizer.vocab_size=300"),
        (TokenizerConfig(kind="bpe", pattern="gpt4"), 0.1, "tokenizer.pattern=gpt2"),
        (BPE, 0.2, "data.val_fraction=0.1"),
    ],
)
def test_a_token_store_that_is_not_what_the_config_asks_for_is_refused(
    english_file: Path, tmp_path: Path, tokenizer: TokenizerConfig, val_fraction: float, mismatch: str
) -> None:
    write(tmp_path / "store", english_file, BPE)
    with pytest.raises(RequestError, match=mismatch.partition("=")[0]) as excinfo:
        prepare(tmp_path / "store", tokenizer, val_fraction=val_fraction)
    assert excinfo.value.suggestion == mismatch


def test_a_token_store_of_another_tokenizer_file_is_refused(english_file: Path, tmp_path: Path) -> None:
    write(tmp_path / "store", english_file)
    CharTokenizer("abc").save(tmp_path / "other.json")
    with pytest.raises(RequestError, match="another tokenizer"):
        prepare(tmp_path / "store", TokenizerConfig(kind="char", file=str(tmp_path / "other.json")))


def test_a_token_store_among_texts_is_refused(english_file: Path, tmp_path: Path) -> None:
    write(tmp_path / "store", english_file)
    with pytest.raises(RequestError, match="is a token store"):
        prepare([str(english_file), str(tmp_path / "store")])


@pytest.mark.parametrize("form", ["pairs", "chat", "labelled"])
def test_a_token_store_is_refused_as_examples_by_what_it_is(english_file: Path, tmp_path: Path, form: str) -> None:
    write(tmp_path / "store", english_file)
    data = DataConfig.model_validate({"source": str(tmp_path / "store"), "format": form, "split": "documents"})
    with pytest.raises(RequestError, match=f"data.format {form} reads examples from files: .*store is a token store"):
        prepare_corpus(data, CHAR, note=print)


def test_the_room_loads_no_torch() -> None:
    check = "import sys, gpt_cli.corpus.prepare, gpt_cli.search.auto_config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
