"""`gpt plot` and the tables: what is drawn is what was logged, and what cannot be drawn is said before drawing."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.cli.main import main
from gpt_cli.errors import RequestError, UserError
from gpt_cli.report.plot import YAxis, plot_runs
from gpt_cli.report.series import moving_average, series
from gpt_cli.terminal.table import render_pairs, render_table

MAGIC = {".png": b"\x89PNG\r\n\x1a\n", ".svg": b"<?xml", ".pdf": b"%PDF"}


def metrics(steps: int = 60) -> list[dict[str, float]]:
    lines: list[dict[str, float]] = []
    for step in range(0, steps + 1, 2):
        where = {"step": step, "time": step * 0.5, "tokens": step * 1024}
        if step % 20 == 0:
            lines.append({**where, "val_loss": 2 + 2 * math.exp(-step / 20), "bpb": 1.0})
        if step:
            lines.append({**where, "loss": 2 + 2 * math.exp(-step / 20), "lr": 0.01})
    return lines


def make_run(path: Path, lines: list[dict[str, float]]) -> Path:
    path.mkdir(parents=True)
    (path / "run.json").write_text("{}")
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "runs" / "small", metrics())


@pytest.mark.system
@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf", ".PNG"])
def test_the_suffix_is_the_format_and_equal_metrics_give_equal_bytes(run: Path, tmp_path: Path, suffix: str) -> None:
    pictures = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for picture in pictures:
        plot_runs([run], picture)
    assert pictures[0].read_bytes().startswith(MAGIC[suffix.lower()])
    assert pictures[0].read_bytes() == pictures[1].read_bytes()


@pytest.mark.system
def test_a_picture_of_several_runs_names_every_run_whatever_it_is_called(tmp_path: Path) -> None:
    names = ["plain", "_hidden", "$x_1$", "100%", "日本", "a\x1b[31mb", *"123456789"]
    runs = [make_run(tmp_path / name, metrics()) for name in names]
    plot_runs(runs, tmp_path / "many.svg", x="tokens", log_x=True)
    texts = (tmp_path / "many.svg").read_text()
    for name in ["plain", "_hidden", "$x_1$", "100%", "日本", "a\\x1b[31mb"]:
        assert f"<!-- training, {name} -->" in texts
        assert f"<!-- validation, {name} (best 2.100) -->" in texts


def test_runs_of_the_same_name_are_told_apart_by_their_path(run: Path, tmp_path: Path) -> None:
    other_run = make_run(tmp_path / "other" / "small", metrics())
    plot_runs([run, other_run], tmp_path / "loss.svg")
    for path in (run, other_run):
        assert f"<!-- training, {path} -->" in (tmp_path / "loss.svg").read_text()


def test_curves_hold_what_was_logged_and_time_is_in_minutes() -> None:
    lines = metrics()
    training, validation = series(lines, "loss", "time"), series(lines, "val_loss", "step")
    assert training.x.tolist() == [line["time"] / 60 for line in lines if "loss" in line]
    assert training.y.tolist() == [line["loss"] for line in lines if "loss" in line]
    assert validation.x.tolist() == [0, 20, 40, 60]
    assert series([], "loss", "step").x.shape == (0,)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=40), st.integers(0, 50))
def test_the_moving_average_equals_its_definition(values: list[float], reach: int) -> None:
    def mean_around(i: int) -> float:
        radius = min(reach, i)
        around = values[i - radius : i + radius + 1]
        return sum(around) / len(around)

    expected = [mean_around(i) for i in range(len(values))]
    assert moving_average(np.array(values), reach).tolist() == pytest.approx(expected, abs=1e-9)


def test_a_run_without_losses_is_an_error_and_leaves_no_picture(tmp_path: Path) -> None:
    run = make_run(tmp_path / "new", [])
    with pytest.raises(UserError, match="no losses") as caught:
        plot_runs([run], tmp_path / "loss.png")
    assert caught.value.exit_code == 1
    assert not (tmp_path / "loss.png").exists()


def test_a_trained_run_whose_log_is_lost_is_not_to_be_trained(run: Path, tmp_path: Path) -> None:
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(UserError) as refused:
        plot_runs([run], tmp_path / "loss.svg")
    assert (refused.value.kind, refused.value.path) == ("no checkpoint", str(run))
    (run / "checkpoints" / "step-00000060").mkdir(parents=True)
    with pytest.raises(UserError) as refused:
        plot_runs([run], tmp_path / "loss.svg")
    assert (refused.value.kind, refused.value.path) == ("damaged run", str(run))


@pytest.mark.parametrize("name", ["loss.gif", "loss", ".png", "nowhere/loss.png", "folder.png"])
def test_an_output_that_cannot_be_is_refused_before_anything_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(RequestError):
        plot_runs([tmp_path / "not even a run"], tmp_path / name)


def test_only_what_was_logged_is_needed(tmp_path: Path) -> None:
    for name, measure in (("training", "loss"), ("validation", "val_loss")):
        run = make_run(tmp_path / name, [line for line in metrics() if measure in line])
        plot_runs([run], tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def of_classes(steps: int = 8) -> list[dict[str, float]]:
    return [{"step": step, "time": step, "val_loss": 1 - step / 10, "accuracy": step / 10} for step in range(steps)]


@pytest.mark.system
def test_the_loss_of_classes_is_per_text_and_their_accuracy_is_drawn_with_its_highest(tmp_path: Path) -> None:
    classes, language = make_run(tmp_path / "classes", of_classes()), make_run(tmp_path / "language", metrics())
    cases: list[tuple[str, list[Path], YAxis, str]] = [
        ("loss", [classes], "loss", "loss (nats per text)"),
        ("both", [classes, language], "loss", "loss (nats)"),
        ("language", [language], "loss", "loss (nats per token)"),
        ("accuracy", [classes], "accuracy", "best 0.700"),
    ]
    for name, runs, y, expected in cases:
        plot_runs(runs, tmp_path / f"{name}.svg", y=y)
        texts = (tmp_path / f"{name}.svg").read_text()
        assert f"<!-- {expected} -->" in texts or f"{expected}) -->" in texts
        assert ("bits per token" in texts) == (name == "language")
    with pytest.raises(RequestError, match="predicts tokens: it has no accuracy"):
        plot_runs([language], tmp_path / "no.png", y="accuracy")


def test_the_verb_draws_the_named_runs(gpt_here: Callable[..., Any], run: Path, tmp_path: Path) -> None:
    outcome = gpt_here("plot", run, "-o", "picture.png", "--x", "tokens", "--log-x")
    assert (outcome.rc, outcome.stdout, outcome.stderr) == (0, "", "wrote picture.png\n")
    assert (tmp_path / "picture.png").read_bytes().startswith(MAGIC[".png"])


def test_a_checkpoint_has_no_losses_and_its_run_is_asked_for(tmp_path: Path) -> None:
    checkpoint = tmp_path / "step-00000004"
    checkpoint.mkdir()
    for name in ("state.json", "model.safetensors"):
        (checkpoint / name).touch()
    with pytest.raises(UserError, match="is a checkpoint") as caught:
        plot_runs([checkpoint], tmp_path / "loss.png")
    assert caught.value.choices == ()  # a copy, which has no run


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["nowhere"], "error: there is no run at nowhere"),
        ([], "error: no run found"),
        (["runs/small", "-o", "loss.gif"], "error: a picture is written as .png, .svg, .pdf, not as loss.gif"),
    ],
)
def test_a_wrong_request_is_refused_with_code_2(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    error: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plot", *arguments]) == 2
    assert capsys.readouterr().err.startswith(error)


def test_a_table_aligns_numbers_to_the_right_and_text_to_the_left_by_what_a_terminal_shows() -> None:
    table = render_table([("wide 界", 1234567), ("e\u0301", None), ("x\x1b[0m", 3)], header=("name", "count"))
    assert table.split("\n") == [
        "name          count",
        "wide 界   1,234,567",
        "e\u0301",
        "x\\x1b[0m          3",
    ]


def test_pairs_show_each_value_in_its_own_way() -> None:
    assert render_pairs({"loss": 1.23456, "tokens": 12345, "text": "a\nb", "best": None}) == (
        "loss    1.2346\ntokens  12,345\ntext    a\\nb\nbest"
    )


def test_a_table_of_nothing_is_its_header() -> None:
    assert render_table([], header=("name", "count")) == "name  count"
    assert render_table([]) == ""
