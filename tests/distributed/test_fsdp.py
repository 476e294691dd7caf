"""`parallel.shard: full` trains what one process trains by torch: the same bits, whatever is shared out to whom."""

import json
import re
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from gpt_cli.config import dump_config, parse_config
from gpt_cli.distributed.reduce import Range, TreeSum, tree_sum
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
WIDE = ("model.n_layer=2", "model.n_embd=32", "model.n_head=4")  # rows that fill registers
TABLE = {
    "muon": (*SMALL, *TORCH, *WIDE, "model.dropout=0.2", "optim.ema=0.9", "optim.grad_clip=0.1"),
    "adamw": (
        *("train.batch_size=12", "train.micro_batch_size=1", *TORCH, *WIDE, "optim.name=adamw", "optim.grad_clip=0.1"),
        *("model.tie_embeddings=true", "train.activation_checkpointing=true", "model.bias=true"),
    ),
}
if has_fast_bf16(torch.device("cpu")):
    TABLE["bf16"] = (*SMALL, *WIDE, "runtime.engine=torch", "runtime.precision=bf16", "eval.batch_size=3")


def sums_of(run_dir: Path, like: dict[str, str]) -> dict[str, str]:
    sums = read_sums(list_checkpoints(run_dir)[0])
    return {key: sums[key] for key in like}


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.robust)])
def test_any_number_of_processes_that_share_all_trains_the_bits_of_one_that_has_all(
    tmp_path: Path, processes: int
) -> None:
    for name, overrides in TABLE.items():
        (tmp_path / f"{name}.yaml").write_text(dump_config(make_config(tmp_path, *overrides, FULL, name=name)))
    train_in(processes, tmp_path, list(TABLE))
    for name, overrides in TABLE.items():
        alone = run(make_config(tmp_path, *overrides, name=f"{name}-alone"))
        assert sums_of(tmp_path / name, weights(alone)) == weights(alone), name
        assert timeless(str(tmp_path / name)) == timeless(alone.run_dir)
        assert samples(str(tmp_path / name)) == samples(alone.run_dir)


@pytest.mark.robust
@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_a_run_goes_on_with_other_processes_and_any_shard_as_if_it_had_always_had_them(
    tmp_path: Path, name: str
) -> None:
    overrides = ("train.batch_size=12", "train.micro_batch_size=1", "optim.ema=0.9", "schedule.kind=constant")
    overrides += (*WIDE, *TORCH, f"optim.name={name}")
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
    assert sums_of(tmp_path / "parts", weights(uninterrupted)) == weights(uninterrupted)


@pytest.mark.robust
def test_rows_of_any_width_examples_of_any_length_and_more_processes_than_rows_train_nearly_alike(
    tmp_path: Path,
) -> None:
    """A row that ends amid a register is rounded otherwise in its last bits."""
    rows = [f'{{"prompt": "p{i}", "completion": "{"c" * (1 + i % 7)}"}}\n' for i in range(50)]
    (tmp_path / "pairs.jsonl").write_text("".join(rows))
    pairs = (f"data.source={tmp_path / 'pairs.jsonl'}", "data.format=pairs", "data.split=documents")
    narrow = ("train.batch_size=9", "train.micro_batch_size=1", *TORCH, "model.n_embd=10", "model.n_head=1", *pairs)
    for kind, extra in (("shared", (FULL,)), ("whole", ())):
        for name in ("muon", "adamw"):
            config = make_config(tmp_path, *narrow, f"optim.name={name}", *extra, name=f"{name}-{kind}")
            (tmp_path / f"{name}-{kind}.yaml").write_text(dump_config(config))
    train_in(3, tmp_path, ["muon-shared", "adamw-shared"])
    train_in(1, tmp_path, ["muon-whole", "adamw-whole"])
    for name in ("muon", "adamw"):
        shared, unsharded = (
            load_file(list_checkpoints(tmp_path / f"{name}-{kind}")[0] / "model.safetensors")
            for kind in ("shared", "whole")
        )
        torch.testing.assert_close(shared, unsharded, rtol=0, atol=1e-5)


@pytest.mark.robust
def test_a_loss_in_pieces_is_that_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head's weight is read after the forward pass of the model has ended."""
    overrides = (*SMALL, *TORCH, *WIDE, "train.steps=4", "eval.every=2")
    (tmp_path / "run.yaml").write_text(dump_config(make_config(tmp_path, *overrides, FULL)))
    monkeypatch.setenv("PIECE", "99")
    train_in(2, tmp_path, ["run"])
    monkeypatch.setattr(chunked_loss, "MAX_CPU_LOGITS", 99)
    alone = run(make_config(tmp_path, *overrides, name="alone"))
    assert sums_of(tmp_path / "run", weights(alone)) == weights(alone)


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
    assert sums_of(tmp_path / "run", weights(alone)) == weights(alone)


@pytest.mark.parametrize(
    "setting",
    [
        *("runtime.engine=native", "runtime.compile=true", "runtime.compile=reduce-overhead", "runtime.device=mps"),
        "task.kind=classes",
    ],
)
def test_what_shared_weights_cannot_have_is_refused_by_its_name(tmp_path: Path, setting: str) -> None:
    key, _, value = setting.partition("=")
    with pytest.raises(UserError, match=re.escape(f"parallel.shard: full cannot have {key}: {value}")):
        parse_config("", "test.yaml", (FULL, setting))
    with pytest.raises(UserError, match=r"parallel\.shard must be none"):
        make_config(tmp_path, "lora.rank=2", "train.init_from=x", FULL)


@given(leaves=st.integers(1, 200))
def test_leaves_that_come_one_by_one_are_added_in_the_order_of_the_tree(leaves: int) -> None:
    values = torch.randn(leaves, 3, generator=torch.Generator().manual_seed(leaves))

    def leaf(span: Range, keep: bool) -> list[torch.Tensor] | None:
        return [values[span[0]].clone()] if span[1] - span[0] == 1 else None

    total = TreeSum(leaves)
    for value in values.clone():
        total.add(value)
        assert len(total.sums) <= leaves.bit_length() + 1
    (actual,) = total.sums
    assert torch.equal(actual, tree_sum((0, leaves), leaf)[0])


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
    """Kept: to the byte. Sent: to 1 %, for which of the processes sends the most is not asked."""
    sizes = (f"train.batch_size={2 * devices}", "train.micro_batch_size=1", f"optim.name={name}")
    config = make_config(tmp_path, *sizes, *WIDE, *TORCH, FULL)
    (tmp_path / "run.yaml").write_text(dump_config(config))
    command = [sys.executable, "-m", "tests.support.fake_process_group", str(devices), str(tmp_path / "run.yaml")]
    completed = subprocess.run(command, env=worker_env(), capture_output=True, text=True, timeout=HANG, check=False)
    assert completed.returncode == 0, completed.stderr[-3000:]
    actual = json.loads(completed.stdout.splitlines()[-1])
    share = device_share(config, 100, devices)
    memory = share.memory_bytes["full"]
    assert memory["weights"] == actual["weights"]
    assert actual["optimizer"] <= memory["optimizer"] <= actual["optimizer"] + 4 * 4 * 32 * 32 * 2
    assert share.bytes_sent_full == pytest.approx(actual["sent"], rel=0.01)
