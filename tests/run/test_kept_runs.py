"""Old runs of every kind load: `gpt` 0.2.0 wrote those in tests/formats/2, and what commands make of several runs."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

import gpt_cli
from gpt_cli.cli.main import main
from gpt_cli.config.removed import REMOVED
from gpt_cli.run.checkpoint import list_checkpoints, load
from tests.formats.make import last_val_loss
from tests.formats.make_2 import FOLDER, ONE_FILE, SCALE, STEPS_ANEW, SWEEP, evaluated, gpt, greedy

EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text())
RUNS: dict[str, dict[str, Any]] = EXPECTED["runs"]
CLASSES = EXPECTED["classes"]
STAYING = tuple(name for name in RUNS if name not in ("packed", "typical"))  # those have removed keys

pytestmark = pytest.mark.usefixtures("kept")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a copy of the set, without what consists of several runs, the current directory."""
    shutil.copytree(FOLDER, tmp_path / "kept", ignore=shutil.ignore_patterns("sweep", "scale"))
    monkeypatch.chdir(tmp_path / "kept")


def check_resumed(name: str, expected: dict[str, Any], *overrides: str) -> None:
    """Resume the run from the config that it wrote, and compare the loss that it then has."""
    (old_checkpoint,) = list_checkpoints(Path(name))
    gpt("train", "--config", f"{name}/config.yaml", f"train.steps={expected['steps_further']}", *overrides)
    assert last_val_loss(Path(name)) == pytest.approx(expected["loss_further"], rel=1e-2)
    assert list_checkpoints(Path(name))[0] != old_checkpoint


def logs(folder: str | Path) -> dict[str, bytes]:
    """Return the logs of the runs in the folder, to which training would add."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).glob("*/*.jsonl")}


def test_the_set_is_small():
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 400_000


@pytest.mark.parametrize("name", [*RUNS, "classes"])
def test_a_kept_run_is_whole_by_its_own_sums(name):
    (checkpoint,) = list_checkpoints(Path(name))
    assert load(checkpoint).state["format"] == 1
    if shutil.which("sha256sum"):
        for folder in (Path(name), checkpoint):
            command = ["sha256sum", "-c", "--quiet", "SHA256SUMS"]
            assert subprocess.run(command, cwd=folder, check=False).returncode == 0


@pytest.mark.parametrize("name", STAYING)
def test_a_kept_run_evaluates_to_the_loss_it_had(name):
    assert evaluated(name)["loss"] == pytest.approx(RUNS[name]["loss"], rel=1e-4)


@pytest.mark.parametrize("name", STAYING)
def test_a_kept_run_writes_what_it_wrote(name):
    assert greedy(name, RUNS[name]["prompt"]) == RUNS[name]["text"]


@pytest.mark.parametrize("name", STAYING)
def test_a_kept_run_resumes_as_it_would_have_resumed(name):
    check_resumed(name, RUNS[name])


@pytest.mark.parametrize("name", STAYING)
def test_the_doctor_finds_a_kept_run_sound(name, capsys):
    assert main(["doctor", name]) == 0
    assert "FAILED" not in capsys.readouterr().out


def test_a_kept_classifier_gives_the_label_it_gave_and_resumes():
    assert evaluated("classes")["accuracy"] == CLASSES["accuracy"]
    (verdict,) = gpt_cli.load_classifier("classes", device="cpu").classify([CLASSES["text"]])
    assert verdict.label == CLASSES["label"]
    assert verdict.probabilities[verdict.label] == pytest.approx(CLASSES["probability"], rel=1e-4)
    check_resumed("classes", CLASSES)


def test_a_kept_run_with_packed_rows_evaluates_and_writes_and_is_refused_where_it_would_resume(capsys):
    assert evaluated("packed")["loss"] == pytest.approx(RUNS["packed"]["loss"], rel=1e-4)
    assert greedy("packed", RUNS["packed"]["prompt"]) == RUNS["packed"]["text"]
    for options in ((), ("--dry-run",)):
        assert main(["train", "packed", "train.steps=50", *options]) == 2
        printed = capsys.readouterr().err
        assert f"error: {REMOVED['data.packing'].sentence('data.packing')}\n  --> packed/config.yaml:" in printed


def test_a_kept_run_with_a_removed_sampling_key_reports_it_where_it_samples_and_resumes():
    assert evaluated("typical")["loss"] == pytest.approx(RUNS["typical"]["loss"], rel=1e-4)
    with pytest.warns(UserWarning, match=re.escape(REMOVED["sample.typical_p"].sentence("sample.typical_p"))):
        assert greedy("typical", RUNS["typical"]["prompt"]) == RUNS["typical"]["text"]
    check_resumed("typical", RUNS["typical"], "sample.typical_p=1", "data.packing=false")


def test_a_kept_run_of_one_file_is_one_error(capsys):
    assert main(["eval", "--run", ONE_FILE]) == 2
    assert capsys.readouterr().err.startswith(f"error: {ONE_FILE} is neither a run nor a checkpoint\n")


def test_a_kept_token_store_trains_a_new_run():
    gpt("train", "--config", "stored/config.yaml", "data.source=store", "run_dir=new", f"train.steps={STEPS_ANEW}")
    assert last_val_loss(Path("new")) == pytest.approx(EXPECTED["loss_anew"], rel=1e-2)
    assert evaluated("new")["loss"] == pytest.approx(last_val_loss(Path("new")), rel=1e-4)


def test_a_kept_sweep_is_finished_and_prints_its_table_without_training_again():
    shutil.copytree(FOLDER / "sweep", "sweep")
    rows = gpt(*SWEEP).splitlines()[1 : 1 + len(EXPECTED["sweep"])]
    for row, setting in zip(rows, EXPECTED["sweep"], strict=True):
        assert f"optim.lr={setting['values']['optim.lr']} " in row
        assert f" {mean(setting['losses'].values()):.4f} " in row
    assert logs("sweep") == logs(FOLDER / "sweep")


def test_a_run_of_a_kept_sweep_is_a_run_like_any_other():
    shutil.copytree(FOLDER / "sweep", "sweep")
    for setting in EXPECTED["sweep"]:
        for seed, loss in setting["losses"].items():
            (path,) = Path("sweep").glob(f"*-lr={setting['values']['optim.lr']}-seed={seed}")
            assert evaluated(str(path))["loss"] == pytest.approx(loss, rel=1e-4)


@pytest.mark.system
def test_a_kept_ladder_is_finished_and_fits_the_law_it_fitted_without_training_again():
    shutil.copytree(FOLDER / "scale", "scale")
    points = {point["name"]: point for point in json.loads(gpt(*SCALE, "--json"))["points"]}
    assert points.keys() == EXPECTED["scale"].keys()
    for name, expected in EXPECTED["scale"].items():
        assert points[name]["loss"] == expected["loss"]
        assert points[name]["fitted"] == pytest.approx(expected["fitted"], rel=1e-2)
    assert logs("scale") == logs(FOLDER / "scale")
