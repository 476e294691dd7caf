"""`gpt runs`: what is listed of each run is what the run says of itself, and removing one loses nothing."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpt_cli.files import DirectoryLock, is_locked
from gpt_cli.report.runs import RunLine, list_runs, render_runs

TINY = (
    *("model.n_layer=1", "model.n_head=1", "model.n_embd=8", "model.context_length=8", "train.batch_size=1"),
    *("sample.every=null", "runtime.threads=1"),
)


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three runs, one of which ended before its last step."""
    from gpt_cli.cli.main import main

    directory = tmp_path_factory.mktemp("runs")
    (directory / "book.txt").write_text("the king and the queen went to the town\n" * 50)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        for name, overrides in (("one", []), ("two", []), ("wide-and-with-a-very-long-name", ["optim.lr=0.01"])):
            assert main(["train", "book.txt", *TINY, "train.steps=2", f"run_dir=runs/{name}", *overrides]) == 0
        assert main(["train", "runs/two", "train.steps=9", "train.max_minutes=1e-9"]) == 0  # which stops it at once
    return directory


@pytest.fixture
def work_dir(runs_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(runs_dir, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_run_is_told_with_its_loss_size_steps_and_what_sets_it_apart(gpt_here, work_dir):
    lines = {line.path: line for line in list_runs(Path("runs"))}
    info = json.loads(gpt_here("info", "runs/one", "--json").stdout)
    run = lines["runs/one"]
    assert (run.steps, run.of_steps, run.state, run.parameters) == (2, 2, "complete", info["parameters"])
    assert run.val_loss == pytest.approx(info["val_loss"], rel=0.5)
    assert run.differences == {}
    assert (lines["runs/two"].state, lines["runs/two"].differences) == ("ended", {"train.steps": 9})
    assert lines["runs/wide-and-with-a-very-long-name"].differences == {"optim.lr": 0.01}
    listed = json.loads(gpt_here("runs", "--json").stdout)["runs"]
    assert {line["path"] for line in listed} == lines.keys()


def test_a_run_that_lost_its_record_is_listed_as_damaged_and_one_that_begins_is_not(work_dir):
    shutil.copytree("runs/one", "runs/begun")
    for name in ("one", "begun"):
        Path("runs", name, "run.json").unlink()
    with DirectoryLock(Path("runs/begun")):
        lines = {line.path: line for line in list_runs(Path("runs"))}
    assert lines.keys() == {"runs/one", "runs/two", "runs/wide-and-with-a-very-long-name"}
    assert (lines["runs/one"].state, lines["runs/one"].differences) == (
        "runs/one is damaged: run.json is missing",
        None,
    )


def test_the_list_has_each_run_with_its_differences_below_it(gpt_here, work_dir):
    lines = gpt_here("runs").stdout.splitlines()
    names = [line.split()[0] for line in lines]
    assert {"run", "one", "two", "wide-and-with-a-very-long-name"} < set(names)
    assert "2/9" in lines[names.index("two")].split()
    assert lines[names.index("two") + 1] == "  train.steps=9"
    assert lines[names.index("wide-and-with-a-very-long-name") + 1] == "  optim.lr=0.01"


def test_a_run_differs_whole_in_a_few_keys_and_in_a_number_of_others():
    differences = {"task.class_weights": [1.5] * 40} | {f"model.key_{n}": n for n in range(5)}
    line = RunLine("runs/one\x1b", "complete", steps=2, of_steps=2, differences=differences)
    _, row, below = render_runs([line]).splitlines()
    assert row.startswith("one\\x1b ")
    assert below.count("1.5") == 40
    assert below.split()[-1] == "+2"


def test_steps_beyond_those_asked_for_are_told_without_a_share():
    line = RunLine("runs/one", "complete", steps=100, of_steps=60, differences={})
    assert render_runs([line]).splitlines()[1].split() == ["one", "100", "complete"]


def test_a_run_is_over_at_its_newest_step_alone_and_while_no_rule_of_its_end_changes(gpt_here, work_dir):
    def states() -> list[str]:
        return [line.state for line in list_runs(Path("runs")) if line.path == "runs/two"]

    assert states() == ["ended"]
    assert "is over" in gpt_here("train", "runs/two", "log.every=3", "--dry-run").stdout
    assert "would go on from step 2" in gpt_here("train", "runs/two", "train.max_minutes=5", "--dry-run").stdout
    events = Path("runs/two/events.jsonl")
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    events.write_text("".join(json.dumps(line | {"step": 1}) + "\n" for line in lines))
    assert states() == ["stopped"]
    events.write_text("".join(json.dumps({k: v for k, v in line.items() if k != "final"}) + "\n" for line in lines))
    assert states() == ["stopped"]
    events.write_text("damaged\n")
    assert states() == ["stopped"]


def test_a_damaged_run_is_listed_as_such_and_hides_no_other(gpt_here, work_dir):
    Path("runs/one/config.yaml").write_text("model: {n_layer: many}\n")
    for path in Path("runs/two/checkpoints").glob("*/model.safetensors"):
        header = path.read_bytes()
        path.write_bytes(header.replace(b'"shape"', b'"shale"', 1))
    for path in Path("runs").glob("wide*/metrics.jsonl"):
        path.write_text("no json\n")
    output = gpt_here("runs")
    assert output.rc == 0
    assert output.stdout.count("damaged") >= 2
    assert "complete" in output.stdout


def test_no_runs_are_told_with_what_to_do(gpt_here, tmp_path):
    output = gpt_here("runs")
    assert (output.rc, output.stdout) == (0, "")
    assert "gpt train TEXT" in output.stderr


def test_a_run_is_asked_for_before_it_goes_to_the_trash_and_comes_back(gpt_here, work_dir, monkeypatch):
    before = {path: path.read_bytes() for path in Path("runs/one").rglob("*") if path.is_file()}
    refused = gpt_here("runs", "rm", "runs/one")
    assert refused.rc == 2
    assert "--yes" in refused.stderr
    for answer, stays in (("n\n", True), ("\n", True), ("", True), ("yes\n", False)):
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        assert gpt_here("runs", "rm", "runs/one").rc == 0
        assert Path("runs/one").exists() == stays
    assert not any(line.path.endswith("one") for line in list_runs(Path("runs")))
    Path("runs/.trash/one").rename("runs/one")
    assert {path: path.read_bytes() for path in before if path.name != "lock"} == {
        path: data for path, data in before.items() if path.name != "lock"
    }


def test_two_runs_of_one_name_stay_apart_in_the_trash(gpt_here, work_dir):
    shutil.copytree("runs/one", "kept")
    assert gpt_here("runs", "rm", "runs/one", "--yes").rc == 0
    shutil.copytree("kept", "runs/one")
    assert gpt_here("runs", "rm", "runs/one", "-y").rc == 0
    assert {path.name for path in Path("runs/.trash").iterdir()} == {"one", "one-2"}


def test_a_run_that_trains_is_listed_as_such_and_is_not_removed(gpt_here, work_dir):
    with DirectoryLock(Path("runs/one")):
        assert is_locked(Path("runs/one"))
        assert "training" in gpt_here("runs").stdout
        refused = gpt_here("runs", "rm", "runs/one", "--yes")
        assert refused.rc == 1
        assert "another process" in refused.stderr
    assert Path("runs/one/run.json").exists()
    assert not is_locked(Path("runs/one"))
    shutil.rmtree("runs/one/checkpoints")
    with DirectoryLock(Path("runs/one")):
        early = gpt_here("sample", "--run", "runs/one")
    assert early.stderr == "error: runs/one has no checkpoint yet: it is being trained\n"
    assert "hint: gpt train runs/one\n" in gpt_here("sample", "--run", "runs/one").stderr


@pytest.mark.parametrize("name", ["-dashed", ".", "../one"])
def test_the_command_that_has_a_run_back_brings_it_back(gpt_here, work_dir, monkeypatch, name):
    run = Path(shutil.copytree("runs/one", name)) if name == "-dashed" else Path("runs/one")
    run = run.absolute()
    if name != "-dashed":  # from within the run, where a relative path leads elsewhere once it is moved
        monkeypatch.chdir(run)
    command = gpt_here("runs", "rm", f"./{name}", "-y").stderr.partition("to have it back: ")[2]
    assert not run.exists()
    (run / "new").mkdir(parents=True)
    assert subprocess.run(command, shell=True, check=False, capture_output=True).returncode
    assert os.listdir(run) == ["new"], "a run that has its place is not touched"
    shutil.rmtree(run)
    subprocess.run(command, shell=True, check=True)
    assert (run / "run.json").exists()


def test_what_is_no_run_is_not_removed(gpt_here, work_dir):
    assert gpt_here("runs", "rm", "book.txt", "-y").rc == 2
    (checkpoint,) = Path("runs/one/checkpoints").glob("step-00000002")
    refused = gpt_here("runs", "rm", checkpoint, "-y")
    assert refused.rc == 2
    assert "hint: did you mean runs/one?" in refused.stderr
    assert checkpoint.exists()
    assert Path("book.txt").exists()


class Terminal:
    """Somebody who answers."""

    def __init__(self, answer: str) -> None:
        self.answer = answer

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        return self.answer


def test_the_speed_of_a_run_is_one_figure_at_the_end_of_training_and_beside_another_run(gpt_here, work_dir):
    trained = json.loads(gpt_here("train", "runs/one", "--json").stdout)
    beside = json.loads(gpt_here("diff", "runs/one", "runs/two", "--json").stdout)["results"]
    assert beside["tokens_per_second"][0] == pytest.approx(trained["tokens_per_second"], abs=0.1)
    assert beside["seconds"][0] == pytest.approx(trained["train_seconds"], abs=1e-3)
