"""Ids that stay on the disk are the ids that would be in memory, and a long text is never in memory."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_cli.config import dump_config
from gpt_cli.corpus import prepare
from gpt_cli.corpus import store as store_module
from gpt_cli.corpus.store import SplitStats, new_store
from gpt_cli.corpus.tokens import MappedTokens, sample_evenly
from gpt_cli.files import DamagedError, read_sums
from gpt_cli.run.checkpoint import list_checkpoints
from gpt_cli.training.device_tokens import DeviceTokens
from tests.support.sums import reseal
from tests.support.tiny_run import make_config, run, weights
from tests.support.token_store import DIVISION as DIVISION_OF_STORE
from tests.support.token_store import START, TOKENIZER, write
from tests.support.torchrun import worker_env
from tests.support.waiting import HANG

CPU = torch.device("cpu")
DIVISION = ("data.split=characters", "data.val_fraction=0.1", "tokenizer.kind=char", "sample.every=null")


@settings(max_examples=50)
@given(ids=st.lists(st.integers(0, 7), min_size=1), shard=st.integers(1, 9), data=st.data())
def test_mapped_ids_are_those_in_memory_however_they_are_cut_into_files(
    tmp_path: Path, ids: list[int], shard: int, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "SHARD_TOKENS", shard)
        mapped = write(tmp_path / "store", ids, replace=True).mapped("train")
    bounds = st.none() | st.integers(-9, len(ids) + 9)
    start, stop, length = data.draw(bounds), data.draw(bounds), data.draw(st.integers(0, len(ids)))
    assert (len(mapped), mapped[:].tolist(), mapped.nbytes) == (len(ids), ids, 2 * len(ids))
    assert mapped[start:stop].tolist() == ids[start:stop]
    starts = data.draw(st.lists(st.integers(0, len(ids) - length), min_size=1, max_size=5))
    on_disk, in_memory = DeviceTokens(mapped, CPU), DeviceTokens(np.array(ids, dtype=np.uint16), CPU)
    assert len(on_disk) == len(in_memory)
    assert on_disk.windows(starts, length).equal(in_memory.windows(starts, length))
    assert on_disk.span(starts[0], starts[0] + length).equal(in_memory.span(starts[0], starts[0] + length))
    assert DeviceTokens(mapped, CPU, resident=True).ids.equal(in_memory.ids)


@given(n=st.integers(0, 99), limit=st.integers(2, 99), parts=st.integers(2, 9))
def test_a_sample_is_in_order_from_the_first_id_to_the_last_and_without_repeats(n: int, limit: int, parts: int) -> None:
    ids = np.arange(n, dtype=np.uint16)
    parts = min(parts, limit)
    sample = sample_evenly(ids, limit, parts)
    assert len(sample) == (n if n <= limit else limit // parts * parts)
    assert (np.diff(sample.astype(int)) > 0).all()
    assert sample[:1].tolist() == ids[:1].tolist()
    assert sample[-1:].tolist() == ids[-1:].tolist()
    assert sample_evenly(MappedTokens([ids]), limit, parts).tolist() == sample.tolist()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data + b"\0\0", "something follows|does not end"),
        (lambda data: data[:-2], "greater than file size|does not end"),
        (lambda data: data[:-2] + b"\xff\x00", "none of the vocabulary's"),
        (lambda data: data.replace(b"<u2", b"<i2"), "it holds"),
    ],
)
def test_a_damaged_file_is_not_mapped(tmp_path: Path, change, reason: str) -> None:
    store = write(tmp_path / "store", [1, 2, 3])
    file = tmp_path / "store" / "train-00000.npy"
    file.write_bytes(change(file.read_bytes()))
    reseal(tmp_path / "store")
    with pytest.raises(DamagedError, match=reason):
        store.mapped("train")


def test_training_from_the_disk_gives_the_weights_of_training_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "store", [0, 1, 2, 3] * 99, [1, 2] * 50)
    settings = (f"data.source={tmp_path / 'store'}", *DIVISION)
    in_memory = run(make_config(tmp_path, *settings, name="here"))
    monkeypatch.setattr(prepare, "MAPPED_FROM", 1)
    config = make_config(tmp_path, *settings, name="there")
    assert isinstance(prepare.prepare_corpus(config.data, config.tokenizer, note=print).train, MappedTokens)
    assert weights(run(config)) == weights(in_memory)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is limited by what /proc says")
def test_of_processes_that_train_together_none_has_room_for_the_text_nor_needs_it(tmp_path: Path) -> None:
    size = 2 * store_module.SHARD_TOKENS + 5
    ids = np.tile(np.arange(8, dtype=np.uint16), size // 8 + 1)[:size]
    write(tmp_path / "store", ids, [1, 2] * 50)
    overrides = (f"data.source={tmp_path / 'store'}", *DIVISION, "train.micro_batch_size=2")
    config = make_config(tmp_path, *overrides)
    (tmp_path / "run.yaml").write_text(dump_config(config))
    headroom = ids.nbytes // 2
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["--log-dir", str(tmp_path / "logs")]
    completed = subprocess.run(
        [*command, "-m", "tests.support.torchrun_worker", str(tmp_path / "run.yaml")],
        env=worker_env(ROOM=str(headroom), MALLOC_ARENA_MAX="1"),
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    assert completed.stdout.count(f"limited to {headroom} bytes more") == 2
    alone = run(make_config(tmp_path, *overrides, name="alone"))
    sums = read_sums(list_checkpoints(tmp_path / "run")[0])
    assert {key: sums[key] for key in weights(alone)} == weights(alone)


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (600_000_000, 600_000_000))
from gpt_cli.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere RLIMIT_DATA limits no mappings")
def test_a_text_of_two_gigabytes_trains_within_600_megabytes_of_memory(tmp_path: Path) -> None:
    """Of what a process writes to, with its imports; pages of files are the system's, which drops them."""
    shard = np.random.default_rng(0).integers(0, 8, store_module.SHARD_TOKENS, dtype=np.uint16)
    facts = {"train": SplitStats(10 * len(shard), 10 * len(shard), 10 * len(shard), 1, START)}
    facts["val"] = SplitStats(1000, 1000, 1000, 1, START)
    with new_store(tmp_path / "store", TOKENIZER) as writer:
        for _ in range(10):
            writer.append("train", shard)
        writer.append("val", shard[:1000])
        writer.finish(facts, fingerprint="f", division=DIVISION_OF_STORE)
    assert sum(file.stat().st_size for file in (tmp_path / "store").iterdir()) > 2_000_000_000
    config = make_config(tmp_path, f"data.source={tmp_path / 'store'}", *DIVISION, "train.steps=50")
    (tmp_path / "run.yaml").write_text(dump_config(config))
    command = [sys.executable, "-c", LIMITED, "train", "--config", str(tmp_path / "run.yaml")]
    completed = subprocess.run(command, env=worker_env(), capture_output=True, text=True, timeout=HANG, check=False)
    assert completed.returncode == 0, completed.stderr[-3000:]
    assert list_checkpoints(tmp_path / "run")[0].name == "step-00000050"
