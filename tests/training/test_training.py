"""The loop: it learns, it repeats, it resumes bit for bit, and it stops when it should."""

import json
import math
import os
import shutil
import signal
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt_cli.cpu.common.kernel import KernelUnavailable
from gpt_cli.errors import RequestError, UserError
from gpt_cli.files import DiskError
from gpt_cli.run import checkpoint
from gpt_cli.run.checkpoint import list_checkpoints, load
from gpt_cli.run.log import read_events, read_metrics
from gpt_cli.runtime.device import setup_runtime
from gpt_cli.training import grad_scaler, loop, state, training_samples
from gpt_cli.training.grad_scaler import GradScaler
from gpt_cli.training.metrics_logger import MetricsLogger
from gpt_cli.training.state import TrainingState
from gpt_cli.training.step import train_step
from gpt_cli.training.torch_engine import token_loss
from tests.support.tiny_run import TEXT, interrupt_at, make_config, run, samples, timeless, weights


def contents(run_dir: Path) -> dict[Path, bytes]:
    """What every file of a run holds, but for the lock, which names its last holder."""
    return {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file() and path.name != "lock"}


def test_it_learns_the_text(tmp_path):
    summary = run(make_config(tmp_path, "train.steps=60", "train.batch_size=16", "eval.every=60"))
    assert summary.val_loss < 1.5 < math.log(20)
    assert summary.steps == 60
    assert summary.exit_code == 0


def test_it_overfits_one_batch(tmp_path):
    config = make_config(tmp_path, "model.n_embd=64")
    runtime = setup_runtime(config.runtime)
    state = TrainingState.initialize(config, 40, runtime, print)
    inputs, targets = torch.randint(40, (2, 4, 16), generator=torch.Generator().manual_seed(0))  # nothing to infer
    for step in range(200):
        loss, _ = train_step(state, [(inputs, targets)], config, step, 1.0, runtime)
    assert loss < 0.05


def test_the_same_config_gives_the_same_weights_and_metrics(tmp_path):
    first, second = (run(make_config(tmp_path, name=name)) for name in ("one", "two"))
    assert weights(first) == weights(second)
    assert timeless(first.run_dir) == timeless(second.run_dir)
    other_seed_run = run(make_config(tmp_path, "seed=2", name="three"))
    assert weights(other_seed_run) != weights(first)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """`uninterrupted(overrides)`: a run that nothing stopped, trained once for all tests that compare with it."""
    return cache(lambda overrides: run(make_config(tmp_path_factory.mktemp("whole"), *overrides, name="whole")))


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param((), id="muon"),
        pytest.param(("optim.name=adamw", "optim.lr=1e-3"), id="adamw"),
        pytest.param(("optim.ema=0.9", "model.dropout=0.2", "train.micro_batch_size=2"), id="ema-dropout-accumulation"),
        pytest.param(("train.activation_checkpointing=true", "model.dropout=0.2"), id="recomputed-activations"),
        pytest.param(("runtime.engine=torch", "model.dropout=0.2", "train.micro_batch_size=2"), id="by-torch"),
    ],
)
@pytest.mark.parametrize("stop_at", [1, 4, 5, 11, 12])
def test_stopped_and_resumed_equals_uninterrupted_bit_for_bit(uninterrupted, tmp_path, monkeypatch, overrides, stop_at):
    full_run = uninterrupted(overrides)
    interrupt_at(monkeypatch, stop_at - 1)
    config = make_config(tmp_path, *overrides, name="stopped")
    first = run(config)
    assert (first.steps, first.exit_code) == (stop_at, 143)
    second = run(config)
    assert second.exit_code == 0
    assert weights(second) == weights(full_run)
    assert timeless(second.run_dir) == timeless(full_run.run_dir)
    assert samples(second.run_dir) == samples(full_run.run_dir)


def test_a_run_stopped_at_every_step_equals_uninterrupted_bit_for_bit(tmp_path, monkeypatch, record_property):
    record_property("faults", 30)
    changes = ("train.steps=30", "model.dropout=0.2", "checkpoint.every=7", "eval.every=5", "sample.every=10")
    full_run = run(make_config(tmp_path, *changes, name="whole"))
    config = make_config(tmp_path, *changes, name="stopped")
    for step in range(30):  # the process that resumes at `step` makes one update
        with monkeypatch.context() as patch:
            interrupt_at(patch, step)
            summary = run(config)
        assert summary.steps == step + 1
    assert weights(summary) == weights(full_run)
    assert timeless(run(config).run_dir) == timeless(full_run.run_dir)
    assert samples(summary.run_dir) == samples(full_run.run_dir)


def test_a_resume_from_the_checkpoint_of_any_step_equals_uninterrupted_bit_for_bit(tmp_path, record_property):
    record_property("faults", 29)
    changes = ("train.steps=30", "checkpoint.every=1", "checkpoint.keep=30", "sample.every=null", "optim.ema=0.9")
    full_run = run(make_config(tmp_path, *changes, name="whole"))
    for step in range(1, 30):
        name = f"from-{step}"
        shutil.copytree(tmp_path / "whole", tmp_path / name)
        for path in list_checkpoints(tmp_path / name):
            if int(path.name.removeprefix("step-")) > step:
                shutil.rmtree(path)
        resumed = run(make_config(tmp_path, *changes, "checkpoint.every=null", name=name))
        assert weights(resumed) == weights(full_run)
        assert timeless(resumed.run_dir) == timeless(full_run.run_dir)
        shutil.rmtree(tmp_path / name)


@pytest.mark.parametrize("stop_at", [3, 5, 6, 7, 11])
def test_a_scaled_loss_resumes_exactly_overflows_included(tmp_path, monkeypatch, stop_at):
    monkeypatch.setattr(state, "GradScaler", lambda *_: GradScaler(enabled=True))  # as for fp16, which needs a GPU
    monkeypatch.setattr(grad_scaler, "GROWTH_INTERVAL", 3)
    scales = {}

    def overflowing_step(state, micro_batches, config, step, *args):
        hooks = []
        if step in (5, 9):
            weight = state.model.blocks[0].mlp.down.weight
            hooks.append(weight.register_hook(lambda gradient: gradient * math.inf))
        result = train_step(state, micro_batches, config, step, *args)
        scales[step + 1] = (state.grad_scaler.scale.item(), state.grad_scaler.good_updates.item())
        for hook in hooks:
            hook.remove()
        return result

    monkeypatch.setattr(loop, "train_step", overflowing_step)
    full_run = run(make_config(tmp_path, "runtime.engine=torch", name="whole"))
    expected = dict(scales)
    assert [scale / 2**16 for scale, _ in expected.values()] == [1, 1, 2, 2, 2, 1, 1, 1, 2, 1, 1, 1]
    config = make_config(tmp_path, "runtime.engine=torch", name="stopped")
    with monkeypatch.context() as patch:
        original = loop.train_step

        def step_with_signal(*arguments):
            if arguments[3] == stop_at - 1:
                os.kill(os.getpid(), signal.SIGTERM)
            return original(*arguments)

        patch.setattr(loop, "train_step", step_with_signal)
        assert run(config).steps == stop_at
    saved_state = load(list_checkpoints(Path(config.run_dir))[0]).state
    assert (saved_state["loss_scale"], saved_state["loss_scale_good_updates"]) == expected[stop_at]
    scales.clear()
    second = run(config)
    assert scales == {step: expected[step] for step in range(stop_at + 1, 13)}
    assert weights(second) == weights(full_run)
    assert timeless(second.run_dir) == timeless(full_run.run_dir)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_the_first_step_changes_nothing(tmp_path, monkeypatch, number):
    full_run = run(make_config(tmp_path, "train.patience=1", name="whole"))
    original, sent_signals = loop.evaluate_task, []

    def evaluate_with_signal(*arguments):
        if not sent_signals:
            sent_signals.append(os.kill(os.getpid(), number))
        return original(*arguments)

    monkeypatch.setattr(loop, "evaluate_task", evaluate_with_signal)
    config = make_config(tmp_path, "train.patience=1", name="stopped")
    assert run(config).exit_code == 128 + number
    second = run(config)
    assert weights(second) == weights(full_run)
    assert timeless(second.run_dir) == timeless(full_run.run_dir)


@pytest.mark.parametrize("stop_at", [1, 3, 5, 7])
def test_an_interruption_does_not_change_when_a_run_without_progress_ends(tmp_path, monkeypatch, stop_at):
    changes = ("train.patience=2", "train.steps=60", "optim.lr=5.0", "optim.adamw_lr=5.0")
    full_run = run(make_config(tmp_path, *changes, name="whole"))
    interrupt_at(monkeypatch, stop_at - 1)
    config = make_config(tmp_path, *changes, name="stopped")
    run(config)
    second = run(config)
    assert (second.steps, second.stopped) == (full_run.steps, full_run.stopped)
    assert weights(second) == weights(full_run)


def test_a_stopped_run_tells_the_loss_of_the_step_that_it_saved_or_none(tmp_path, monkeypatch):
    interrupt_at(monkeypatch, 6)
    summary = run(make_config(tmp_path, "eval.every=4", "log.every=5"))
    assert summary.steps == 7
    assert (summary.val_loss, summary.bpc, summary.bpb) == (None, None, None)
    assert summary.best_val_loss is not None
    (end_event,) = [event for event in read_events(Path(summary.run_dir)) if event["event"] == "ended"]
    assert end_event["step"] == 7


def test_fewer_steps_than_are_saved_are_refused_and_change_nothing(tmp_path):
    run_dir = Path(run(make_config(tmp_path)).run_dir)
    before = (run_dir / "config.yaml").read_bytes()
    with pytest.raises(RequestError, match=r"train\.steps is 6, and .* has 12 steps already"):
        run(make_config(tmp_path, "train.steps=6"))
    assert (run_dir / "config.yaml").read_bytes() == before
    assert run(make_config(tmp_path, "train.steps=14")).steps == 14


def test_a_run_interrupted_before_anything_was_measured_says_how_it_ended(tmp_path, monkeypatch):
    interrupt_at(monkeypatch, 1)
    summary = run(make_config(tmp_path, "eval.every=null", "sample.every=null", "log.every=10"))
    assert (summary.steps, summary.val_loss, summary.exit_code) == (2, None, 143)


def test_the_best_weights_are_kept_whatever_the_cadence_of_checkpoints(tmp_path):
    summary = run(make_config(tmp_path, "eval.every=2", "checkpoint.every=8", "train.steps=20", "optim.lr=0.3"))
    assert load(Path(summary.best_checkpoint)).state["val_loss"] == summary.best_val_loss


def test_a_validation_loss_that_is_not_finite_stops_the_run_and_is_never_saved(tmp_path, monkeypatch):
    original = loop.evaluate_task
    monkeypatch.setattr(loop, "evaluate_task", lambda *arguments: replace(original(*arguments), loss=math.inf))
    with pytest.raises(UserError, match="the validation loss is inf at step 0"):
        run(make_config(tmp_path))


def test_each_step_is_in_the_metrics_once_after_a_resume(tmp_path, monkeypatch):
    config = make_config(tmp_path)
    interrupt_at(monkeypatch, 5, signal.SIGINT)
    assert run(config).exit_code == 130
    run(config)
    lines = read_metrics(Path(config.run_dir))
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))
    eval_steps = [line["step"] for line in lines if "val_loss" in line]
    assert eval_steps == sorted(set(eval_steps))


def test_a_finished_run_is_left_as_it_is(tmp_path):
    config = make_config(tmp_path)
    first = run(config)
    old_files = contents(Path(config.run_dir))
    second = run(config)
    assert (second.steps, second.val_loss, weights(second)) == (12, first.val_loss, weights(first))
    assert contents(Path(config.run_dir)) == old_files


def test_more_steps_continue_a_finished_run(tmp_path):
    run(make_config(tmp_path))
    assert run(make_config(tmp_path, "train.steps=16")).steps == 16


@pytest.mark.parametrize("micro_batch_size", [1, 2])
def test_accumulation_changes_nothing_but_rounding(tmp_path, micro_batch_size):
    config = make_config(tmp_path, "runtime.precision=fp32", "optim.name=adamw", "optim.lr=1e-3")
    full_batch_run = run(config)
    micro_batch_run = run(
        make_config(
            tmp_path, "runtime.precision=fp32", "optim.name=adamw", "optim.lr=1e-3",
            f"train.micro_batch_size={micro_batch_size}", name="parts",
        )
    )  # fmt: skip
    for a, b in zip(timeless(full_batch_run.run_dir), timeless(micro_batch_run.run_dir), strict=True):
        assert a == pytest.approx(b, rel=1e-4)


def test_a_changed_config_is_refused_showing_both_values(tmp_path):
    run(make_config(tmp_path))
    with pytest.raises(RequestError, match=r"optim\.lr 0\.02 there, 0\.5 here"):
        run(make_config(tmp_path, "optim.lr=0.5"))


def test_a_changed_text_is_refused(tmp_path):
    config = make_config(tmp_path)
    run(config)
    Path(config.data.source).write_text(TEXT + "It was the age.\n")
    with pytest.raises(RequestError, match="the text has changed"):
        run(config)


def test_it_stops_at_a_loss_after_enough_time_or_without_progress(tmp_path):
    assert "until_loss" in run(make_config(tmp_path, "train.until_loss=9.0", name="a")).stopped
    timed_run = run(make_config(tmp_path, "train.max_minutes=1e-6", name="b"))
    assert "max_minutes" in timed_run.stopped
    assert timed_run.steps <= 1
    stale_run = run(
        make_config(tmp_path, "train.patience=2", "train.steps=60", "optim.lr=5.0", "optim.adamw_lr=5.0", name="c")
    )
    assert "patience" in stale_run.stopped
    assert stale_run.steps < 60


def test_a_loss_that_is_not_finite_stops_the_run_and_is_never_saved(tmp_path, monkeypatch):
    original = token_loss
    monkeypatch.setattr("gpt_cli.training.torch_engine.token_loss", lambda *a: original(*a) * poison[0])
    poison = [1.0]
    real_step = train_step

    def poisoned_step(*arguments):
        poison[0] = math.nan if arguments[3] >= 6 else 1.0
        return real_step(*arguments)

    monkeypatch.setattr(loop, "train_step", poisoned_step)
    config = make_config(tmp_path, "runtime.engine=torch")
    with pytest.raises(UserError, match="the loss is nan at step 7"):
        run(config)
    newest_checkpoint = load(list_checkpoints(Path(config.run_dir))[0])
    assert newest_checkpoint.step == 4
    assert all(t.isfinite().all() for t in newest_checkpoint.model_tensors.values())


def test_the_last_checkpoint_and_the_best_one_are_kept(tmp_path):
    config = make_config(tmp_path, "checkpoint.keep=1", "train.steps=24", "optim.lr=0.5")
    summary = run(config)
    checkpoints = {load(path).state["val_loss"]: path for path in list_checkpoints(Path(config.run_dir))}
    assert len(checkpoints) <= 2
    assert min(checkpoints) == summary.best_val_loss
    assert str(checkpoints[min(checkpoints)]) == summary.best_checkpoint


def test_samples_and_metrics_are_files_anyone_can_read(tmp_path):
    summary = run(make_config(tmp_path))
    samples = [json.loads(line) for line in (Path(summary.run_dir) / "samples.jsonl").read_text().splitlines()]
    assert [sample["step"] for sample in samples] == [0, 6, 12]
    assert all(len(sample["text"]) == 20 for sample in samples)
    last_metrics = read_metrics(Path(summary.run_dir))[-1]
    assert last_metrics["val_loss"] == summary.val_loss
    assert last_metrics["bpb"] == pytest.approx(summary.val_loss / math.log(2))


@pytest.mark.parametrize("compiler", [True, False], ids=["a compiler", "no compiler"])
@pytest.mark.parametrize(
    ("change", "is_needed"),
    [
        ("seed=1", True),
        ("sample.every=null", False),
        ("runtime.engine=torch", False),
        ("sample.repetition_penalty=1.1", False),  # torch samples what the decoder does not support
    ],
)
def test_the_decoder_of_samples_is_compiled_before_the_clock_starts(tmp_path, monkeypatch, change, is_needed, compiler):
    events, is_native = [], False

    def load_kernel(**_: Any) -> None:
        events.append("decoder")
        if not compiler:
            raise KernelUnavailable("no C compiler")

    def metrics_logger(*arguments: Any) -> MetricsLogger:
        nonlocal is_native
        is_native = arguments[3].is_native  # on a machine without a compiler no run is
        events.append("clock")
        return MetricsLogger(*arguments)

    monkeypatch.setattr(training_samples, "load_kernel", load_kernel)
    monkeypatch.setattr(loop, "MetricsLogger", metrics_logger)
    summary = run(make_config(tmp_path, change))
    assert summary.steps == 12
    assert events == (["decoder", "clock"] if is_needed and is_native else ["clock"])


def test_a_prompt_that_the_vocabulary_cannot_spell_is_told_before_training(tmp_path):
    config = make_config(tmp_path, "sample.prompt=Ω")
    with pytest.raises(RequestError, match="vocabulary lacks"):
        run(config)
    assert not Path(config.run_dir).exists()


@pytest.mark.parametrize("in_vain", [True, False], ids=["which fails", "which ends before"])
def test_a_run_that_is_moved_during_a_save_is_saved_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_vain: bool
) -> None:
    config = make_config(tmp_path)
    run_dir, original = Path(config.run_dir or ""), checkpoint.save

    def save_and_move(path: Path, step: int, *contents: Any) -> Path:
        if path != run_dir or step != 4:
            return original(path, step, *contents)
        saved = path if in_vain else original(path, step, *contents)
        run_dir.rename(tmp_path / "elsewhere")
        if in_vain:
            raise DiskError("no such file or directory")
        return saved

    monkeypatch.setattr(checkpoint, "save", save_and_move)
    with pytest.raises(UserError, match="was removed or moved") as error:
        run(config)
    rescued = tmp_path / "run-rescued" / "checkpoints" / "step-00000004"
    assert (error.value.kind, error.value.path) == ("checkpoint", str(rescued))
    assert load(rescued).step == 4
