"""A long text becomes the same tokens as a short one: in blocks, in processes, and never by halves."""

import codecs
import contextlib
import errno
import hashlib
import json
import multiprocessing
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_cli.config.schema import DataConfig, TokenizerConfig
from gpt_cli.cores import usable_cores
from gpt_cli.corpus import blocks, encode, encoder_pool, scan, store, tokenize_pipeline
from gpt_cli.corpus.prepare import prepare_corpus, tokenize_corpus
from gpt_cli.corpus.store import TokenStore
from gpt_cli.errors import RequestError, UserError
from gpt_cli.files import DiskError, cache_dir, durable
from gpt_cli.tokenizer import CharTokenizer, alphabets
from tests.support.command import subprocess_env
from tests.support.waiting import HANG, wait_until

TEXT = "".join(f"{n}: Once upon a time, it's said, {n * n} mice lived in a Schuh — 鼠 🐁.\r\n" for n in range(400))
CHAR = TokenizerConfig(kind="char")
BYTE = TokenizerConfig(kind="byte")
BPE = TokenizerConfig(kind="bpe", vocab_size=320, pattern="gpt4")


@pytest.fixture
def corpus(tmp_path: Path) -> DataConfig:
    """A text file, JSON lines and a folder, with a test split."""
    (tmp_path / "text.txt").write_bytes(TEXT.encode())
    (tmp_path / "folder").mkdir()
    for name in "ab":
        (tmp_path / "folder" / name).write_text(name + TEXT[:200], encoding="utf-8")
    lines = [json.dumps({"text": f"{n} little mice" * (n % 4)}) for n in range(100)]
    (tmp_path / "lines.jsonl").write_text("\n".join(lines))
    sources = [str(tmp_path / name) for name in ("text.txt", "lines.jsonl", "folder")]
    return DataConfig(source=sources, test_fraction=0.05)


@pytest.fixture
def streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks and shards, nothing kept in memory, and any text worth a process."""
    monkeypatch.setattr(blocks, "BLOCK", 1000)
    monkeypatch.setattr(blocks, "CACHE_BYTES", 0)
    monkeypatch.setattr(encode, "BLOCK", 1500)
    monkeypatch.setattr(store, "SHARD_TOKENS", 5000)
    monkeypatch.setattr(tokenize_pipeline, "SHARE", 1)


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.mark.parametrize("config", [CHAR, TokenizerConfig(kind="byte"), BPE], ids=lambda config: config.kind)
@pytest.mark.parametrize("split", ["characters", "documents"])
def test_a_streamed_text_has_the_tokens_of_one_in_memory(
    corpus: DataConfig, config: TokenizerConfig, split: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    data = corpus.model_copy(update={"split": split})
    memory_corpus = prepare_corpus(data, config, cache=False, note=pytest.fail, with_test=True)
    assert not (cache_dir() / "stores").exists() or not any((cache_dir() / "stores").iterdir())
    request.getfixturevalue("streamed")
    streamed_corpus = prepare_corpus(data, config, note=pytest.fail, with_test=True)
    assert any((cache_dir() / "stores").iterdir())  # it went there directly
    tokenized = tokenize_corpus(tmp_path / "store", data, config, note=pytest.fail, processes=1)
    assert memory_corpus.test is not None
    assert streamed_corpus.test is not None
    for split_name, ids in (("train", memory_corpus.train), ("val", memory_corpus.val), ("test", memory_corpus.test)):
        assert np.array_equal(ids, TokenStore.open(tmp_path / "store").tokens(split_name))  # type: ignore[arg-type]
        starts = memory_corpus.stats[split_name].document_starts  # type: ignore[index]
        assert np.array_equal(starts, streamed_corpus.stats[split_name].document_starts)  # type: ignore[index]
    assert np.array_equal(memory_corpus.test, streamed_corpus.test)
    assert (
        (memory_corpus.stats, memory_corpus.fingerprint)
        == (tokenized.stats, tokenized.fingerprint)
        == (streamed_corpus.stats, streamed_corpus.fingerprint)
    )
    all_ids = np.concatenate([memory_corpus.train, memory_corpus.val, memory_corpus.test])
    assert tokenized.counts.tolist() == np.bincount(all_ids, minlength=memory_corpus.tokenizer.vocab_size).tolist()


@pytest.mark.parametrize("config", [CHAR, BYTE, BPE], ids=lambda config: config.kind)
def test_every_file_is_the_same_for_any_number_of_processes(
    corpus: DataConfig, config: TokenizerConfig, tmp_path: Path, streamed: None
) -> None:
    for processes in (1, 3) if config is BPE else (1, 2, 3):
        path = tmp_path / str(processes)
        tokenized = tokenize_corpus(path, corpus, config, note=pytest.fail, processes=processes)
        all_ids = np.concatenate([TokenStore.open(path).tokens(split) for split in tokenized.stats])
        assert tokenized.counts.tolist() == np.bincount(all_ids, minlength=len(tokenized.counts)).tolist()
        assert contents(path) == contents(tmp_path / "1")
    assert len(contents(tmp_path / "1")) > 8


odd_text = st.lists(
    st.sampled_from(["a", "é", "\u07ff", "→", "\uffff", "🐁", "\U0010ffff", "\r\n", "\r", "\n", "\ufeff", " ", "\x85"]),
    min_size=5, max_size=60,
).map("".join)  # fmt: skip


@settings(max_examples=60)
@given(st.lists(odd_text, min_size=1, max_size=4), st.booleans(), st.integers(1, 9), st.booleans())
def test_an_odd_text_has_the_tokens_of_its_characters_however_it_is_cut_and_shared_out(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], mark: bool, block: int, to_bytes: bool
) -> None:
    """The definition: files end in a newline if another follows, a byte order mark at their start is not text."""
    folder = tmp_path_factory.mktemp("odd")
    for number, file_text in enumerate(texts):
        data = file_text.removeprefix("\ufeff").encode()
        (folder / str(number)).write_bytes(
            (codecs.BOM_UTF8 if mark or data.startswith(codecs.BOM_UTF8) else b"") + data
        )
    file_contents = [file_text.removeprefix("\ufeff") for file_text in texts]
    joined_text = (
        "".join(content + "\n" * (not content.endswith("\n")) for content in file_contents[:-1]) + file_contents[-1]
    )
    data = DataConfig(source=[str(folder / str(number)) for number in range(len(texts))], val_fraction=0.5)
    config = BYTE if to_bytes else CHAR
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in (
            (blocks, "BLOCK", block), (blocks, "CACHE_BYTES", 0), (encode, "BLOCK", 2 * block),
            (durable, "CHUNK", 3), (scan, "_SHORT", 2), (alphabets, "_RUN", 2), (store, "SHARD_TOKENS", 7),
            (tokenize_pipeline, "SHARE", 1),
        ):  # fmt: skip
            patch.setattr(module, name, value)
        results = []
        for processes in (1, 2, 3):
            pipeline = tokenize_pipeline.TokenizePipeline.scan(data, config, lambda _: None, None, processes)
            results.append(pipeline.encode_to_memory(pipeline.train_tokenizer()))
    cut = int(0.5 * len(joined_text))
    for ids, encoded in results:
        assert encoded.stats == results[0][1].stats
        if not to_bytes:
            assert encoded.tokenizer.characters == "".join(sorted(set(joined_text)))  # type: ignore[attr-defined]
        for split, split_text in (("train", joined_text[:cut]), ("val", joined_text[cut:])):
            assert ids[split].tolist() == encoded.tokenizer.encode(split_text).tolist()  # type: ignore[index]
            assert encoded.stats[split].bytes == len(split_text.encode())  # type: ignore[index]
            assert encoded.stats[split].characters == len(split_text)  # type: ignore[index]


def test_special_tokens_in_a_text_are_the_same_for_any_number_of_processes(
    corpus: DataConfig, tmp_path: Path, streamed: None
) -> None:
    (tmp_path / "text.txt").write_bytes(TEXT.replace("lived", "<|endoftext|>").encode())
    config = BPE.model_copy(update={"allow_special": True})
    for processes in (1, 3):
        tokenize_corpus(tmp_path / str(processes), corpus, config, note=pytest.fail, processes=processes)
    assert contents(tmp_path / "1") == contents(tmp_path / "3")
    token_store = TokenStore.open(tmp_path / "1")
    ids = np.concatenate([token_store.tokens("train"), token_store.tokens("val"), token_store.tokens("test")])
    plain_corpus = prepare_corpus(corpus, BPE, cache=False, note=pytest.fail, with_test=True)
    assert plain_corpus.test is not None
    n_separators = sum(
        (split_ids == plain_corpus.tokenizer.eot_id).sum()
        for split_ids in (plain_corpus.train, plain_corpus.val, plain_corpus.test)
    )
    assert (ids == token_store.tokenizer.eot_id).sum() == 400 + n_separators


def test_a_character_that_only_a_process_meets_is_told_like_any_other(
    corpus: DataConfig, tmp_path: Path, streamed: None
) -> None:
    CharTokenizer("".join(sorted(set(TEXT) - {"🐁"}))).save(tmp_path / "narrow.json")
    config = TokenizerConfig(kind="char", file=str(tmp_path / "narrow.json"))
    with pytest.raises(RequestError, match="U\\+1F401"):
        tokenize_corpus(tmp_path / "store", corpus, config, note=pytest.fail, processes=2)
    assert not (tmp_path / "store").exists()
    assert not list(tmp_path.glob(".tmp-*"))


def test_a_process_that_is_killed_is_an_error_and_leaves_nothing(
    corpus: DataConfig, tmp_path: Path, streamed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers: list[multiprocessing.process.BaseProcess] = []
    ordered_map = encoder_pool.ordered_map

    def kill_and_map(*arguments: Any) -> Any:
        workers.extend(multiprocessing.active_children())
        workers[0].kill()
        return ordered_map(*arguments)

    monkeypatch.setattr(encode, "ordered_map", kill_and_map)
    with pytest.raises(UserError, match="was ended"):
        tokenize_corpus(tmp_path / "store", corpus, BPE, note=pytest.fail, processes=2)
    assert not list(tmp_path.glob("*store*"))
    assert len(workers) == 2
    assert all(process.exitcode is not None for process in workers)  # none is left


UNGUARDED = """
import sys
from pathlib import Path
from gpt_cli.config.schema import DataConfig, TokenizerConfig
from gpt_cli.corpus import tokenize_pipeline
from gpt_cli.corpus.prepare import tokenize_corpus
tokenize_pipeline.SHARE = 1
data, config = DataConfig(source=sys.argv[1]), TokenizerConfig(kind="bpe", vocab_size=int(sys.argv[3]))
tokenize_corpus(Path(sys.argv[2]), data, config, note=print, processes=4)
"""


def test_a_script_without_a_guard_encodes_in_several_processes(tmp_path: Path) -> None:
    """The tokenizer is larger than a pipe holds."""
    order = random.Random(0)
    (tmp_path / "text.txt").write_text(" ".join(f"{order.randrange(10**4):04}" for _ in range(60_000)) * 2)
    (tmp_path / "script.py").write_text(UNGUARDED)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "text.txt"), str(tmp_path / "store"), "4000"]
    completed = subprocess.run(command, env=subprocess_env(), capture_output=True, text=True, timeout=HANG, check=False)
    assert (completed.returncode, completed.stderr) == (0, "")
    assert (tmp_path / "store" / "tokenizer.json").stat().st_size > 1 << 16


@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
def test_every_core_encodes_unless_fewer_are_asked_for(
    corpus: DataConfig, tmp_path: Path, streamed: None, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(tokenize_pipeline, "usable_cores", lambda: {0, 1, 2})
    config = BPE if kind == "bpe" else TokenizerConfig.model_validate({"kind": kind})
    pipeline = tokenize_pipeline.TokenizePipeline.scan(corpus, config, pytest.fail, None, None)
    assert pipeline.processes == 3
    assert tokenize_pipeline.TokenizePipeline.scan(corpus, config, pytest.fail, None, 2).processes == 2


def test_bpe_learns_from_a_bounded_sample_that_is_always_the_same(
    corpus: DataConfig, tmp_path: Path, streamed: None
) -> None:
    notes: list[str] = []
    sampled_config = BPE.model_copy(update={"train_bytes": 9000})
    first, second = (
        tokenize_corpus(tmp_path / name, corpus, sampled_config, note=notes.append, processes=processes).tokenizer
        for name, processes in (("1", 1), ("2", 2))
    )
    assert first == second
    assert first != tokenize_corpus(tmp_path / "all", corpus, BPE, note=pytest.fail, processes=1).tokenizer
    assert len(notes) == 2
    assert "learned from about 9.0 kB" in notes[0]
    of_its_size = sampled_config.model_copy(update={"vocab_size": None})
    tokenize_corpus(tmp_path / "of its size", corpus, of_its_size, note=notes.append, processes=1)
    assert [note.partition(" 9.0 kB")[0] for note in notes].count("the vocabulary is learned from about") == 3


@pytest.mark.parametrize(
    ("train_bytes", "documents", "digest"), [(20_000, 647, "e604ebe525021c67"), (50_000, 1607, "3763a98bbab655f2")]
)
def test_the_sample_of_short_documents_is_what_older_versions_learned_from(
    tmp_path: Path, train_bytes: int, documents: int, digest: str
) -> None:
    texts = (f"{n * n} is the square of {n}" + "." * (n % 7) for n in range(3000))
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    config = TokenizerConfig(kind="bpe", vocab_size=300, train_bytes=train_bytes)
    data = DataConfig(source=str(tmp_path / "x.jsonl"), split="documents")
    sample = list(tokenize_pipeline.TokenizePipeline.scan(data, config, print, None, 1)._training_text("train"))
    assert (len(sample), hashlib.sha256("".join(sample).encode()).hexdigest()[:16]) == (documents, digest)


@pytest.mark.parametrize("train_bytes", [1, 2, 50, 5_000, 100_000])
def test_the_sample_of_a_text_in_one_segment_is_as_long_as_it_may_be(tmp_path: Path, train_bytes: int) -> None:
    (tmp_path / "x").write_text("the cat sat on the matté. " * 5_000)
    config = TokenizerConfig(kind="bpe", vocab_size=300, train_bytes=train_bytes)
    pipeline = tokenize_pipeline.TokenizePipeline.scan(
        DataConfig(source=str(tmp_path / "x")), config, lambda _: None, None, 1
    )
    sample = "".join(pipeline._training_text("train"))
    assert train_bytes - 1 <= len(sample.encode()) <= train_bytes


def test_the_sample_is_spread_over_the_training_text_and_within_its_bound(tmp_path: Path, streamed: None) -> None:
    (tmp_path / "x").write_text("".join(f"{n:05} is a number\n" for n in range(3000)))
    config = TokenizerConfig(kind="bpe", vocab_size=300, train_bytes=10_000)
    pipeline = tokenize_pipeline.TokenizePipeline.scan(
        DataConfig(source=str(tmp_path / "x")), config, lambda _: None, None, 1
    )
    chunks = list(pipeline._training_text("train"))
    assert 8_000 < sum(map(len, chunks)) <= 10_000
    numbers = [int(match[0]) for chunk in chunks if (match := re.search(r"\d{5}", chunk))]
    assert len(numbers) >= 8
    assert max(np.diff(numbers)) < 3 * min(np.diff(numbers))
    assert max(numbers) < 2700  # the validation text is not in it


def test_a_word_without_end_is_cut_rather_than_held(tmp_path: Path, streamed: None, monkeypatch: Any) -> None:
    monkeypatch.setattr(encode, "LONGEST_WORD", 4000)
    (tmp_path / "x").write_text("ab" * 10_000)
    tokenized = tokenize_corpus(
        tmp_path / "store", DataConfig(source=str(tmp_path / "x")), TokenizerConfig(kind="bpe", vocab_size=258),
        note=pytest.fail,
    )  # fmt: skip
    store = TokenStore.open(tmp_path / "store")
    decoded_text = tokenized.tokenizer.decode(store.tokens("train")) + tokenized.tokenizer.decode(store.tokens("val"))
    assert decoded_text == "ab" * 10_000


@pytest.mark.parametrize("processes", [1, 3])
def test_a_disk_that_fails_while_others_encode_is_told_and_leaves_nothing(
    corpus: DataConfig, tmp_path: Path, streamed: None, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    written, prepare = 0, store.to_little_endian

    def fill(ids: Any) -> Any:
        nonlocal written
        written += ids.nbytes
        if written > 30_000:
            raise OSError(errno.ENOSPC, "no space left on device")
        return prepare(ids)

    monkeypatch.setattr(store, "to_little_endian", fill)
    with pytest.raises(DiskError, match="no space left on device"):
        tokenize_corpus(tmp_path / "out" / "store", corpus, CHAR, note=pytest.fail, processes=processes)
    assert not (tmp_path / "out").exists()
    assert not [thread for thread in threading.enumerate() if "ThreadPool" in thread.name]


# `gpt` that says so and stands still in the middle of encoding; a megabyte is worth a process.
PROGRAM = """
import contextlib, sys, time
from gpt_cli.cli.main import main
from gpt_cli.corpus import tokenize_pipeline
from gpt_cli.terminal import progress
tokenize_pipeline.SHARE = 1 << 20
stage_progress = progress.stage_progress
@contextlib.contextmanager
def held():
    with stage_progress() as show:
        def hold(stage, done, total):
            show(stage, done, total)
            if stage == "encoding" and done > 5_000_000:  # so far it was read: what came before is encoded
                print("held", flush=True)
                # Not signal.pause(): a signal that comes just before it would be lost, and it would wait for ever.
                while True:
                    time.sleep(0.01)
        yield hold
progress.stage_progress = held
sys.exit(main())
"""


def begin(tmp_path: Path, *options: str) -> "subprocess.Popen[str]":
    """`gpt tokenize` on 12 MB, in the middle of writing."""
    text = tmp_path / "long.txt"
    text.write_text(TEXT * (12_000_000 // len(TEXT.encode())), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "tokenize", str(text), "--out", str(tmp_path / "out" / "store"), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=subprocess_env(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n", process.communicate()
    wait_until(lambda: any(tmp_path.glob("out/.tmp-*/train-*")))  # a thread writes
    return process


def children(pid: int) -> list[int]:
    """The processes that were started, but for the one with which `multiprocessing` keeps track of semaphores."""
    every = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [child for child in every if b"resource_tracker" not in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.mark.robust
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("kind", "number"),
    [
        *[("bpe", number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)],
        *[("char", number) for number in (signal.SIGINT, signal.SIGKILL)],
    ],
)
def test_an_interrupted_run_leaves_no_store_and_no_process_and_says_where_it_was(
    tmp_path: Path, kind: str, number: signal.Signals
) -> None:
    bpe_options = ["--vocab-size", "270", "--train-bytes", "1000000"] if kind == "bpe" else []
    process = begin(tmp_path, "--kind", kind, *bpe_options, "--processes", "2")
    workers = children(process.pid)
    assert len(workers) == (2 if kind == "bpe" else 0)  # characters are looked up in threads
    process.send_signal(number)
    _, stderr = process.communicate(timeout=HANG)
    assert not (tmp_path / "out" / "store").exists()
    if number == signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 128 + number
        assert not (tmp_path / "out").exists()
        last_line = stderr.splitlines()[-1]
        assert last_line.startswith("stopped while encoding, at ")
        assert "%" in last_line
        assert "nothing was written" in last_line
        assert "Traceback" not in stderr
    wait_until(lambda: not any(map(is_running, workers)))  # none outlives who started it


def is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_the_progress_moves_inside_one_file(tmp_path: Path, streamed: None) -> None:
    (tmp_path / "x").write_text(TEXT, encoding="utf-8")
    reports: list[tuple[str, int, int | None]] = []
    tokenize_corpus(
        tmp_path / "store",
        DataConfig(source=str(tmp_path / "x")),
        BPE,
        note=pytest.fail,
        progress=lambda *report: reports.append(report),
    )
    for stage in ("reading", "learning", "encoding"):
        byte_counts = [report[1] for report in reports if report[0] == stage]
        assert len(byte_counts) > 10
        assert byte_counts == sorted(byte_counts)
        assert byte_counts[-1] == len(TEXT.encode())
    assert {total for _, _, total in reports} == {len(TEXT.encode())}


def test_any_stretch_of_a_text_or_of_its_store_is_that_of_its_tokens(
    corpus: DataConfig, tmp_path: Path, streamed: None
) -> None:
    memory_corpus = prepare_corpus(corpus, CHAR, cache=False, note=pytest.fail, with_test=True)
    outline = prepare_corpus(corpus, CHAR, verify=False, note=pytest.fail)
    tokenize_corpus(tmp_path / "store", corpus, CHAR, note=pytest.fail)
    token_store = TokenStore.open(tmp_path / "store")
    assert outline.stats == token_store.stats == memory_corpus.stats
    assert outline.tokenizer == memory_corpus.tokenizer
    pairs = ((memory_corpus.train, outline.train), (memory_corpus.val, outline.val))
    for (tokens, mapped), split in zip(pairs, ("train", "val"), strict=True):
        for start, stop in ((0, 300), (0, 301), (4990, 5010), (9000, 16_000), (len(tokens) - 5, len(tokens) + 5)):
            expected = tokens[start:stop].tolist()
            assert mapped[start:stop].tolist() == expected
            assert token_store.mapped(split)[start:stop].tolist() == expected  # type: ignore[arg-type]


def write_long_text(path: Path, size: int) -> None:
    """Write English in which one word in twenty is made up, so that there are ever more different words."""
    words = " ".join(topics[name] for name in sorted(topics)).split(" ")
    order = random.Random(1337)
    with path.open("w", encoding="utf-8", newline="") as file:
        while file.tell() < size:
            line = [w if order.random() > 0.05 else f"{order.getrandbits(8 * order.randint(1, 4)):x}" for w in words]
            file.write(" ".join(line) + ("\nΓειά σου, 世界 🙂\n" if order.random() < 0.3 else "\n"))


def peak_megabytes(command: list[str]) -> float:
    """Run a command; return the peak memory of it and of each of its children, added up."""
    peaks: dict[str, float] = {}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=subprocess_env())
    while process.poll() is None:
        tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
        with contextlib.suppress(OSError):  # it has just ended
            children = [child for task in tasks for child in task.read_text().split()]
            for pid in (str(process.pid), *children):
                status = Path(f"/proc/{pid}/status").read_text()
                for peak in re.findall(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE):
                    peaks[pid] = int(peak) / 1024
        time.sleep(0.05)
    assert process.returncode == 0
    return sum(peaks.values())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks of other processes are read from /proc")
def test_the_memory_of_a_long_text_stays_inside_its_bound(tmp_path: Path) -> None:
    write_long_text(tmp_path / "text.txt", 200_000_000)
    processes = len(usable_cores())
    for kind in (("--kind", "char"), ("--kind", "bpe", "--vocab-size", "4096")):
        options = ("--out", str(tmp_path / kind[1]), "--processes", str(processes))
        peak = peak_megabytes(
            [sys.executable, "-m", "gpt_cli", "tokenize", str(tmp_path / "text.txt"), *kind, *options]
        )
        assert 0 < peak < 600 + 100 * processes


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks of other processes are read from /proc")
@pytest.mark.parametrize("width", [60, None])
def test_the_memory_of_a_long_text_without_spaces_stays_inside_its_bound(width: int | None, tmp_path: Path) -> None:
    order = np.random.default_rng(1)
    bases = np.frombuffer(b"ACGT", dtype=np.uint8)[order.integers(0, 4, 60_000_000)]
    rows = bases if width is None else np.pad(bases.reshape(-1, width), ((0, 0), (0, 1)), constant_values=10)
    (tmp_path / "dna.txt").write_bytes(rows.tobytes())
    options = ("--kind", "bpe", "--vocab-size", "300", "--processes", "1", "--out", str(tmp_path / "tokens"))
    peak = peak_megabytes([sys.executable, "-m", "gpt_cli", "tokenize", str(tmp_path / "dna.txt"), *options])
    assert 0 < peak < 1200
