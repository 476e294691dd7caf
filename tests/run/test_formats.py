"""Old runs load: one of each released format is kept in tests/formats, as the `gpt` of its time wrote it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gpt_cli.cli.main import main
from gpt_cli.config import load_config
from gpt_cli.run.checkpoint import FORMAT, list_checkpoints, load
from gpt_cli.run.load_model import load_model
from tests.formats.make import FURTHER, STEPS, continuation, kept_formats, last_val_loss
from tests.support.command import ROOT

FORMATS = ROOT / "tests" / "formats"
SETS = sorted((path.name for path in FORMATS.iterdir() if path.name.isdigit()), key=int)
KINDS = "2"  # the set of other kinds of runs, for test_kept_runs.py


@pytest.fixture(params=[name for name in SETS if name != KINDS])
def released_run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What is expected of the run of a format, a copy of which is in `run`, below the current directory."""
    shutil.copytree(FORMATS / request.param, tmp_path / "kept")
    monkeypatch.chdir(tmp_path / "kept")
    expected: dict[str, object] = json.loads(Path("expected.json").read_text())
    return {"format": 1, **expected}  # the first set does not say it


def test_every_format_that_was_released_is_kept():
    assert kept_formats() == set(range(1, FORMAT + 1))
    assert [int(name) for name in SETS] == list(range(1, len(SETS) + 1))


def test_a_kept_run_is_small_and_names_no_machine():
    for path in FORMATS.glob("*/**/*"):
        if path.is_file() and path.parent.name != "__pycache__":
            assert path.stat().st_size < 40_000, path
            assert b"/home/" not in path.read_bytes(), path
            assert b"/tmp/" not in path.read_bytes(), path
            assert path.name != "lock", path


def test_an_old_run_is_whole_by_its_own_sums_and_loads(released_run):
    (checkpoint, *_) = list_checkpoints(Path("run"))
    assert load(checkpoint).state["format"] == released_run["format"]
    assert load(checkpoint).get_float("val_loss") == released_run["val_loss"]
    if shutil.which("sha256sum"):
        assert subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=checkpoint, check=False).returncode == 0


def test_an_old_run_evaluates_to_the_loss_it_had(released_run, capsys):
    assert main(["eval", "--run", "run", "--json", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] == pytest.approx(released_run["val_loss"], rel=1e-4)


def test_an_old_run_keeps_the_rotary_angles_that_it_was_trained_with_however_it_is_opened(released_run):
    if "rope_rounding" in Path("run/config.yaml").read_text():
        pytest.skip("its config says them")
    (checkpoint, *_) = list_checkpoints(Path("run"))
    config = load(checkpoint).config
    angles = torch.outer(torch.arange(16).float(), 10_000.0 ** -(torch.arange(0, 8, 2).float() / 8))
    loaded_model = load_model(checkpoint, torch.device("cpu"), print)
    assert torch.equal(loaded_model.model.blocks[0].attention.rotary.cos, angles.cos())
    run_configs = (load_config(Path("run/config.yaml")), load_config(checkpoint / "config.yaml"), config)
    assert [run_config.model.rope_rounding for run_config in run_configs] == ["power"] * 3
    assert load_config(Path("config.yaml")).model.rope_rounding == "reciprocal"


def test_an_old_run_writes_what_it_wrote(released_run):
    assert continuation(Path("run")) == released_run["text"]


def test_an_old_run_goes_on_as_it_would_have_gone_on(released_run):
    old_checkpoints = list_checkpoints(Path("run"))
    # From the config that it wrote, which says every value: what its author left out is what is default today.
    assert main(["train", "--config", "run/config.yaml", f"train.steps={STEPS + FURTHER}"]) == 0
    assert last_val_loss(Path("run")) == pytest.approx(released_run["val_loss_further"], rel=1e-2)
    assert list_checkpoints(Path("run"))[0] != old_checkpoints[0]


def test_the_doctor_finds_an_old_run_sound(released_run, capsys):
    assert main(["doctor", "run"]) == 0
    assert "FAILED" not in capsys.readouterr().out


@pytest.mark.parametrize("command", [*(("make.py", name) for name in SETS), ("make_2.py",)], ids=" ".join)
def test_a_format_is_not_made_again(command):
    script, *arguments = command
    completed = subprocess.run(
        [sys.executable, str(FORMATS / script), *arguments],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 1
    assert "FileExistsError" in completed.stderr
