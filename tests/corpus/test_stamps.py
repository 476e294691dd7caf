"""A text that has not changed is not read again, and one that has changed is, however little shows."""

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt_cli.config.schema import DataConfig, TokenizerConfig
from gpt_cli.corpus import registry, stamps, tokenize_pipeline
from gpt_cli.corpus.prepare import Corpus, prepare_corpus
from gpt_cli.corpus.stamps import Stamps
from gpt_cli.corpus.store import TokenStore
from gpt_cli.files import DamagedError, cache_dir, commit_files
from gpt_cli.search.text_statistics import measure_source
from gpt_cli.tokenizer import CharTokenizer

CHAR = TokenizerConfig(kind="char")
TEXT = "Once upon a time there was a text that did not change.\n" * 40


@pytest.fixture
def text_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A text that was written long ago."""
    monkeypatch.setattr(stamps, "_RECENT", 0)
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


def prepare(path: Path, note: Any = pytest.fail, config: TokenizerConfig = CHAR, **options: Any) -> Corpus:
    return prepare_corpus(DataConfig(source=str(path)), config, note=note, **options)


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenize_pipeline, "scan", lambda *_, **__: pytest.fail("the text was read"))


def test_the_second_start_reads_neither_text_nor_tokens(text_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepare(text_file)
    forbid_reading(monkeypatch)
    assert prepare(text_file).fingerprint == first.fingerprint
    monkeypatch.setattr(TokenStore, "_verified", lambda *_: pytest.fail("the tokens were read"))
    second = prepare(text_file, verify=False)
    assert (second.stats, second.tokenizer) == (first.stats, first.tokenizer)
    assert np.array_equal(second.train[:], first.train)


def test_the_statistics_of_a_text_are_measured_once(text_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"data.source": str(text_file)}
    first = measure_source([str(text_file)], keys, keys, has_gpu=False, progress=None)
    monkeypatch.setattr("gpt_cli.search.text_statistics._count", lambda *_: pytest.fail("the text was read"))
    assert measure_source([str(text_file)], keys, keys, has_gpu=False, progress=None) == first


def replaced(path: Path) -> None:
    path.with_name("other").write_text(TEXT.replace("time", "mite"))
    os.rename(path.with_name("other"), path)


def rewritten(path: Path) -> None:
    path.write_text(TEXT.replace("time", "mite"))


@pytest.mark.parametrize("change", [replaced, rewritten])
def test_a_change_that_keeps_size_and_time_is_noticed(text_file: Path, change: Any) -> None:
    first, status = prepare(text_file), text_file.stat()
    time.sleep(0.02)  # a tick of the clock of the file system
    change(text_file)
    os.utime(text_file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (text_file.stat().st_size, text_file.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert prepare(text_file).fingerprint != first.fingerprint


def test_a_text_that_was_just_written_is_not_remembered(tmp_path: Path) -> None:
    (tmp_path / "new.txt").write_text(TEXT)
    prepare(tmp_path / "new.txt")
    assert not (cache_dir() / "texts").exists()


def test_another_tokenizer_file_of_the_same_name_is_noticed(text_file: Path, tmp_path: Path) -> None:
    config = TokenizerConfig(kind="char", file=str(tmp_path / "tokenizer.json"))
    for alphabet in (TEXT, TEXT + "xyz"):
        CharTokenizer("".join(sorted(set(alphabet)))).save(tmp_path / "tokenizer.json")
        assert prepare(text_file, config=config).tokenizer.vocab_size == len(set(alphabet))


def test_a_change_of_one_of_two_tokenizer_files_is_noticed(text_file: Path, tmp_path: Path) -> None:
    bpe = prepare(text_file, lambda _: None, TokenizerConfig(kind="bpe", vocab_size=270)).tokenizer
    model = json.loads(bpe.to_json())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    config = TokenizerConfig(kind="bpe", file=str(tmp_path / "vocab.json"))
    digests = set()
    for merges in (model["merges"], model["merges"][:-1]):
        (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
        digests.add(prepare(text_file, lambda _: None, config).tokenizer.digest)
    assert len(digests) == 2


def test_a_text_that_changes_while_it_is_read_is_not_remembered(
    text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stamps, "_RECENT", 60_000_000_000)
    looked = time.time_ns() + 61_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: looked)
    first = Stamps("key", [text_file])
    looked += 10**12  # reading takes long
    text_file.write_text(TEXT)
    os.utime(text_file, ns=(looked - 10**12, looked - 10**12))
    first.remember("old")
    assert Stamps("key", [text_file]).recall() is None


def test_the_notes_of_reading_are_repeated(text_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text_file.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    first: list[str] = []
    prepare(text_file, first.append)
    forbid_reading(monkeypatch)
    second: list[str] = []
    prepare(text_file, second.append)
    assert first == second != []


def test_a_damaged_record_is_a_text_to_be_read(text_file: Path) -> None:
    first = prepare(text_file)
    [record] = (cache_dir() / "texts").iterdir()
    for damage in (b"", b"[]", b'{"stamp": 1}', b"\xff"):
        record.write_bytes(damage)
        assert prepare(text_file).fingerprint == first.fingerprint


def test_a_flipped_byte_of_cached_tokens_is_noticed_where_they_are_loaded(text_file: Path) -> None:
    first = prepare(text_file)
    [shard] = cache_dir().glob("stores/*/train-00000.npy")
    data, status = bytearray(shard.read_bytes()), shard.stat()
    data[-2 * (len(first.train) - int(np.argmin(first.train)))] ^= 1  # id 0 becomes 1, which the vocabulary has
    shard.write_bytes(data)
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    notes: list[str] = []
    assert np.array_equal(prepare(text_file, notes.append).train, first.train)
    assert ["SHA-256" in line for line in notes] == [True]


def test_a_downloaded_corpus_is_verified_again_only_when_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stamps, "_RECENT", 0)
    file = cache_dir() / "corpora" / "text8" / "text8.txt"
    commit_files(file.parent, {file.name: b"once upon a time"})
    assert registry.local_path("text8") == file
    with monkeypatch.context() as patch:
        patch.setattr(registry, "verify_directory", lambda *_: pytest.fail("the corpus was read"))
        assert registry.local_path("text8") == file
    file.write_bytes(b"once upon a crime")
    with pytest.raises(DamagedError):
        registry.local_path("text8")
