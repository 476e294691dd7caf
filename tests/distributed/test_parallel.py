"""Several processes train what one trains: the same weights, metrics and samples, bit for bit, whatever happens."""

import os
import shutil
import signal
import sys
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.cli.main import main
from gpt_cli.config import ModelConfig, OptimConfig, dump_config, load_config
from gpt_cli.cores import usable_cores
from gpt_cli.distributed.launch import device_count
from gpt_cli.distributed.norms import norms_of, piece_norms
from gpt_cli.distributed.reduce import Range, children, contiguous_micro_batches, subtrees, tree_sum
from gpt_cli.distributed.shard import Shard, share_out
from gpt_cli.distributed.world import VARIABLES, World, world_of_environment
from gpt_cli.errors import RequestError, UserError
from gpt_cli.files import read_sums
from gpt_cli.model.gpt import GPT
from gpt_cli.run.checkpoint import list_checkpoints, load
from gpt_cli.selftest.kills import with_steps
from gpt_cli.selftest.processes import check_processes
from gpt_cli.training.optim import MuonAdamW, state_parts
from tests.support.tiny_run import make_config, run, samples, timeless, weights
from tests.support.torchrun import (
    SHARDED,
    SMALL,
    assert_one_error_when_killed,
    start,
    torchrun,
    train_in,
    worker_env,
    workers,
)
from tests.support.waiting import HANG, Idleness, wait_until

pytestmark = pytest.mark.system

# Engine, optimizer, precision, and whatever else holds state or draws noise.
TABLE = {
    "native-muon": (*SMALL, "model.dropout=0.2", "optim.ema=0.9"),
    "native-adamw": (*SMALL, "optim.name=adamw", "optim.grad_clip=0.1", "runtime.precision=fp32"),
    "torch-muon": (*SMALL, "runtime.engine=torch", "model.dropout=0.2", "runtime.precision=fp32"),
    "torch-adamw": (*SMALL, "runtime.engine=torch", "optim.name=adamw", "train.micro_batch_size=1", "optim.ema=0.9"),
}


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.robust)])
def test_any_number_of_processes_trains_the_same_bits(tmp_path: Path, processes: int) -> None:
    kinds = {"whole": (), "sharded": SHARDED}
    for name, overrides in TABLE.items():
        for kind, extra_overrides in kinds.items():
            config = make_config(tmp_path, *overrides, *extra_overrides, name=f"{name}-{kind}")
            (tmp_path / f"{name}-{kind}.yaml").write_text(dump_config(config))
    train_in(processes, tmp_path, [f"{name}-{kind}" for name in TABLE for kind in kinds])
    for name, overrides in TABLE.items():
        single_process = run(make_config(tmp_path, *overrides, name=f"{name}-alone"))
        for kind in kinds:
            run_dir = tmp_path / f"{name}-{kind}"
            sums = read_sums(list_checkpoints(run_dir)[0])
            assert {key: sums[key] for key in weights(single_process)} == weights(single_process), (name, kind)
            assert timeless(str(run_dir)) == timeless(single_process.run_dir)
            assert samples(str(run_dir)) == samples(single_process.run_dir)


def test_examples_of_unequal_length_are_learned_alike_by_any_number_of_processes(tmp_path: Path) -> None:
    """Each process has another number of targets that count; the mean is over those of all."""
    rows = [f'{{"prompt": "p{i}", "completion": "{"c" * (1 + i % 7)}"}}\n' for i in range(50)]
    (tmp_path / "pairs.jsonl").write_text("".join(rows))
    table = {"pairs": SMALL, "pairs-torch": (*SMALL, "runtime.engine=torch", "runtime.precision=fp32")}
    keys = (f"data.source={tmp_path / 'pairs.jsonl'}", "data.format=pairs", "data.split=documents")
    for name, overrides in table.items():
        config = make_config(tmp_path, *overrides, *keys, name=f"{name}-together")
        (tmp_path / f"{name}.yaml").write_text(dump_config(config))
    train_in(2, tmp_path, list(table))
    for name, overrides in table.items():
        summary = run(make_config(tmp_path, *overrides, *keys, name=f"{name}-alone"))
        checkpoint = list_checkpoints(tmp_path / f"{name}-together")[0]
        assert read_sums(checkpoint)["model.safetensors"] == summary.weights_sha256


@pytest.mark.robust
@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_a_run_goes_on_with_other_processes_and_shards_as_if_it_had_always_had_them(tmp_path: Path, name: str) -> None:
    overrides = ("train.batch_size=12", "train.micro_batch_size=1", "optim.ema=0.9", "schedule.kind=constant")
    overrides += (f"optim.name={name}",)
    uninterrupted = run(make_config(tmp_path, *overrides, name="whole"))
    run(
        make_config(
            tmp_path,
            *overrides,
            "train.steps=4",
            name="parts",
        )
    )
    for processes, steps, shard in ((2, 6, "optimizer"), (3, 8, "none"), (3, 10, "optimizer"), (1, 12, "optimizer")):
        part_overrides = (f"train.steps={steps}", f"parallel.shard={shard}")
        config = make_config(tmp_path, *overrides, *part_overrides, name="parts")
        (tmp_path / "parts.yaml").write_text(dump_config(config))
        train_in(processes, tmp_path, ["parts"])
    sums = read_sums(list_checkpoints(tmp_path / "parts")[0])
    assert {key: sums[key] for key in weights(uninterrupted)} == weights(uninterrupted)


@pytest.mark.robust
@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_a_process_that_owns_no_parameter_trains_with_the_others(tmp_path: Path, name: str) -> None:
    model_overrides = ("model.norm_gain=false", "model.tie_embeddings=true", "model.mlp=relu", f"optim.name={name}")
    batch = ("train.batch_size=6", "train.micro_batch_size=1")
    single_process = run(make_config(tmp_path, *model_overrides, *batch, name="alone"))
    assert len(load(Path(single_process.checkpoint)).model_tensors) < 6 + 1  # embedding and head are one
    (tmp_path / "run.yaml").write_text(dump_config(make_config(tmp_path, *model_overrides, *batch, *SHARDED)))
    train_in(6, tmp_path, ["run"])
    sums = read_sums(list_checkpoints(tmp_path / "run")[0])
    assert {key: sums[key] for key in weights(single_process)} == weights(single_process)


@pytest.mark.robust
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are found in /proc")
def test_a_process_that_is_killed_ends_the_others_with_one_error_and_the_run_goes_on(tmp_path: Path) -> None:
    process = start(tmp_path)
    wait_until(lambda: len(list_checkpoints(tmp_path / "run")) > 1, process)
    assert_one_error_when_killed(process)
    saved_step = int(list_checkpoints(tmp_path / "run")[0].name.partition("-")[2])
    steps = f"train.steps={saved_step + 4}"
    intervals = ("checkpoint.every=2", "eval.every=2")
    resumed = run(make_config(tmp_path, *SMALL, *intervals, steps))
    assert weights(resumed) == weights(run(make_config(tmp_path, *SMALL, *intervals, steps, name="alone")))


@pytest.mark.robust
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are found in /proc")
@pytest.mark.parametrize(
    ("number", "to_worker"), [(signal.SIGTERM, False), (signal.SIGUSR1, False), (signal.SIGINT, True)]
)
def test_a_signal_to_the_launcher_or_to_one_process_has_all_save_and_leave(
    tmp_path: Path, number: signal.Signals, to_worker: bool
) -> None:
    process = start(tmp_path)
    wait_until(lambda: list_checkpoints(tmp_path / "run"), process)
    os.kill(workers(process)[1] if to_worker else process.pid, number)
    _, stderr = process.communicate(timeout=HANG)
    assert process.returncode == 128 + number
    assert "stopped: interrupted; step" in stderr
    assert "error" not in stderr
    assert not list((tmp_path / "tmp").iterdir())  # torch's launcher keeps its logs there


def test_a_wrong_request_is_one_error_of_one_process(gpt, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(dump_config(make_config(tmp_path, "train.batch_size=7")))
    outcome = gpt("train", "--config", "run.yaml", "--devices", "2")
    assert outcome.rc == 2
    assert outcome.stderr.startswith("error: train.batch_size (7) must be a multiple of")
    assert outcome.stderr.count("error:") == 1


@pytest.mark.robust
def test_a_process_with_another_text_is_refused_by_its_number(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    other_path = tmp_path / "other.txt"
    other_path.write_text((tmp_path / "text.txt").read_text().replace("times", "trees"))
    other_config = config.model_copy(update={"data": config.data.model_copy(update={"source": str(other_path)})})
    for name, actual in (("run", config), ("run.1", other_config)):
        (tmp_path / f"{name}.yaml").write_text(dump_config(actual))
    completed = torchrun(2, tmp_path, ["run"])
    assert completed.returncode == 1
    assert "process 1 has another text" in completed.stderr
    assert not list_checkpoints(tmp_path / "run")


@pytest.mark.parametrize("devices", ["0", "-1", "two", ""])
def test_a_number_of_devices_that_is_none_is_refused(devices: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "builtin:python-docs", "--devices", devices]) == 2
    assert "--devices must be auto or a number" in capsys.readouterr().err


def test_without_gpus_auto_is_one_process_and_some_more_than_there_are_cores_may_be_asked_for() -> None:
    if torch.cuda.is_available():
        pytest.skip("there are GPUs")
    assert (device_count("auto"), device_count("3")) == (1, 3)
    for devices in (str(4 * len(usable_cores()) + 8), "99999999999"):
        with pytest.raises(RequestError, match=rf"--devices is {devices}, but there (is|are) \d+ cores? here"):
            device_count(devices)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no death signal of a parent")
@pytest.mark.parametrize("waits", [False, True])
def test_processes_that_start_or_wait_for_others_end_with_their_launcher(tmp_path: Path, waits: bool) -> None:
    (tmp_path / "launcher.py").write_text(
        "import os, subprocess, sys\n"
        "os.environ |= {'GPT_LAUNCHER': str(os.getpid()), 'RANK': '1', 'WORLD_SIZE': '2', 'LOCAL_RANK': '1',"
        " 'LOCAL_WORLD_SIZE': '2', 'MASTER_ADDR': 'localhost', 'MASTER_PORT': '9'}\n"  # where nobody listens
        "child = subprocess.Popen([sys.executable, '-m', 'gpt_cli', 'train', 'builtin:python-docs'])\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    launcher = Popen([sys.executable, str(tmp_path / "launcher.py")], env=worker_env(), stdout=PIPE, text=True)
    assert launcher.stdout is not None
    child = int(launcher.stdout.readline())
    stat, idleness = Path(f"/proc/{child}/stat"), Idleness(child)
    if waits:
        wait_until(lambda: idleness.looks() > 100)
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    wait_until(lambda: not stat.exists() or ") Z " in stat.read_text())


def test_an_environment_that_is_half_torchruns_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert world_of_environment() == World()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RequestError, match="not all of RANK"):
        world_of_environment()


@given(world_size=st.integers(1, 9), share=st.integers(1, 9))
def test_subtrees_of_all_processes_are_each_leaf_once_and_add_up_to_the_same_bits(world_size: int, share: int) -> None:
    leaves = world_size * share
    spans = [
        span
        for rank in range(world_size)
        for span in subtrees((0, leaves), contiguous_micro_batches(World(rank, world_size), leaves, rank))
    ]
    assert Counter(leaf for span in spans for leaf in range(*span)) == Counter(range(leaves))
    values = torch.randn(leaves, 3, generator=torch.Generator().manual_seed(leaves))

    def leaf(span: Range, keep: bool) -> list[torch.Tensor] | None:
        return [values[span[0]].clone()] if span[1] - span[0] == 1 else None

    sums = {span: tree_sum(span, leaf) for span in spans}
    combined_sum = tree_sum((0, leaves), lambda span, _: sums.get(span))[0]
    single_sum = tree_sum((0, leaves), leaf)[0]
    assert torch.equal(combined_sum, single_sum)
    exact_sum = [float(sum(Fraction(float(x)) for x in column)) for column in values.T]
    assert single_sum.tolist() == pytest.approx(exact_sum, abs=1e-4)


def elements_per_rank(model: GPT, optim: OptimConfig, size: int) -> list[dict[str, int]]:
    """The elements of the optimizer's tensors that each of so many processes keeps."""
    parameters, rank_counts = dict(model.named_parameters()), []
    parts = state_parts({name: p.shape for name, p in parameters.items()}, optim, size)
    for rank in range(size):
        shard = Shard(parameters, World(rank, size), parts)
        tensors = MuonAdamW(model, optim, zeros=shard.zeros, parameters=shard.optimized).state_tensors()
        rank_counts.append({name: tensor.numel() for name, tensor in tensors.items() if not tensor.is_meta})
    return rank_counts


@pytest.mark.usefixtures("cut")
@given(size=st.integers(1, 9), name=st.sampled_from(["muon", "adamw"]))
def test_the_shards_of_all_processes_are_the_whole_optimizer_once(size: int, name: Literal["muon", "adamw"]) -> None:
    model, optim = GPT(ModelConfig(n_layer=2, n_embd=32, context_length=8), 100), OptimConfig(name=name)
    rank_counts = elements_per_rank(model, optim, size)
    total_counts = {name: tensor.numel() for name, tensor in MuonAdamW(model, optim).state_tensors().items()}
    assert Counter(total_counts) | Counter(n_step=size) == sum(map(Counter, rank_counts), Counter())
    max_numel = (
        max(size for name, size in total_counts.items() if name.startswith("momentum")) if name == "muon" else 2 * 64
    )
    assert max(sum(actual.values()) for actual in rank_counts) <= sum(total_counts.values()) / size + max_numel


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_the_state_of_a_model_that_is_mostly_embeddings_is_shared_out_evenly(name: Literal["muon", "adamw"]) -> None:
    model = GPT(ModelConfig(n_layer=1, n_embd=32, context_length=8, tie_embeddings=True), 3000)
    for size in (2, 3, 4, 8):
        rank_counts = [sum(actual.values()) for actual in elements_per_rank(model, OptimConfig(name=name), size)]
        assert max(rank_counts) <= 1.02 * sum(rank_counts) / size


@pytest.mark.usefixtures("cut")
@given(blocks=st.lists(st.integers(0, 5), min_size=2, max_size=5), remainder=st.integers(0, 70))
def test_the_norm_of_a_gradient_in_parts_is_that_of_the_whole(blocks: list[int], remainder: int) -> None:
    gradient = torch.randn(64 * sum(blocks) + remainder + 65, generator=torch.Generator().manual_seed(remainder))
    sizes = [64 * block for block in blocks]
    norms = [piece_norms(block) for block in gradient.split([*sizes, len(gradient) - sum(sizes)])]
    assert torch.linalg.vector_norm(torch.cat(norms)).equal(norms_of([gradient])[0])
    torch.testing.assert_close(norms_of([gradient])[0], gradient.norm())


@given(costs=st.dictionaries(st.text(max_size=3), st.integers(0, 1000)), size=st.integers(1, 9))
def test_what_is_shared_out_is_even_to_within_its_largest_piece(costs: dict[str, int], size: int) -> None:
    loads = [0] * size
    owners = share_out(costs, loads)
    assert owners.keys() == costs.keys()
    assert loads == [sum(costs[name] for name, owner in owners.items() if owner == rank) for rank in range(size)]
    assert max(loads) - min(loads) <= max(costs.values(), default=0)


@pytest.mark.robust
def test_a_learning_rate_is_proposed_by_process_0_alone(gpt, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(dump_config(make_config(tmp_path)))
    rates = []
    for name, devices in (("one", ()), ("two", ("--devices", "2"))):
        keys = ("optim.lr=auto", "runtime.threads=1", f"run_dir={name}")
        outcome = gpt("train", "--config", "run.yaml", *keys, *devices)
        assert outcome.rc == 0, outcome.stderr
        rates.append(load_config(tmp_path / name / "config.yaml").optim.lr)
    assert rates[0] == rates[1]


def test_a_budget_is_refused_to_several_processes(gpt, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(dump_config(make_config(tmp_path)))
    outcome = gpt("train", "--config", "run.yaml", "train.budget=20s", "--devices", "2")
    assert outcome.rc == 2
    assert outcome.stderr.count("error:") == 1
    assert "train.budget is chosen for one process" in outcome.stderr


def test_lora_is_not_sharded(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"lora\.rank \(2\) needs parallel\.shard \(optimizer\) to be none"):
        make_config(tmp_path, "lora.rank=2", "train.init_from=x", *SHARDED)


@given(leaves=st.integers(2, 200))
def test_a_tree_of_an_even_number_of_leaves_is_two_equal_halves(leaves: int) -> None:
    spans = children((0, leaves))
    assert [spans[0][0], spans[-1][1]] == [0, leaves]
    assert all(left[1] == right[0] for left, right in pairwise(spans))
    assert len(spans) == (leaves if leaves % 2 else 2)


@pytest.mark.robust
def test_selftest_trains_by_two_processes_and_finds_other_weights(tmp_path: Path, monkeypatch) -> None:
    config = make_config(tmp_path, *SMALL)
    assert check_processes(tmp_path, config).passed
    for name in ("together", "alone"):
        shutil.rmtree(tmp_path / name)
    monkeypatch.setattr(
        "gpt_cli.selftest.processes.run_quietly", lambda config: run(with_steps(config, Path(config.run_dir), 9))
    )
    assert not check_processes(tmp_path, config).passed
