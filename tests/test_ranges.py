"""Processes that read ranges of large files make the very store that one process makes, or none."""

import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_cli.config.schema import DataConfig, TokenizerConfig
from gpt_cli.corpus import crew, range_worker, ranges, store, text, tokenization
from gpt_cli.corpus.build import prepare_corpus, tokenize_corpus
from gpt_cli.corpus.store import TokenStore
from gpt_cli.corpus.tokenization import Tokenization
from gpt_cli.errors import RequestError, UserError
from gpt_cli.files import disk
from gpt_cli.files.disk import DiskError
from gpt_cli.tokenizer import CharTokenizer

TEXT = "".join(f"{n}: Once upon a time {n * n} mice lived in a Schuh — 鼠 🐁.\r\n" for n in range(400))
CHAR = TokenizerConfig(kind="char")
BYTE = TokenizerConfig(kind="byte")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ranges and shards, and any text worth a process."""
    for module, name, value in (
        (ranges, "RANGE", 1000), (ranges, "SHARE", 1), (store, "SHARD_TOKENS", 5000), (text, "_KEPT", 0),
        (tokenization, "_SHARE", 1),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ranges.Ranges]]:
    """The ranges of each store that was written from them."""
    seen: list[ranges.Ranges] = []
    encode = ranges.encode_ranges

    def note(of: ranges.Ranges, *rest: Any) -> Any:
        seen.append(of)
        return encode(of, *rest)

    monkeypatch.setattr(tokenization, "encode_ranges", note)
    return seen


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


odd = st.lists(
    st.sampled_from(["a", "é", "\u07ff", "→", "\uffff", "🐁", "\U0010ffff", "\r\n", "\r", "\n", "\ufeff", " ", "\x85"]),
    min_size=12, max_size=60,
).map(lambda characters: "é" + "".join(characters))  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(
    st.lists(odd, min_size=1, max_size=4),
    st.integers(1, 9),
    st.integers(1, 7),
    st.booleans(),
    st.sampled_from([0, 0.3]),
)
def test_an_odd_text_has_one_store_however_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], size: int, run: int, to_bytes: bool, tests: float
) -> None:
    """The processes are left out here: this one reads all the ranges."""
    folder = tmp_path_factory.mktemp("odd")
    for number, said in enumerate(texts):
        (folder / f"{number}.txt").write_bytes(said.encode())
    sources = [str(folder / f"{number}.txt") for number in range(len(texts))]
    data = DataConfig(source=sources, val_fraction=0.3, test_fraction=tests)
    config = BYTE if to_bytes else CHAR
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in (
            (ranges, "RANGE", size), (ranges, "SHARE", 1), (store, "SHARD_TOKENS", 7), (text, "_KEPT", 0),
        ):  # fmt: skip
            patch.setattr(module, name, value)
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(crew, "launch", None)
        start, reader = crew.Crew.start, range_worker.Reader.__init__
        patch.setattr(crew.Crew, "start", lambda self, _: start(self, 1))
        patch.setattr(range_worker.Reader, "__init__", lambda *given: reader(*given, run))
        many = tokenize_corpus(folder / "many", data, config, note=pytest.fail, processes=3)
        one = tokenize_corpus(folder / "one", data, config, note=pytest.fail, processes=1)
    assert contents(folder / "many") == contents(folder / "one")
    assert many.counts.tolist() == one.counts.tolist()
    assert (many.facts, many.fingerprint, many.tokenizer) == (one.facts, one.fingerprint, one.tokenizer)


@pytest.mark.parametrize("config", [CHAR, BYTE], ids=lambda config: config.kind)
def test_the_store_is_the_same_for_any_number_of_processes(
    tmp_path: Path, small: None, written: list[ranges.Ranges], config: TokenizerConfig
) -> None:
    (tmp_path / "a.txt").write_bytes(TEXT.encode())
    (tmp_path / "b.txt").write_bytes(b"no newline")
    (tmp_path / "c.txt").write_bytes(TEXT.encode())
    data = DataConfig(source=[str(tmp_path / f"{name}.txt") for name in "abc"], test_fraction=0.1)
    for processes in (1, 2, 3):
        tokenize_corpus(tmp_path / str(processes), data, config, note=pytest.fail, processes=processes)
        assert len(written) == processes - 1
        assert contents(tmp_path / str(processes)) == contents(tmp_path / "1")
    assert len(written[0].ranges) > 40
    assert len(contents(tmp_path / "1")) > 8
    prepared = prepare_corpus(data, config, note=pytest.fail, processes=2)
    assert len(written) == 3
    assert prepared.train.tolist() == TokenStore.open(tmp_path / "1").tokens("train").tolist()


@pytest.mark.parametrize(
    "wrong", [b"\xff", b"\xe2\x82", b"\x80" * 9, b"\0", b"\xed\xa0\x80"], ids=["ff", "cut", "inside", "zero", "half"]
)
def test_what_is_not_text_in_a_later_range_is_told_with_its_place_as_ever(
    tmp_path: Path, small: None, wrong: bytes
) -> None:
    (tmp_path / "x").write_bytes(b"a\n" * 700 + wrong + b"b" * 3000)
    told = []
    for processes in (1, 2):
        with pytest.raises(UserError, match=r"at offset 1,400") as error:
            tokenize_corpus(
                tmp_path / "store", DataConfig(source=str(tmp_path / "x")), CHAR, note=pytest.fail, processes=processes
            )
        told.append((error.value.message, error.value.where, error.value.hint))
    assert told[0] == told[1]
    assert os.listdir(tmp_path) == ["x"]


def test_what_is_not_plain_takes_the_path_for_every_text(
    tmp_path: Path, small: None, written: list[ranges.Ranges]
) -> None:
    (tmp_path / "x").write_bytes(TEXT.encode())
    (tmp_path / "mark").write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    (tmp_path / "lines.jsonl").write_text('{"text": "some mice and a shoe"}\n' * 9)
    x = str(tmp_path / "x")
    notes: list[str] = []
    for number, data in enumerate([
        DataConfig(source=str(tmp_path / "mark")), DataConfig(source=[x, str(tmp_path / "lines.jsonl")]),
        DataConfig(source=x, encoding="latin-1"), DataConfig(source=[x, x], weights=[2, 1]),
        DataConfig(source=x, val_source=str(tmp_path / "mark")),
    ]):  # fmt: skip
        for processes in (1, 2):
            out = tmp_path / f"{number}-{processes}"
            tokenize_corpus(out, data, CHAR, note=notes.append, processes=processes)
        assert contents(tmp_path / f"{number}-1") == contents(tmp_path / f"{number}-2")
    assert not written
    assert len(notes) == 4
    assert set(notes) == {f"{tmp_path / 'mark'} starts with a byte order mark, which was dropped"}


def test_a_character_without_an_id_is_told_as_ever_or_is_unknown(tmp_path: Path, small: None) -> None:
    (tmp_path / "x").write_bytes(TEXT.encode())
    data = DataConfig(source=str(tmp_path / "x"))
    alphabet = "".join(sorted(set(TEXT) - {"🐁"}))
    CharTokenizer(alphabet).save(tmp_path / "narrow.json")
    config = TokenizerConfig(kind="char", file=str(tmp_path / "narrow.json"))
    with pytest.raises(RequestError, match="U\\+1F401"):
        tokenize_corpus(tmp_path / "store", data, config, note=pytest.fail, processes=2)
    CharTokenizer(alphabet, has_unknown=True).save(tmp_path / "narrow.json")
    made = [tokenize_corpus(tmp_path / str(n), data, config, note=pytest.fail, processes=n).counts[-1] for n in (1, 2)]
    assert made == [400, 400]
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


@pytest.mark.parametrize("stage", ["reading", "encoding"])
def test_a_process_that_is_killed_is_an_error_and_leaves_nothing(
    tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    launch = crew.launch

    def note(module: str) -> "subprocess.Popen[bytes]":
        started.append(launch(module))
        return started[-1]

    def kill(now: str, done: int, total: int | None) -> None:
        if now == stage and started[0].poll() is None:
            started[0].kill()
            started[0].wait()

    monkeypatch.setattr(crew, "launch", note)
    monkeypatch.setattr(crew, "_IN_FLIGHT", 1)
    (tmp_path / "x").write_bytes(TEXT.encode() * 3)
    with pytest.raises(UserError, match=r"was ended \(exit code -9\)"):
        tokenize_corpus(
            tmp_path / "out" / "store", DataConfig(source=str(tmp_path / "x")), CHAR,
            note=pytest.fail, processes=2, progress=kill,
        )  # fmt: skip
    assert os.listdir(tmp_path) == ["x"]
    assert not [thread for thread in threading.enumerate() if "ThreadPool" in thread.name]


def test_a_text_that_changes_between_the_passes_is_refused(tmp_path: Path, small: None) -> None:
    path = tmp_path / "x"
    for change in (
        lambda: path.write_bytes(TEXT.replace("mice", "rats").encode()), lambda: path.write_bytes(b"a" * 999),
        lambda: os.utime(path, ns=(0, 0)), lambda: path.write_bytes(b"\xff" * len(TEXT.encode())),
    ):  # fmt: skip
        path.write_bytes(TEXT.encode())
        with crew.Crew() as workers:
            work = Tokenization.begin(DataConfig(source=str(path)), CHAR, pytest.fail, None, 2, workers)
            assert work.ranges is not None
            learned = work.learn()
            change()
            with (
                pytest.raises(UserError, match="changed while it was read"),
                store.new_store(tmp_path / "store", learned) as writer,
            ):
                work.write(writer)
        assert os.listdir(tmp_path) == ["x"]


def test_a_full_disk_is_told_whoever_meets_it_and_leaves_nothing(
    tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(TEXT.encode())
    write = disk.write_all

    def fill(descriptor: int, data: bytes | memoryview) -> None:
        if os.lseek(descriptor, 0, os.SEEK_CUR) > 4000:
            raise OSError(errno.ENOSPC, "no space left on device")
        write(descriptor, data)

    monkeypatch.setattr(disk, "write_all", fill)
    with pytest.raises(DiskError, match=r"no space left on device while writing .*train-0000\d\.npy"):
        tokenize_corpus(
            tmp_path / "out" / "store", DataConfig(source=str(tmp_path / "x")), CHAR, note=pytest.fail, processes=2
        )
    assert os.listdir(tmp_path) == ["x"]
    assert not [thread for thread in threading.enumerate() if "ThreadPool" in thread.name]


def test_another_process_tells_why_it_could_not_write(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"text")
    reader = range_worker.Reader(None, 0, "<u2")
    whole = [str(tmp_path / "x"), 0, 4]
    answer = reader.answer({"do": "encode", "range": whole, "places": [[str(tmp_path / "gone"), 0, 4]]})
    assert "gone: no such file" in answer["error"]
    assert reader.answer({"do": "look", "range": [str(tmp_path / "x"), 0, 5]}) == {"other": True}
    (tmp_path / "into").touch()
    for room in (3, 5):
        places = [[str(tmp_path / "into"), 0, room]]
        assert reader.answer({"do": "encode", "range": whole, "places": places}) == {"other": True}
