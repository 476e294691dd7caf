"""Checkpoints: what is saved stays, what is damaged is noticed, and nothing foreign is ever loaded."""

import errno
import hashlib
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from safetensors.torch import load as load_safetensors

from gpt_cli.config import Config
from gpt_cli.errors import UserError
from gpt_cli.files import DamagedError, DiskError, atomic_dir
from gpt_cli.run import checkpoint
from gpt_cli.run.tensors import check_tensors, pack_tensors, unpack_tensors
from gpt_cli.tokenizer import ByteTokenizer
from tests.support.command import subprocess_env
from tests.support.faulty_disk import FaultyDisk, PowerCut
from tests.support.sums import rewrite
from tests.support.tiny_checkpoint import CONFIG, TOKENIZER, assert_same, moments, newest, no_note, save, steps, weights

# Saving and loading


@pytest.mark.parametrize("value", [10**40, -(10**40), 2**53 + 1, 1e300, math.nan, math.inf, "3", None, True])
def test_a_number_that_a_tensor_could_not_hold_is_damage_and_not_a_bug(value: Any) -> None:
    loaded_checkpoint = checkpoint.Checkpoint(
        Path("x"), 1, {"n": value, "three": 3, "large": 10**30}, Config(), ByteTokenizer(), {}, ""
    )
    with pytest.raises(DamagedError, match="does not contain n"):
        loaded_checkpoint.get_float("n", 2**53)
    assert loaded_checkpoint.get_float("three", 3) == 3
    torch.tensor(1.0).fill_(loaded_checkpoint.get_float("large"))  # torch takes no integer of that size


def test_what_is_saved_is_what_is_loaded_bit_for_bit(tmp_path: Path) -> None:
    path = save(tmp_path, 12, val_loss=0.1 + 0.2)
    assert path == tmp_path / "checkpoints" / "step-00000012"
    actual = checkpoint.load_newest(tmp_path, no_note)
    assert actual is not None
    assert (actual.path, actual.step, actual.config, actual.tokenizer) == (path, 12, CONFIG, TOKENIZER)
    assert actual.state["val_loss"] == 0.1 + 0.2
    assert actual.state["nested"] == {"scale": 0.1}
    assert_same(actual.model_tensors, weights(12))
    assert_same(actual.optimizer_tensors(), moments(12))
    assert actual.weights_sha256 == hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()


def test_a_checkpoint_copied_anywhere_loads(tmp_path: Path) -> None:
    shutil.copytree(save(tmp_path / "run", 3), tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "run")
    assert_same(checkpoint.load(tmp_path / "elsewhere").model_tensors, weights(3))


def test_loaded_tensors_are_writable_and_do_not_depend_on_the_files(tmp_path: Path) -> None:
    actual = checkpoint.load(save(tmp_path, 3))
    shutil.rmtree(actual.path)
    actual.model_tensors["embedding"].add_(1)
    assert actual.model_tensors["embedding"].sum() == 24


def test_equal_weights_are_equal_bytes() -> None:
    tied_tensor = torch.ones(3)
    tensors = {"b": tied_tensor, "a": torch.zeros(2), "c": tied_tensor, "d": tied_tensor}
    assert pack_tensors(tensors) == pack_tensors(dict(tensors)) == pack_tensors({k: tensors[k] for k in "bacd"})


def test_a_tied_tensor_is_stored_once_and_stays_tied() -> None:
    matrix = torch.randn(100, 10)
    data = pack_tensors({"embedding": matrix, "head": matrix, "other": matrix.clone()})
    assert set(load_safetensors(data)) == {"embedding", "other"}
    loaded_tensors = unpack_tensors(data, "file")
    assert_same(loaded_tensors, {"embedding": matrix, "head": matrix, "other": matrix})
    assert loaded_tensors["head"] is loaded_tensors["embedding"] is not loaded_tensors["other"]


def test_views_empty_tensors_and_parameters_are_stored_as_what_they_are() -> None:
    matrix = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "transposed": matrix.T,
        "row": matrix[1],
        "empty": torch.empty(0, 4),
        "void": torch.empty(0, 4),
        "parameter": torch.nn.Parameter(matrix[2:]),
        "count": torch.tensor(3),
    }
    assert_same(unpack_tensors(pack_tensors(tensors), "file"), {k: t.detach() for k, t in tensors.items()})


def test_newest_is_the_highest_step_not_the_last_written(tmp_path: Path) -> None:
    for step in (5, 100_000_000, 99_999_999, 7):
        save(tmp_path, step)
    assert newest(tmp_path) == 100_000_000
    assert steps(tmp_path) == [100_000_000, 99_999_999, 7, 5]


def test_a_run_without_checkpoints_has_none(tmp_path: Path) -> None:
    assert checkpoint.load_newest(tmp_path, no_note) is None
    assert checkpoint.best_checkpoint(tmp_path) is None
    assert checkpoint.prune(tmp_path, keep=1) == []


def test_saving_the_same_step_again_changes_nothing_if_it_is_the_same_training(tmp_path: Path) -> None:
    path = save(tmp_path, 3, val_loss=1.0)
    old_state = (path / "state.json").read_bytes()
    assert save(tmp_path, 3, val_loss=2.0) == path
    assert (path / "state.json").read_bytes() == old_state


def test_saving_the_same_step_of_another_training_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 3)
    with pytest.raises(UserError, match="step 3 of another course of training"):
        checkpoint.save(tmp_path, 3, weights(4), moments(3), {}, CONFIG, TOKENIZER)
    assert newest(tmp_path) == 3


def test_a_damaged_step_is_replaced_when_training_gets_there_again(tmp_path: Path) -> None:
    (save(tmp_path, 3) / "model.safetensors").write_bytes(b"damaged")
    save(tmp_path, 3)
    assert newest(tmp_path) == 3
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000003"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", ["weight", "optimizer state"])
def test_tensors_that_are_not_finite_are_never_saved_and_the_first_is_named(
    tmp_path: Path, value: float, which: str
) -> None:
    save(tmp_path, 3)
    model, optimizer = weights(4), moments(4)
    tensors = model if which == "weight" else optimizer
    name = list(tensors)[1]
    tensors[name] = torch.full_like(tensors[name], value)
    with pytest.raises(UserError, match=f"step 4: {which} {name} has .* not finite"):
        checkpoint.save(tmp_path, 4, model, optimizer, {}, CONFIG, TOKENIZER)
    assert newest(tmp_path) == 3


def test_a_number_that_json_lacks_is_not_saved_as_something_else(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        save(tmp_path, 1, val_loss=math.nan)
    assert steps(tmp_path) == []


# Damage


def test_every_kind_of_damage_is_told_kept_and_answered_with_the_previous_checkpoint(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    save(tmp_path, 1)
    path = save(tmp_path, 2)
    contents = {file.name: file.read_bytes() for file in path.iterdir()}
    dice = random.Random(0)
    cases: list[tuple[str, bytes | None]] = [("foreign", b"")]
    for name, data in contents.items():
        cases += [(name, None), (name, b""), (name, data[:-1]), (name, data + b"\0")]
        for bit in dice.sample(range(8 * len(data)), 40):
            flipped_data = bytearray(data)
            flipped_data[bit // 8] ^= 1 << bit % 8
            cases.append((name, bytes(flipped_data)))
    record_property("faults", len(cases))
    for name, damaged_data in cases:
        (path / name).unlink(missing_ok=True)
        if damaged_data is not None:
            (path / name).write_bytes(damaged_data)
        notes: list[str] = []
        assert newest(tmp_path, notes.append) == 1
        assert len(notes) == 1
        assert name == "SHA256SUMS" or name in notes[0]
        assert f"{path} is damaged: " in notes[0]
        assert "it is skipped" in notes[0]
        assert path.is_dir()
        (path / name).unlink(missing_ok=True)
        if name in contents:
            (path / name).write_bytes(contents[name])
    assert newest(tmp_path) == 2


def test_a_checkpoint_under_the_name_of_another_step_is_damage(tmp_path: Path) -> None:
    shutil.copytree(save(tmp_path, 1), tmp_path / "checkpoints" / "step-00000009")
    notes: list[str] = []
    assert newest(tmp_path, notes.append) == 1
    assert "it holds step 1" in notes[0]
    save(tmp_path, 2)
    checkpoint.prune(tmp_path, keep=1)
    assert newest(tmp_path, notes.append) == 2  # it did not count as the one to keep


def test_a_run_with_only_damaged_checkpoints_is_not_started_again_by_itself(tmp_path: Path) -> None:
    (save(tmp_path, 1) / "state.json").unlink()
    notes: list[str] = []
    with pytest.raises(UserError, match=r"no checkpoint in .* is intact"):
        checkpoint.load_newest(tmp_path, notes.append)
    assert len(notes) == 1


@pytest.mark.parametrize("moment", range(10))
def test_a_checkpoint_that_a_trainer_replaces_while_it_is_read_is_followed_by_the_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    save(tmp_path, 1)
    calls = 0

    def with_trainer(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == moment + 1:  # calls of the trainer itself are later ones
                save(tmp_path, 2)
                checkpoint.prune(tmp_path, keep=1)
            return function(*arguments, **options)

        return called

    for name in ("open", "listdir", "lstat"):
        monkeypatch.setattr(os, name, with_trainer(getattr(os, name)))
    notes: list[str] = []
    actual = checkpoint.load_newest(tmp_path, notes.append)
    assert calls > moment, "the checkpoint was never replaced"
    assert actual is not None
    assert_same(actual.model_tensors, weights(actual.step))
    assert actual.step == 2 or not (tmp_path / "checkpoints" / "step-00000001").exists()
    assert notes == []


def test_damage_between_loading_and_reading_the_optimizer_is_noticed(tmp_path: Path) -> None:
    actual = checkpoint.load(save(tmp_path, 1))
    (actual.path / "optimizer.safetensors").write_bytes(pack_tensors(moments(2)))
    with pytest.raises(DamagedError, match=r"optimizer\.safetensors does not match"):
        actual.optimizer_tensors()


STATE = {"format": 1, "step": 5, "tokenizer_digest": TOKENIZER.digest}


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        json.dumps(STATE | {"val_loss": math.nan}).encode(),
        json.dumps(STATE | {"step": "5"}).encode(),
        json.dumps(STATE | {"step": True}).encode(),
        json.dumps(STATE | {"step": 6}).encode(),
        json.dumps(STATE | {"tokenizer_digest": ByteTokenizer().digest}).encode(),
        json.dumps({"step": 5}).encode(),
    ],
)
def test_a_state_that_we_would_not_write_is_damage_though_its_sum_is_right(tmp_path: Path, state: bytes) -> None:
    path = save(tmp_path, 5)
    rewrite(path, "state.json", state)
    with pytest.raises(DamagedError, match="is damaged"):
        checkpoint.load(path)


def test_a_checkpoint_of_a_newer_format_is_not_called_damaged(tmp_path: Path) -> None:
    path = save(tmp_path, 5)
    rewrite(path, "state.json", json.dumps(STATE | {"format": 2}).encode())
    with pytest.raises(UserError, match=r"written by a newer gpt \(format 2\)") as caught:
        checkpoint.load_newest(tmp_path, no_note)
    assert not isinstance(caught.value, DamagedError)


def safetensors_file(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str, shape: list[int], end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04K\x01.",
        struct.pack("<Q", 2**63),
        struct.pack("<Q", 17 << 20) + b"{}",
        safetensors_file(b"[" * 100_000),
        safetensors_file(b"\xff\xff"),
        safetensors_file({"a": entry("F32", [2], 4)}, bytes(4)),
        safetensors_file({"a": entry("F32", [2**40], 2**42)}, bytes(8)),
        safetensors_file({"a": entry("F32", [-1], 4)}, bytes(4)),
        safetensors_file({"a": entry("F99", [1], 4)}, bytes(4)),
        safetensors_file({"a": entry("F32", [1], 4)}, bytes(5)),
        safetensors_file({"__metadata__": {"tied": "[]"}}),
        safetensors_file({"__metadata__": {"tied": '{"a": "nowhere"}'}}),
        safetensors_file({"__metadata__": {"tied": "[" * 100_000}}),
        safetensors_file({"__metadata__": {"tied": 3}}),
    ],
    ids=str,
)
def test_bytes_that_are_no_tensors_are_damage_not_a_crash(data: bytes) -> None:
    with pytest.raises(DamagedError, match="weights is not a safetensors file"):
        unpack_tensors(data, "weights")


def test_tensors_must_be_exactly_the_expected_ones() -> None:
    expected = {"a": (torch.Size([2]), torch.float32), "b": (torch.Size([0, 3]), torch.float32)}
    good_tensors = {"a": torch.zeros(2), "b": torch.zeros(0, 3)}
    check_tensors(good_tensors, expected)
    for bad_tensors, message in [
        ({"a": torch.zeros(2)}, "tensor b is missing"),
        (good_tensors | {"c": torch.zeros(1)}, "tensor c has no place in it"),
        (good_tensors | {"a": torch.zeros(3)}, r"tensor a is float32 \[3\], not float32 \[2\]"),
        (good_tensors | {"a": torch.zeros(2).bfloat16()}, r"tensor a is bfloat16 \[2\], not float32 \[2\]"),
        (good_tensors | {"b": torch.zeros(3, 0)}, r"tensor b is float32 \[3, 0\], not float32 \[0, 3\]"),
    ]:
        with pytest.raises(UserError, match=message):
            check_tensors(bad_tensors, expected)


# Failing disks and sudden ends


@pytest.mark.parametrize(("error", "lasting"), [(errno.ENOSPC, True), (errno.EIO, False), (errno.EROFS, True)])
def test_a_save_that_fails_anywhere_leaves_the_previous_checkpoint_and_can_be_repeated(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: int,
    lasting: bool,
    record_property: Callable[[str, object], None],
) -> None:
    save(tmp_path, 1)
    disk = FaultyDisk(tmp_path, monkeypatch)
    failures = 0
    for failure in disk.each_failure(lambda: save(tmp_path, 2), error, lasting=lasting):
        assert isinstance(failure, DiskError)
        assert newest(tmp_path) in (1, 2)
        failures += 1
        if newest(tmp_path) == 2:  # it failed after the rename
            shutil.rmtree(tmp_path / "checkpoints" / "step-00000002")
    record_property("faults", failures)
    assert failures > 20
    assert newest(tmp_path) == 2
    assert steps(tmp_path) == [2, 1]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_too_little_space_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    disk = FaultyDisk(tmp_path, monkeypatch)
    with pytest.raises(DiskError, match=r"no space left .* \(needs .* kB, 100 bytes free\)"):
        save(tmp_path, 2)
    assert "create" not in [name for name, _ in disk.log]


def test_checkpoints_are_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "outside")
    with pytest.raises(DiskError, match="symbolic link"):
        save(tmp_path / "run", 1)
    assert list((tmp_path / "outside").iterdir()) == []


def survived_power_cuts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Save three times and prune; cut the power before every operation; count what was left and checked.

    Raises AssertionError if a checkpoint that was said to be saved is lost, or if one that was not is there in part.
    """
    dice = random.Random(0)
    acknowledged_step = images = 0

    def cut() -> None:
        nonlocal images
        if not acknowledged_step:
            return
        with monkeypatch.context() as patch:
            patch.setattr(disk, "concerns", lambda path, options: False)
            for survives in (0.0, 0.5, 1.0):
                image = tmp_path / f"image-{images}"
                disk.left_over(image, dice, survives)
                assert newest(image) >= acknowledged_step
                shutil.rmtree(image)
                images += 1

    run = tmp_path / "run"
    run.mkdir()
    disk = PowerCut(run, monkeypatch, cut)
    for step in (1, 2, 3):
        save(run, step, val_loss=float(step))
        acknowledged_step = step
        cut()
    assert len(checkpoint.prune(run, keep=1)) == 1
    cut()
    return images


def test_a_power_cut_at_any_moment_never_loses_what_was_said_to_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    images = survived_power_cuts(tmp_path, monkeypatch)
    record_property("faults", images)
    assert images > 150


@pytest.mark.parametrize("forgotten", ["model.safetensors", "state.json", "SHA256SUMS", ".tmp-step", "checkpoints"])
def test_each_flush_is_needed_to_survive_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: str
) -> None:
    meet = PowerCut.meet

    def meet_but_forget(self: PowerCut, name: str, path: str, argument: Any = None) -> None:
        is_forgotten = name == "fsync" and Path(path).name.startswith(forgotten)
        meet(self, "nothing" if is_forgotten else name, path, argument)

    monkeypatch.setattr(PowerCut, "meet", meet_but_forget)
    with pytest.raises((AssertionError, UserError), match=r"^assert \d >= \d|is damaged|is intact|None"):
        survived_power_cuts(tmp_path, monkeypatch)


@pytest.mark.robust
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_killed_process_never_loses_what_it_said_was_saved(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property("faults", 20)
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.save_kill_loop", str(tmp_path)]
    completed = subprocess.run(command, env=subprocess_env(), capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    saved_step, kills_during_save = map(int, completed.stdout.split())
    assert saved_step >= 12  # by the ten that were killed after a save
    assert kills_during_save >= 8


# Keeping


def wait_for_another_time(file: Path) -> None:
    """Until what is written has later times than `file`: those of a file system move in ticks."""
    with tempfile.NamedTemporaryFile(dir=file.parents[1]) as probe:
        while os.stat(probe.name).st_mtime_ns <= os.stat(file).st_ctime_ns:
            os.utime(probe.name)


def test_best_is_the_lowest_finite_validation_loss_of_an_intact_checkpoint(tmp_path: Path) -> None:
    losses = {1: 3.0, 2: 1.0, 3: None, 4: 2.0, 5: 2.0, 6: 2.5}
    paths = {step: save(tmp_path, step, val_loss=loss) for step, loss in losses.items()}
    assert checkpoint.best_checkpoint(tmp_path) == paths[2]
    (paths[2] / "model.safetensors").unlink()
    assert checkpoint.best_checkpoint(tmp_path) == paths[5]  # the newest of equals
    (paths[5] / "state.json").write_bytes(b"?")
    assert checkpoint.best_checkpoint(tmp_path) == paths[4]


def test_pruning_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    for step, loss in enumerate([3.0, 1.0, 2.0, 2.0, 2.0], start=1):
        save(tmp_path, step, val_loss=loss)
    assert {path.name for path in checkpoint.prune(tmp_path, keep=2)} == {"step-00000001", "step-00000003"}
    assert steps(tmp_path) == [5, 4, 2]
    assert checkpoint.prune(tmp_path, keep=2) == []


def test_pruning_counts_only_what_verifies(tmp_path: Path) -> None:
    paths = {step: save(tmp_path, step, val_loss=float(10 - step)) for step in range(1, 7)}
    for step in (6, 5, 4):
        (paths[step] / "optimizer.safetensors").unlink()
    checkpoint.prune(tmp_path, keep=1)
    assert steps(tmp_path) == [6, 5, 4, 3]  # the damaged ones were told of as kept


def test_what_was_verified_is_read_again_only_once_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [save(tmp_path, step, val_loss=float(step)) for step in range(1, 5)]
    clock = time.time_ns  # it is a second later: nothing that changes from now on could have the times of these files
    monkeypatch.setattr(atomic_dir, "time", SimpleNamespace(time_ns=lambda: clock() + 10**9))
    read_paths: list[str] = []
    verify = atomic_dir._verified
    monkeypatch.setattr(atomic_dir, "_verified", lambda path, *a, **b: read_paths.append(path) or verify(path, *a, **b))
    checkpoint.prune(tmp_path, keep=2)
    assert {path.parent for path in read_paths} == {paths[0], *paths[2:]}
    read_paths.clear()
    checkpoint.prune(tmp_path, keep=2)
    assert checkpoint.best_checkpoint(tmp_path) == paths[0]
    assert read_paths == []
    checkpoint.load(paths[0])  # what is used is read, whatever is known of it
    assert len(read_paths) == 5
    for change in ("contents", "times", "file"):
        model = paths[0] / "model.safetensors"
        data = model.read_bytes()
        wait_for_another_time(model)
        if change == "contents":
            model.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        elif change == "times":
            os.utime(model, ns=(0, 0))
        else:
            model.unlink()
            model.write_bytes(data)
        read_paths.clear()
        checkpoint.best_checkpoint(tmp_path)
        assert model in read_paths
        model.write_bytes(data)


def test_pruning_never_removes_the_only_good_one(tmp_path: Path) -> None:
    paths = [save(tmp_path, step) for step in range(1, 6)]
    for path in paths[1:]:
        (path / "state.json").unlink()
    checkpoint.prune(tmp_path, keep=1)
    assert paths[0].is_dir()
    (paths[0] / "state.json").unlink()
    assert checkpoint.prune(tmp_path, keep=1) == []
    assert len(steps(tmp_path)) == 5


DAMAGED_FILES = st.sampled_from(["model.safetensors", "optimizer.safetensors", "state.json", "SHA256SUMS"])


class Retention(RuleBasedStateMachine):
    """Saves, saves that fail, damage, restarts and pruning in any order, against what should be there."""

    def __init__(self) -> None:
        super().__init__()
        self.run = Path(tempfile.mkdtemp())
        self.good: dict[int, float | None] = {}  # step -> validation loss
        self.step = 0

    def teardown(self) -> None:
        shutil.rmtree(self.run)

    @rule(n_steps=st.integers(1, 3), val_loss=st.sampled_from([None, 1.0, 2.0, 3.0]))
    def save(self, n_steps: int, val_loss: float | None) -> None:
        self.step += n_steps
        save(self.run, self.step, val_loss=val_loss)
        self.good[self.step] = val_loss

    @rule(n_steps=st.integers(1, 3), number=st.integers(0, 30), error=st.sampled_from([errno.ENOSPC, errno.EIO]))
    def save_on_a_failing_disk(self, n_steps: int, number: int, error: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            disk = FaultyDisk(self.run, patch)
            disk.fail(number, error)
            with suppress(DiskError):
                save(self.run, self.step + n_steps, val_loss=2.0)
                self.good[self.step + n_steps] = 2.0
        if self.step + n_steps in steps(self.run):  # at the latest flush it may fail after it has appeared
            self.good[self.step + n_steps] = 2.0
            self.step += n_steps

    @precondition(lambda self: len(self.good) > 1)
    @rule(dice=st.randoms(use_true_random=False), file=DAMAGED_FILES, kind=st.sampled_from(["flip", "cut", "gone"]))
    def damage(self, dice: random.Random, file: str, kind: str) -> None:
        step = dice.choice(sorted(self.good))
        del self.good[step]
        path = self.run / "checkpoints" / f"step-{step:08d}" / file
        data = path.read_bytes()
        path.unlink()
        if kind == "flip":
            path.write_bytes(bytes([data[0] ^ 1]) + data[1:])  # the same size, within the same second
        elif kind == "cut":
            path.write_bytes(data[:-1])

    @rule(keep=st.integers(1, 4))
    def prune(self, keep: int) -> None:
        checkpoint.prune(self.run, keep)
        expected = set(sorted(self.good)[-keep:])
        losses = {step: loss for step, loss in self.good.items() if loss is not None}
        if losses:
            expected.add(min(losses, key=lambda step: (losses[step], -step)))
        assert self.good.keys() & set(steps(self.run)) >= expected
        if len(steps(self.run)) > keep:
            assert self.good.keys() & set(steps(self.run)) <= expected
        self.good = {step: loss for step, loss in self.good.items() if step in steps(self.run)}

    @rule()
    def restart(self) -> None:
        checkpoint._VERIFIED = set()

    @invariant()
    def every_good_one_is_there_and_the_newest_is_used(self) -> None:
        assert self.good.keys() <= set(steps(self.run))
        if self.good:
            assert newest(self.run, lambda text: None) == max(self.good)


Retention.TestCase.settings = settings(max_examples=30, stateful_step_count=15)
TestRetention = Retention.TestCase


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_enough_good_ones_and_the_best_stay(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    intact_losses: dict[int, float] = {}
    step = 0
    for _ in range(12):
        match dice.choice(["save", "save", "save", "damage", "prune"]):
            case "save":
                step += dice.randint(1, 3)
                intact_losses[step] = dice.choice([1.0, 2.0, 3.0])
                save(tmp_path, step, val_loss=intact_losses[step])
            case "damage" if len(intact_losses) > 1:
                victim = dice.choice(list(intact_losses))
                del intact_losses[victim]
                file = dice.choice(["model.safetensors", "state.json", "SHA256SUMS"])
                (tmp_path / "checkpoints" / f"step-{victim:08d}" / file).write_bytes(b"damaged")
            case "prune":
                keep = dice.randint(1, 3)
                checkpoint.prune(tmp_path, keep)
                expected = set(sorted(intact_losses)[-keep:])
                if intact_losses:
                    expected.add(min(intact_losses, key=lambda step: (intact_losses[step], -step)))
                intact_losses = {step: loss for step, loss in intact_losses.items() if step in expected}
                assert intact_losses.keys() == expected & set(steps(tmp_path)) == expected
    if intact_losses:
        assert newest(tmp_path, lambda text: None) == max(intact_losses)
