"""`parallel.shard: full` trains what one process trains by torch, up to rounding."""

import json
import re
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from gpt_cli.config import dump_config, parse_config
from gpt_cli.errors import UserError
from gpt_cli.files import read_sums
from gpt_cli.model import chunked_loss
from gpt_cli.run.checkpoint import list_checkpoints
from gpt_cli.runtime.device import has_fast_bf16
from gpt_cli.training.device_share import device_share
from gpt_cli.training.torch_engine import TorchEngine
from tests.support.command import ROOT
from tests.support.tiny_run import make_config, run, samples, timeless, weights
from tests.support.torchrun import SMALL, assert_one_error_when_killed, start, train_in, worker_env
from tests.support.waiting import HANG, wait_until

pytestmark = pytest.mark.system

FULL = "parallel.shard=full"
TORCH = ("runtime.engine=torch", "runtime.precision=fp32")
WIDE = ("model.n_layer=2", "model.n_embd=32", "model.n_head=4")
SLOW = "optim.lr=3e-4"  # optimizers scale what rounding leaves of a gradient of almost 0 up to their learning rate
TABLE = {
    "muon": (*SMALL, *TORCH, *WIDE, "model.dropout=0.2", "optim.ema=0.9", "optim.grad_clip=0.1"),
    "adamw": (
        *("train.batch_size=12", "train.micro_batch_size=1", *TORCH, *WIDE, "optim.name=adamw", "optim.grad_clip=0.1"),
        *("model.tie_embeddings=true", "train.activation_checkpointing=true", "model.bias=true", SLOW),
    ),
}
if has_fast_bf16(torch.device("cpu")):  # one step: later ones round weights of other last bits to bf16
    TABLE["bf16"] = (*SMALL, *WIDE, "runtime.engine=torch", "runtime.precision=bf16", "train.steps=1")


def saved(run_dir: str | Path) -> dict[str, torch.Tensor]:
    """The weights and the optimizer's state of the newest checkpoint."""
    checkpoint = list_checkpoints(Path(run_dir))[0]
    return {
        f"{file}/{name}": tensor
        for file in ("model", "optimizer")
        for name, tensor in load_file(checkpoint / f"{file}.safetensors").items()
    }


def assert_nearly_equal(run_dir: str | Path, alone: str | Path) -> None:
    torch.testing.assert_close(saved(run_dir), saved(alone), rtol=0, atol=1e-5)


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.robust)])
def test_processes_that_share_all_train_to_1e_5_what_one_trains_that_has_all(tmp_path: Path, processes: int) -> None:
    for name, overrides in TABLE.items():
        (tmp_path / f"{name}.yaml").write_text(dump_config(make_config(tmp_path, *overrides, FULL, name=name)))
    train_in(processes, tmp_path, list(TABLE))
    for name, overrides in TABLE.items():
        alone = run(make_config(tmp_path, *overrides, name=f"{name}-alone"))
        assert_nearly_equal(tmp_path / name, alone.run_dir)
        lines, lines_alone = timeless(str(tmp_path / name)), timeless(alone.run_dir)
        assert lines == [pytest.approx(line, rel=1e-4) for line in lines_alone]
        assert samples(str(tmp_path / name)) == samples(alone.run_dir)


def test_processes_that_share_all_resume_bit_for_bit(tmp_path: Path) -> None:
    """The same number of them: others add up gradients in another order."""
    for name in ("muon", "adamw"):
        for steps, run_dir in ((12, "whole"), (4, "parts"), (12, "parts")):
            overrides = (*TABLE[name], "schedule.kind=constant", f"train.steps={steps}", FULL)
            config = make_config(tmp_path, *overrides, name=f"{name}-{run_dir}")
            (tmp_path / f"{name}-{run_dir}-{steps}.yaml").write_text(dump_config(config))
    train_in(2, tmp_path, ["muon-whole-12", "muon-parts-4", "adamw-whole-12", "adamw-parts-4"])
    train_in(2, tmp_path, ["muon-parts-12", "adamw-parts-12"])
    for name in ("muon", "adamw"):
        whole, parts = (read_sums(list_checkpoints(tmp_path / f"{name}-{kind}")[0]) for kind in ("whole", "parts"))
        for file in ("model.safetensors", "optimizer.safetensors"):
            assert parts[file] == whole[file], (name, file)


@pytest.mark.robust
@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_a_run_resumed_with_other_processes_and_any_shard_is_to_1e_5_the_uninterrupted_one(
    tmp_path: Path, name: str
) -> None:
    overrides = ("train.batch_size=12", "train.micro_batch_size=1", "optim.ema=0.9", "schedule.kind=constant")
    overrides += (*WIDE, *TORCH, f"optim.name={name}", *([SLOW] if name == "adamw" else []))
    uninterrupted = run(make_config(tmp_path, *overrides, name="whole"))
    for processes, steps, shard in (
        (4, 4, "full"),
        (3, 6, "full"),
        (2, 8, "optimizer"),
        (2, 10, "full"),
        (1, 12, "full"),
    ):
        config = make_config(tmp_path, *overrides, f"train.steps={steps}", f"parallel.shard={shard}", name="parts")
        (tmp_path / "parts.yaml").write_text(dump_config(config))
        train_in(processes, tmp_path, ["parts"])
    assert_nearly_equal(tmp_path / "parts", uninterrupted.run_dir)


@pytest.mark.robust
def test_rows_of_any_width_examples_of_any_length_and_more_processes_than_rows_train_nearly_alike(
    tmp_path: Path,
) -> None:
    rows = [f'{{"prompt": "p{i}", "completion": "{"c" * (1 + i % 7)}"}}\n' for i in range(50)]
    (tmp_path / "pairs.jsonl").write_text("".join(rows))
    pairs = (f"data.source={tmp_path / 'pairs.jsonl'}", "data.format=pairs", "data.split=documents")
    narrow = ("train.batch_size=9", "train.micro_batch_size=1", *TORCH, "model.n_embd=10", "model.n_head=1", *pairs)
    narrow += ("model.head_gate=true", SLOW)  # a gate of one row
    for kind, extra in (("shared", (FULL,)), ("whole", ())):
        for name in ("muon", "adamw"):
            config = make_config(tmp_path, *narrow, f"optim.name={name}", *extra, name=f"{name}-{kind}")
            (tmp_path / f"{name}-{kind}.yaml").write_text(dump_config(config))
    train_in(3, tmp_path, ["muon-shared", "adamw-shared"])
    train_in(1, tmp_path, ["muon-whole", "adamw-whole"])
    for name in ("muon", "adamw"):
        assert_nearly_equal(tmp_path / f"{name}-shared", tmp_path / f"{name}-whole")


@pytest.mark.robust
def test_a_loss_in_pieces_is_that_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head's weight is read after the forward pass of the model has ended."""
    overrides = (*SMALL, *TORCH, *WIDE, "train.steps=4", "eval.every=2")
    (tmp_path / "run.yaml").write_text(dump_config(make_config(tmp_path, *overrides, FULL)))
    monkeypatch.setenv("PIECE", "99")
    train_in(2, tmp_path, ["run"])
    monkeypatch.setattr(chunked_loss, "MAX_CPU_LOGITS", 99)
    alone = run(make_config(tmp_path, *overrides, name="alone"))
    assert_nearly_equal(tmp_path / "run", alone.run_dir)


@pytest.mark.robust
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are found in /proc")
def test_a_process_that_is_killed_while_weights_are_shared_ends_the_others_with_one_error(tmp_path: Path) -> None:
    process = start(tmp_path, FULL, "runtime.engine=torch")
    wait_until(lambda: len(list_checkpoints(tmp_path / "run")) > 1, process)
    assert_one_error_when_killed(process)


OUT_OF_MEMORY = """
import os
if "RANK" in os.environ:
    import torch
    from gpt_cli.distributed import norms
    from gpt_cli.training.torch_engine import TorchEngine
    norms.PIECE = norms.CUT_FROM = 64
    compute, calls = TorchEngine.forward_backward, iter(range(10**9))
    def forward_backward(*arguments):
        loss = compute(*arguments)
        if next(calls) == 5 and os.environ["RANK"] == "1":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return loss
    TorchEngine.forward_backward = forward_backward
"""


@pytest.mark.robust
def test_out_of_memory_in_one_process_ends_all_with_one_error_where_weights_are_shared(gpt, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(OUT_OF_MEMORY)
    (tmp_path / "run.yaml").write_text(dump_config(make_config(tmp_path, *SMALL, *TORCH, *WIDE)))
    command = ("train", "--config", "run.yaml", "--devices", "2")
    outcome = gpt(*command, FULL, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert outcome.rc == 1
    assert [line for line in outcome.stderr.splitlines() if line.startswith(("error", "hint", "Traceback"))] == [
        "error: process 1: out of memory while computing a micro-batch",
        "hint: give a smaller train.micro_batch_size; nothing saved is lost",
    ]


@pytest.mark.robust
@pytest.mark.usefixtures("cut")
def test_out_of_memory_in_one_process_has_all_go_on_with_smaller_micro_batches(
    gpt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(OUT_OF_MEMORY)
    (tmp_path / "run.yaml").write_text(dump_config(make_config(tmp_path, *SMALL, *TORCH, *WIDE)))
    command = ("train", "--config", "run.yaml", "--devices", "2")
    outcome = gpt(*command, "parallel.shard=optimizer", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert outcome.rc == 0, outcome.stderr
    assert "continuing with 1" in outcome.stderr
    compute, calls = TorchEngine.forward_backward, count()

    def fail_in_the_same_step(*arguments: Any) -> torch.Tensor:
        if next(calls) == 9:
            raise MemoryError
        return compute(*arguments)

    monkeypatch.setattr(TorchEngine, "forward_backward", fail_in_the_same_step)
    alone = run(make_config(tmp_path, *SMALL, *TORCH, *WIDE, name="alone"))
    sums = read_sums(list_checkpoints(tmp_path / "run")[0])
    assert {key: sums[key] for key in weights(alone)} == weights(alone)


@pytest.mark.parametrize(
    "setting",
    [
        *("runtime.engine=native", "runtime.compile=true", "runtime.compile=reduce-overhead", "runtime.device=mps"),
        "task.kind=classes",
    ],
)
def test_what_shared_weights_cannot_have_is_refused_by_its_name(tmp_path: Path, setting: str) -> None:
    key, _, value = setting.partition("=")
    with pytest.raises(UserError, match=re.escape(f"parallel.shard (full) needs {key} ({value}) to be")):
        parse_config("", "test.yaml", (FULL, setting))
    with pytest.raises(UserError, match=r"lora\.rank \(2\) needs parallel\.shard \(full\) to be none"):
        make_config(tmp_path, "lora.rank=2", "train.init_from=x", FULL)


@pytest.mark.parametrize(
    ("devices", "name"),
    [
        (4, "adamw"),
        pytest.param(64, "muon", marks=pytest.mark.robust),
        pytest.param(1024, "muon", marks=pytest.mark.slow),
    ],
)
def test_the_estimate_of_shared_weights_is_what_a_process_keeps_and_sends(
    tmp_path: Path, devices: int, name: str
) -> None:
    sizes = (f"train.batch_size={2 * devices}", "train.micro_batch_size=1", f"optim.name={name}")
    config = make_config(tmp_path, *sizes, *WIDE, *TORCH, FULL)
    (tmp_path / "run.yaml").write_text(dump_config(config))
    command = [sys.executable, "-m", "tests.support.fake_process_group", str(devices), str(tmp_path / "run.yaml")]
    completed = subprocess.run(command, env=worker_env(), capture_output=True, text=True, timeout=HANG, check=False)
    assert completed.returncode == 0, completed.stderr[-3000:]
    actual = json.loads(completed.stdout.splitlines()[-1])
    share = device_share(config, 100, devices)
    memory = share.memory_bytes["full"]
    assert (memory["weights"], memory["optimizer"]) == (actual["weights"], actual["optimizer"])
    assert share.bytes_sent_full == actual["sent"]
