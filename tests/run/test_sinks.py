"""Metrics told elsewhere: the real libraries, offline, hold what metrics.jsonl holds, resumed runs included."""

import csv
import json
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpt_cli.cli.main import main
from gpt_cli.config import Config
from gpt_cli.run import sinks
from gpt_cli.run.log import read_events, read_metrics

CONFIG = """
run_dir: run
data: {source: text.txt}
model: {n_layer: 1, n_head: 2, n_embd: 16, context_length: 16}
train: {steps: 4, batch_size: 2}
eval: {every: 2}
checkpoint: {every: 2}
sample: {every: null}
log: {every: 1}
runtime: {device: cpu, threads: 1}
"""
RUN = Path("run")


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(package) is None, reason="the extra [track] is not installed")


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("It was the best of times, it was the worst of times.\n" * 40)
    Path("config.yaml").write_text(CONFIG)


def train(*arguments: str) -> int:
    return main(["train", "--config", "config.yaml", *arguments])


def lose_the_last_checkpoint() -> None:
    """What a kill after a line of metrics leaves: figures of steps that will be repeated."""
    last = max((RUN / "checkpoints").iterdir())
    last.rename("lost")


def expected() -> list[dict[str, Any]]:
    return read_metrics(RUN)


def test_nothing_is_told_elsewhere_unless_asked():
    assert train() == 0
    assert {path.name for path in RUN.iterdir()}.isdisjoint({"metrics.csv", "tensorboard", "wandb"})


def test_the_csv_has_every_figure_of_the_metrics_once_after_a_resume_too():
    assert train("log.sinks=[csv]") == 0
    lose_the_last_checkpoint()
    assert train("log.sinks=[csv]", "train.steps=6") == 0
    with (RUN / "metrics.csv").open(newline="") as file:
        rows = [{k: json.loads(v) for k, v in row.items() if v} for row in csv.DictReader(file)]
    assert rows == expected()
    assert {key for row in expected() for key in row} == set(sinks.COLUMNS)


def test_a_sink_can_be_added_to_a_run_that_has_begun():
    assert train() == 0
    assert train("log.sinks=[csv]", "train.steps=6") == 0
    assert len((RUN / "metrics.csv").read_text().splitlines()) == len(expected()) + 1


@needs("tensorboard")
@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_the_curves_that_the_metrics_have():
    assert train("log.sinks=[tensorboard]") == 0
    lose_the_last_checkpoint()
    assert train("log.sinks=[tensorboard]", "train.steps=6") == 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(RUN / "tensorboard"))
    events.Reload()
    for name in ("loss", "val_loss", "lr", "grad_norm", "bpb"):
        curve = {event.step: event.value for event in events.Scalars(name)}
        assert curve == pytest.approx({row["step"]: row[name] for row in expected() if name in row})


@needs("wandb")
@pytest.mark.slow
def test_weights_and_biases_gets_the_figures_offline_and_a_resumed_run_goes_on(gpt):
    quiet = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    assert gpt("train", "--config", "config.yaml", "log.sinks=[wandb]", **quiet).rc == 0
    completed = gpt("train", "--config", "config.yaml", "log.sinks=[wandb]", "train.steps=6", **quiet)
    assert completed.rc == 0, completed.stderr
    assert not [event for event in read_events(RUN) if event["event"] == "sink failed"]
    files = sorted((RUN / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    assert len({file.stem for file in files}) == 1  # one run there
    assert all(b"val_loss" in file.read_bytes() for file in files)


def test_weights_and_biases_is_told_where_its_own_settings_say_and_which_run_it_is(monkeypatch, tmp_path):
    calls: list[dict[str, Any]] = []
    wandb = SimpleNamespace(init=lambda **options: calls.append(options), Settings=dict)
    monkeypatch.setattr(sinks, "importlib", SimpleNamespace(import_module=lambda name: wandb))

    def begin(name: str) -> dict[str, Any]:
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "run.json").write_text(json.dumps({"created": name}))
        sinks.WandbSink(tmp_path / name, Config())
        return calls[-1]

    monkeypatch.delenv("WANDB_DIR", raising=False)
    assert begin("one")["dir"] == str(tmp_path / "one")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "all"))
    assert begin("one")["dir"] == begin("two")["dir"] == str(tmp_path / "all")
    assert begin("one")["id"] == begin("one")["id"] != begin("two")["id"]
    (tmp_path / "two" / "wandb" / "offline-run-20260101_000000-abcd1234").mkdir(parents=True)
    assert begin("two")["id"] == "abcd1234"
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    assert begin("one")["id"] == "mine"


def test_a_sink_that_fails_is_dropped_and_told_and_the_training_is_whole(monkeypatch):
    def refuse(self: Any, record: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr(sinks.CSVSink, "metrics", refuse)
    assert train("log.sinks=[csv]") == 0
    failures = [event for event in read_events(RUN) if event["event"] == "sink failed"]
    assert [(event["sink"], event["error"]) for event in failures] == [("csv", "OSError: no space")]
    assert [row["step"] for row in expected() if "val_loss" in row] == [0, 2, 4]


def test_a_missing_package_is_told_before_anything_is_left(monkeypatch, capsys):
    monkeypatch.setattr(sinks, "find_spec", lambda name: None)
    assert train("log.sinks=[wandb]") == 2
    assert "gpt-cli[track]" in capsys.readouterr().err
    assert not RUN.exists()
