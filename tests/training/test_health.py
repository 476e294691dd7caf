"""Training that is not well says so: what was bad first, what jumped, did not fit, hangs, or keeps dying."""

import json
import math
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gpt_cli.config import dump_config
from gpt_cli.cpu.train.build_settings import has_bf16_products
from gpt_cli.cpu.train.native_engine import NativeEngine
from gpt_cli.errors import UserError
from gpt_cli.run.checkpoint import list_checkpoints, load
from gpt_cli.run.log import read_events
from gpt_cli.runtime.oom_killer import oom_kill_count
from gpt_cli.training import state, training_samples
from gpt_cli.training.health import SpikeDetector
from gpt_cli.training.oom_retry import next_smaller, resplit
from tests.support.command import subprocess_env
from tests.support.tiny_run import interrupt_at, make_config, run, timeless, weights
from tests.support.training_faults import HARMS, at_step, poison_gradient
from tests.support.waiting import HANG


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("how", ["precision=fp32", "precision=bf16", "engine=torch"])
@pytest.mark.parametrize("kind", HARMS)
def test_what_is_not_finite_is_named_with_its_step_and_never_saved(tmp_path, monkeypatch, kind, how, value):
    harm, message = HARMS[kind]
    at_step(monkeypatch, 6, lambda state, _: harm(state, value))
    if how == "precision=bf16" and not has_bf16_products():
        pytest.skip("this processor does not multiply bf16")
    config = make_config(tmp_path, f"runtime.{how}")
    with pytest.raises(UserError) as caught:
        run(config)
    assert message in caught.value.message
    assert "nothing of it was saved" in caught.value.message
    checkpoint = load(list_checkpoints(tmp_path / "run")[0])
    assert checkpoint.step == 4
    assert all(tensor.isfinite().all() for tensor in checkpoint.model_tensors.values())


@pytest.mark.parametrize("kind", ["weight", "moment", "gradient"])
def test_what_turns_bad_just_before_a_save_is_not_saved(tmp_path, monkeypatch, kind):
    at_step(monkeypatch, 7, lambda state, _: HARMS[kind][0](state, math.nan))  # the update that step 8 would save
    with pytest.raises(UserError, match="not finite"):
        run(make_config(tmp_path))
    assert load(list_checkpoints(tmp_path / "run")[0]).step == 4


def test_an_update_with_a_bad_gradient_is_not_made(tmp_path, monkeypatch):
    snapshot = {}

    def spoil(state, _):
        snapshot.update({name: tensor.clone() for name, tensor in state.model.state_dict().items()})
        snapshot["model"] = state.model
        poison_gradient(state, math.nan)

    at_step(monkeypatch, 6, spoil)
    with pytest.raises(UserError):
        run(make_config(tmp_path))
    model = snapshot.pop("model")
    assert all(torch.equal(tensor, snapshot[name]) for name, tensor in model.state_dict().items())


# Spikes


def test_a_spike_is_told_once_when_it_begins():
    dice, detector = random.Random(0), SpikeDetector()
    spike_steps = [step for step in range(1000) if detector.update(9.0 if 500 <= step < 510 else dice.gauss(2.0, 0.1))]
    assert spike_steps == [500]


@pytest.mark.parametrize("seed", range(10))
def test_ordinary_noise_around_a_falling_loss_is_no_spike(seed):
    dice, detector = random.Random(seed), SpikeDetector()
    assert not any(detector.update(1.5 + 3.0 * math.exp(-step / 300) + dice.gauss(0.0, 0.1)) for step in range(3000))


def test_the_long_tail_of_ordinary_gradient_norms_is_no_spike_and_four_times_their_mean_is():
    dice, detector = random.Random(0), SpikeDetector(least=2.0)
    norms = [dice.lognormvariate(0.0, 0.2) for _ in range(20_000)]
    assert not any(map(detector.update, norms))
    assert max(norms) > 2 * detector.mean
    assert detector.update(4 * detector.mean)


def test_a_spike_of_the_loss_is_an_event_and_a_note_and_training_goes_on(tmp_path, monkeypatch, capsys):
    def scramble(state, _):
        state.model.head.weight.data.mul_(-30.0)

    at_step(monkeypatch, 150, scramble)
    summary = run(make_config(tmp_path, "train.steps=160", "eval.every=null", "sample.every=null"))
    assert summary.steps == 160
    (loss,) = [event for event in read_events(tmp_path / "run") if event.get("of") == "loss"]
    assert (loss["event"], loss["step"]) == ("spike", 151)
    assert loss["value"] > loss["running_mean"]
    assert "the loss jumped to" in capsys.readouterr().out


# Memory


def out_of_memory_above(rows, error):
    def harm(_state, micro_batches):
        if len(micro_batches[0][0]) > rows:
            raise error

    return harm


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=["MemoryError", "CUDA", "CPU"],
)
def test_out_of_memory_is_answered_by_smaller_micro_batches_of_the_same_batch(tmp_path, monkeypatch, capsys, error):
    reference_run = run(make_config(tmp_path, "train.micro_batch_size=1", name="same"))
    harm = out_of_memory_above(1, error)
    at_step(monkeypatch, 0, harm)
    retried_run = run(make_config(tmp_path, "train.micro_batch_size=4", name="answered"))
    assert weights(retried_run) == weights(reference_run)
    assert timeless(retried_run.run_dir) == timeless(reference_run.run_dir)
    sizes = [(e["micro_batch_size"], e["smaller"]) for e in read_events(tmp_path / "answered") if "smaller" in e]
    assert sizes == [(4, 2), (2, 1)]
    assert "continuing with 1" in capsys.readouterr().out


def test_out_of_memory_in_the_middle_leaves_no_trace_of_the_failed_try(tmp_path, monkeypatch):
    reference_run = run(make_config(tmp_path, "runtime.precision=fp32", name="whole"))
    tries = []

    def fail_after_backward(state, _):
        tries.append(True)
        if len(tries) == 1:
            for parameter in state.model.parameters():
                parameter.grad = torch.full_like(parameter, 1e3)
            raise MemoryError

    at_step(monkeypatch, 6, fail_after_backward)
    retried_run = run(make_config(tmp_path, "runtime.precision=fp32", name="answered"))
    assert len(tries) == 2
    assert retried_run.val_loss == pytest.approx(reference_run.val_loss, rel=1e-4)


def test_one_sequence_that_does_not_fit_is_told_with_a_way_out(tmp_path, monkeypatch):
    run(make_config(tmp_path, "train.steps=4"))
    at_step(monkeypatch, 6, out_of_memory_above(0, MemoryError("all of it")))
    with pytest.raises(UserError, match="not even a single sequence fits") as caught:
        run(make_config(tmp_path))
    assert "model.context_length" in caught.value.hint
    assert load(list_checkpoints(tmp_path / "run")[0]).step == 4


OUT_OF_MEMORY = RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory")


def test_an_evaluation_that_does_not_fit_takes_fewer_windows_at_once(tmp_path, monkeypatch):
    reference_run = run(make_config(tmp_path, "eval.batch_size=8", name="whole"))
    summed_loss, sizes = NativeEngine.summed_loss, []

    def small_machine(engine, inputs, targets):
        sizes.append(len(inputs))
        if len(inputs) > 2:
            raise OUT_OF_MEMORY
        return summed_loss(engine, inputs, targets)

    monkeypatch.setattr(NativeEngine, "summed_loss", small_machine)
    retried_run = run(make_config(tmp_path, "eval.batch_size=8", name="answered"))
    assert sizes[:3] == [8, 4, 2]
    assert retried_run.val_loss == pytest.approx(reference_run.val_loss, rel=1e-6)
    assert weights(retried_run) == weights(reference_run)


@pytest.mark.parametrize(
    ("target", "name", "doing"),
    [
        (NativeEngine, "summed_loss", "evaluating a single window"),
        (training_samples, "stream_batches", "writing a sample"),
        (training_samples, "stream_native", "writing a sample"),
        (state, "MuonAdamW", "building the model"),
    ],
)
@pytest.mark.parametrize("error", [MemoryError(), OUT_OF_MEMORY], ids=["MemoryError", "CPU"])
def test_out_of_memory_outside_a_step_says_where_and_what_to_do(tmp_path, monkeypatch, target, name, doing, error):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(target, name, fail)
    engine = "torch" if name == "stream_batches" else "auto"
    if name == "stream_native":
        monkeypatch.setattr(target, "stream_batches", fail)  # for a machine without a compiler
    with pytest.raises(UserError, match=f"out of memory while {doing}") as caught:
        run(make_config(tmp_path, f"runtime.engine={engine}"))
    assert caught.value.hint
    assert caught.value.exit_code == 1


@pytest.mark.robust
def test_a_model_far_larger_than_the_machine_is_one_clear_error(gpt, tmp_path):
    (tmp_path / "config.yaml").write_text(dump_config(make_config(tmp_path, "model.n_embd=4000000")))
    outcome = gpt("train", "--config", "config.yaml")
    assert outcome.rc == 1, outcome.stderr
    assert "error: out of memory while building the model\nhint: lower model.n_embd" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_another_failure_is_not_taken_for_memory(tmp_path, monkeypatch):
    at_step(monkeypatch, 0, out_of_memory_above(0, RuntimeError("shapes do not match")))
    with pytest.raises(RuntimeError, match="shapes"):
        run(make_config(tmp_path))


def test_regrouping_keeps_every_row_in_its_order():
    rows = torch.arange(24).view(12, 2)
    size = 12
    while size > 1:
        size = next_smaller(size)
        groups = resplit([(rows, -rows)], size)
        assert {len(inputs) for inputs, _ in groups} == {size}
        assert torch.equal(torch.cat([inputs for inputs, _ in groups]), rows)
        assert torch.equal(torch.cat([targets for _, targets in groups]), -rows)


# Hangs


@pytest.mark.robust
def test_a_hang_prints_where_every_thread_is_and_exits_with_1(tmp_path):
    config = make_config(tmp_path, "runtime.watchdog_minutes=0.02")
    assert config.runtime.watchdog_minutes == 0.02
    (tmp_path / "hang.py").write_text(
        "import faulthandler, signal, sys\n"
        "from gpt_cli.training import loop\n"
        "from gpt_cli.cli.main import main\n"
        "step, later, asked = loop.train_step, faulthandler.dump_traceback_later, []\n"
        "def waits_for_ever(*arguments):\n"
        "    if arguments[3] == 5:\n"
        "        later(*asked[-1][0], **asked[-1][1])\n"
        "        signal.pause()\n"
        "    return step(*arguments)\n"
        "loop.train_step = waits_for_ever\n"
        "# The steps before may take any time: what was asked for begins once it hangs.\n"
        "faulthandler.dump_traceback_later = lambda *a, **b: asked.append((a, b))\n"
        "sys.exit(main(['train', '--config', 'config.yaml']))\n"
    )
    (tmp_path / "config.yaml").write_text(dump_config(config))
    completed = subprocess.run(
        [sys.executable, "hang.py"],
        cwd=tmp_path,
        env=subprocess_env(),
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert completed.returncode == 1
    assert "Timeout" in completed.stderr
    assert "in waits_for_ever" in completed.stderr
    assert load(list_checkpoints(tmp_path / "run")[0]).step == 4


# Restarts


def ends(run_dir):
    return [event["event"] for event in read_events(run_dir) if event["event"] not in ("spike", "config changed")]


def test_being_killed_is_recorded_by_the_next_process(tmp_path):
    config = make_config(tmp_path)
    run(make_config(tmp_path, "train.steps=4"))
    with (tmp_path / "run" / "events.jsonl").open("a") as file:
        for event in ("started", "killed", "started", "killed", "started", "killed", "started"):
            file.write(json.dumps({"time": "", "event": event, "step": 4}) + "\n")
    assert run(config).steps == 12
    assert ends(tmp_path / "run")[-4:] == ["started", "killed", "started", "ended"]


def test_a_kill_while_the_kernel_killed_for_memory_is_recorded_as_such(tmp_path, monkeypatch):
    run(make_config(tmp_path, "train.steps=4"))
    counter = iter([7, 8, 8])
    monkeypatch.setattr("gpt_cli.run.lifecycle.oom_kill_count", lambda: next(counter))
    with (tmp_path / "run" / "events.jsonl").open("a") as file:
        file.write(json.dumps({"time": "", "event": "started", "step": 4, "memory_kills": next(counter)}) + "\n")
    run(make_config(tmp_path))
    kill_event, start_event = [e for e in read_events(tmp_path / "run") if e["event"] in ("killed", "started")][-2:]
    assert (kill_event["event"], kill_event["start"], kill_event["memory"]) == ("killed", 4, True)
    assert start_event["memory_kills"] == 8


@pytest.mark.skipif(not Path("/proc/vmstat").exists(), reason="only Linux tells")
def test_the_kernels_count_of_kills_is_read():
    assert isinstance(oom_kill_count(), int)


def test_a_signal_is_no_death(tmp_path, monkeypatch):
    config = make_config(tmp_path)
    interrupt_at(monkeypatch, 5, signal.SIGINT)
    assert run(config).exit_code == 130
    assert ends(tmp_path / "run") == ["started", "ended"]


# Noise


def test_every_step_has_its_own_noise(tmp_path, monkeypatch):
    seeds = []
    seed_everything = torch.manual_seed
    monkeypatch.setattr(torch, "manual_seed", lambda seed: seeds.append(seed) or seed_everything(seed))
    run(make_config(tmp_path, "train.micro_batch_size=2", "sample.every=null", "runtime.engine=torch"))
    torch_seeds = list(seeds)
    compute = NativeEngine.forward_backward
    monkeypatch.setattr(NativeEngine, "forward_backward", lambda *args: seeds.append(args[-1]) or compute(*args))
    seeds.clear()
    run(make_config(tmp_path, "train.micro_batch_size=2", "sample.every=null", name="native"))
    assert seeds == torch_seeds
    assert len(seeds) == len(set(seeds)) == 1 + 2 * 12  # the weights, and two micro-batches of each step
