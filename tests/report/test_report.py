"""`gpt report` and `gpt diff`: every figure is the run's, no text is ever markup, and nothing is fetched."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.cli.main import main
from gpt_cli.report.chart import Line, ReferenceLine, draw_chart, format_tick, log_ticks, ticks
from gpt_cli.report.run_baselines import RunBaselines
from gpt_cli.report.run_diff import compare, render_differences
from gpt_cli.report.run_metrics import figures, run_outcome
from gpt_cli.report.run_record import read_record, read_records
from gpt_cli.report.run_report import render_report
from gpt_cli.report.series import Series, downsample_minmax, series
from tests.support.html_page import Page, require_harmless

pytestmark = pytest.mark.system

BOOK = "Once upon a time there was a mouse, and it lived in a shoe. <b>&amp;</b> 'x' \"y\"\n" * 60
HOSTILE = (
    '</script></style></pre><script>alert("x")</script><img src=//e.example/x onerror=alert(1)>&amp;{{ 7*7 }}\u202e'
)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a book and two small runs on it: `runs/chars` and `runs/pieces`."""
    directory = tmp_path_factory.mktemp("trained")
    (directory / "book.txt").write_text(BOOK)
    shape = ["model.n_layer=2", "model.n_head=2", "model.n_embd=16", "model.context_length=16", "train.batch_size=4"]
    common = ["train.steps=6", "eval.every=2", "sample.every=2", "sample.max_new_tokens=8", "log.every=1"]
    chars = ["run_dir=runs/chars", "tokenizer.kind=char", "sample.prompt=a <b>"]
    pieces = ["run_dir=runs/pieces", "tokenizer.kind=bpe", "tokenizer.vocab_size=280", "optim.lr=0.01"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.setenv("GPT_CACHE", str(directory / "cache"))
        patch.setattr("gpt_cli.run.lifecycle.oom_kill_count", lambda: 0)  # of this machine, others' included
        for name, own in (("chars", chars), ("pieces", pieces)):
            Path(f"{name}.yaml").write_text("data: {source: book.txt}\n")
            assert main(["train", "--config", f"{name}.yaml", *shape, *common, *own]) == 0
    return directory


@pytest.fixture
def runs(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of these, which is the working directory."""
    shutil.copytree(trained, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy" / "runs"


def silent(_text: str) -> None:
    pass


def report(*runs: Path, baselines: bool = False) -> str:
    return render_report(read_records(runs, silent), baselines=baselines, note=silent)


def test_a_report_of_one_run_has_all_of_it_and_needs_nothing_else(runs: Path) -> None:
    html = report(runs / "chars", baselines=True)
    page = require_harmless(html)
    record = read_record(runs / "chars", "chars", silent)
    text = page.text()
    assert page.count("script") == 1
    assert record.saved is not None
    for value in (record.saved.sha256, record.fingerprint, record.tokenizer.digest, record.created, "book.txt"):
        assert value in text
    for sample in record.samples:
        assert sample["text"].replace("\r", "") in text
    for key in ("model.n_embd", "sample.prompt", "train.steps"):
        assert key in text
    for name in ("5-gram", "xz", "started", "ended", "torch"):
        assert name in text
    assert f"{record.parameters:,} parameters" in text
    assert page.count("a") == 7  # the contents
    assert page.count("svg") == 5 * 4 * 2  # five charts over four axes, each with its clipped inner drawing


def test_curves_open_on_an_axis_by_which_the_runs_compare(runs: Path) -> None:
    def chosen(*run_dirs: Path) -> list[str]:
        return re.findall(r'id="axis-(\w+)" checked', report(*run_dirs))

    shutil.copytree(runs / "chars", runs / "again")
    assert chosen(runs / "chars") == ["step"]
    assert chosen(runs / "chars", runs / "again") == ["tokens"]
    assert chosen(runs / "chars", runs / "pieces") == ["bytes"]


def test_no_event_tells_of_kills_that_were_not(runs: Path) -> None:
    assert "memory_kills" in (runs / "chars" / "events.jsonl").read_text()
    assert "memory_kills" not in report(runs / "chars")


def test_equal_runs_give_equal_bytes(runs: Path) -> None:
    paths = runs / "chars", runs / "pieces"
    assert report(*paths, baselines=True) == report(*paths, baselines=True)


def test_hostile_text_stays_text_wherever_it_stands(runs: Path) -> None:
    run = runs / "<img src=x onerror=alert(1)>"
    (runs / "chars").rename(run)
    config = (run / "config.yaml").read_text()
    quoted = json.dumps(HOSTILE)
    (run / "config.yaml").write_text(re.sub(r"prompt: .*", lambda _: f"prompt: {quoted}", config))
    data = json.loads((run / "data.json").read_text())
    data["source"] = HOSTILE
    (run / "data.json").write_text(json.dumps(data))
    facts = json.loads((run / "run.json").read_text())
    facts["command"], facts["versions"][HOSTILE] = [HOSTILE], HOSTILE
    (run / "run.json").write_text(json.dumps(facts))
    with (run / "samples.jsonl").open("a") as file:
        file.write(json.dumps({"step": 6, "prompt": HOSTILE, "text": HOSTILE}) + "\n")
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps({"time": HOSTILE, "event": HOSTILE, HOSTILE: HOSTILE}) + "\n")
        file.write(json.dumps({"time": "", "event": "died", "error": HOSTILE}) + "\n")
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 6, "time": HOSTILE, "loss": HOSTILE, "bpb": HOSTILE}) + "\n")
    for html in (report(run), report(run, runs / "pieces")):
        page = require_harmless(html)
        assert page.count("script") == 1
        visible = HOSTILE.replace("\u202e", "\\u202e")
        assert page.text().count(visible) >= 8
        assert "<img" not in html
        assert "\u202e" not in html


def test_several_runs_stand_side_by_side_with_what_differs(runs: Path) -> None:
    page = require_harmless(report(runs / "chars", runs / "pieces"))
    text = page.text()
    for name in ("Differences", "tokenizer.vocab_size", "optim.lr"):
        assert name in text
    rows = compare(read_records([runs / "chars", runs / "pieces"], silent))
    assert {row.key for row in rows["config"]} == {
        "tokenizer.kind", "tokenizer.vocab_size", "optim.lr", "sample.prompt",
    }  # fmt: skip
    assert not rows["environment"]


def test_a_run_that_was_never_evaluated_or_took_one_step_or_none_is_told_as_it_is(runs: Path) -> None:
    lines = (runs / "chars" / "metrics.jsonl").read_text().splitlines()
    for remaining in ([line for line in lines if "val_loss" not in line], lines[:2], lines[:1], []):
        (runs / "chars" / "metrics.jsonl").write_text("".join(f"{line}\n" for line in remaining))
        (runs / "chars" / "samples.jsonl").write_text("")
        page = require_harmless(report(runs / "chars", runs / "pieces"))
        assert "no sample was kept" in page.text()
        require_harmless(report(runs / "chars"))
    shutil.rmtree(runs / "chars" / "checkpoints")
    assert "checkpointnone" in re.sub(r"\s", "", require_harmless(report(runs / "chars")).text())


def test_what_a_run_died_of_is_said_at_the_top(runs: Path) -> None:
    with (runs / "chars" / "events.jsonl").open("a") as file:
        file.write(
            json.dumps({"time": "", "event": "died", "step": 6, "error": "NonFiniteError: the loss is nan"}) + "\n"
        )
    record = read_record(runs / "chars", "chars", silent)
    assert run_outcome(record) == "died at step 6: the loss is nan"
    assert 'role="alert"' in report(runs / "chars")
    assert 'role="alert"' not in report(runs / "pieces")


def test_baselines_are_those_of_data_inspect_on_the_same_text_and_are_kept(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = read_record(runs / "chars", "chars", silent)
    actual = RunBaselines(record, silent).baselines()
    assert main(["data", "inspect", "book.txt", "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)["baselines"]
    assert [b.name for b in actual] == [b["name"] for b in expected]
    for row, reference in zip(actual, expected, strict=True):
        assert row.bits_per_byte == pytest.approx(reference["bits_per_byte"], rel=1e-9)

    def measure_again(*_: object) -> None:
        raise AssertionError("measured twice")

    monkeypatch.setattr("gpt_cli.report.run_baselines.measure_baselines", measure_again)
    assert RunBaselines(record, silent).baselines() == actual


def test_a_text_that_changed_or_is_gone_costs_the_baselines_and_not_the_report(trained: Path, runs: Path) -> None:
    (runs.parent / "book.txt").write_text(BOOK.replace("mouse", "moose"))
    assert "the text has changed since the run began" in report(runs / "chars", baselines=True)
    (runs.parent / "book.txt").unlink()
    (trained / "book.txt").rename(trained / "away.txt")  # where the run was started it would be found
    try:
        assert "No baselines" in report(runs / "chars", baselines=True)
    finally:
        (trained / "away.txt").rename(trained / "book.txt")


def test_figures_are_those_of_the_log(runs: Path) -> None:
    record = read_record(runs / "pieces", "pieces", silent)
    actual = figures(record)
    last = record.evaluations[-1]
    assert (actual["bpb"], actual["val_loss"], actual["steps"], actual["tokens"]) == (
        last["bpb"], last["val_loss"], 6, 6 * 4 * 16,
    )  # fmt: skip
    data = json.loads((runs / "pieces" / "data.json").read_text())["splits"]["train"]
    assert actual["bytes_per_token"] == data["bytes"] / data["tokens"]


def test_training_bits_per_byte_count_what_evaluation_counts(runs: Path) -> None:
    record = read_record(runs / "pieces", "pieces", silent)
    bits = series(record.metrics, "train_bpb", "step", record.bytes_per_token)
    nats = series(record.metrics, "loss", "step")
    assert bits.y == pytest.approx(nats.y / np.log(2) / record.bytes_per_token)
    by_bytes = series(record.metrics, "loss", "bytes", record.bytes_per_token)
    by_tokens = series(record.metrics, "loss", "tokens")
    assert by_bytes.x == pytest.approx(by_tokens.x * record.bytes_per_token)


def test_throughput_is_tokens_over_time_between_lines_and_leaves_evaluations_out() -> None:
    lines = [
        {"step": 0, "tokens": 0, "time": 5.0, "val_loss": 4.0},
        {"step": 1, "tokens": 100, "time": 6.0, "loss": 3.0},
        {"step": 2, "tokens": 200, "time": 6.5, "loss": 3.0},
        {"step": 2, "tokens": 200, "time": 60.0, "val_loss": 3.0},
        {"step": 3, "tokens": 300, "time": 60.25, "loss": 3.0},
    ]
    actual = series(lines, "throughput", "step")
    assert actual.x.tolist() == [1, 2, 3]
    assert actual.y.tolist() == [100.0, 200.0, 400.0]


FINITE = st.floats(-1e300, 1e300).map(lambda value: 0.0 if abs(value) < 1e-200 else value)


@given(st.lists(FINITE, min_size=1, max_size=30), st.sampled_from(["zero", "log", "cut"]))
def test_any_finite_values_can_be_drawn_inside_the_numbers_of_the_drawing(ys: list[float], scale: str) -> None:
    points = Series(np.arange(len(ys), dtype=float), np.array(ys))
    svg = draw_chart([Line("a<b", points, 0), Line("c", points, 1, "dots")], "x", "y", scale=scale)  # type: ignore[arg-type]
    Page(svg)
    assert not re.search(r"\b(nan|inf)\b", svg)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30))
def test_a_curve_stands_where_its_axes_say(ys: list[float]) -> None:
    points = Series(np.arange(len(ys), dtype=float), np.array(ys))
    svg = draw_chart([Line("a", points, 0)], "x", "y", scale="zero")
    low, high, bottom, top, log = (float(number) for number in re.search(r'data-y="([^"]+)"', svg)[1].split())  # type: ignore[index]
    drawn = [tuple(map(float, p.split(","))) for p in re.search(r'points="([^"]+)"', svg)[1].split()]  # type: ignore[index]
    assert not log
    assert low <= min(0, *ys) <= max(0, *ys) <= high
    back = [low + (y - bottom) / (top - bottom) * (high - low) for _, y in drawn]
    assert back == pytest.approx(ys, abs=1e-4 * (high - low))


def test_values_that_differ_greatly_get_a_logarithmic_axis_which_says_so() -> None:
    points = Series(np.arange(3.0), np.array([1.0, 10.0, 1000.0]))
    svg = draw_chart([Line("norm", points, 0)], "step", "gradient norm", scale="log")
    assert "gradient norm, logarithmic" in svg
    heights = [float(p.split(",")[1]) for p in re.search(r'points="([^"]+)"', svg)[1].split()]  # type: ignore[index]
    assert heights[1] - heights[2] == pytest.approx(2 * (heights[0] - heights[1]), abs=0.05)


def test_names_of_levels_keep_their_distance() -> None:
    points = Series(np.arange(3.0), np.array([1.0, 2.0, 3.0]))
    svg = draw_chart([Line("a", points, 0)], "x", "y", levels=[ReferenceLine("one", 2.0), ReferenceLine("two", 2.001)])
    heights = [float(y) for y in re.findall(r'<text class="level" x="[\d.]+" y="([\d.]+)"', svg)]
    assert len(heights) == 2
    assert abs(heights[0] - heights[1]) >= 11.9


def test_a_chart_of_nothing_says_so() -> None:
    empty = Series(np.zeros(0), np.zeros(0))
    assert "nothing logged" in draw_chart([Line("a", empty, 0)], "x", "y")


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_are_few_even_and_inside(low: float, size: float) -> None:
    marks = ticks(low, low + size)
    assert len(marks) <= 6
    assert all(low - 1e-6 * size <= mark <= low + 1.000001 * size for mark in marks)


@given(st.floats(1e-12, 1e6), st.floats(50, 1e12))
def test_logarithmic_ticks_are_powers_inside(low: float, ratio: float) -> None:
    marks = log_ticks(low, low * ratio)
    assert 1 <= len(marks) <= 8
    assert all(low * 0.999 <= mark <= low * ratio * 1.001 for mark in marks)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.005, "0.005"), (1500, "1.5k"), (2_500_000, "2.5M"), (1e-7, "1e-7"), (-2000, "-2k"), (1e20, "1e20")],
)
def test_numbers_on_axes_are_short(value: float, text: str) -> None:
    assert format_tick(value) == text


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=400), st.integers(4, 60))
def test_thinning_keeps_the_extremes_and_the_order(ys: list[float], max_points: int) -> None:
    points = Series(np.arange(len(ys), dtype=float), np.array(ys))
    thinned = downsample_minmax(points, max_points)
    assert len(thinned.x) <= max(len(ys) if len(ys) <= max_points else 0, max_points)
    assert (thinned.y.min(), thinned.y.max()) == (min(ys), max(ys))
    assert (np.diff(thinned.x) > 0).all()
    assert all(ys[int(x)] == y for x, y in zip(thinned.x, thinned.y, strict=True))


def test_the_differences_are_whole_whatever_the_runs_are_called_and_however_many_there_are(runs: Path) -> None:
    (runs / "chars").rename(runs / ("c" * 60))
    names = [runs / ("c" * 60), *[runs / "pieces"] * 8]
    for chosen in (names[:2], names[:3], names):
        records = read_records(chosen, silent)
        differences = compare(records)
        lines = render_differences(records, differences).splitlines()
        for row in differences["config"]:
            shown = next(line for line in lines if line.split()[:1] == [row.key])
            assert " ".join(shown.split()).startswith(" ".join([row.key, *" ".join(row.texts).split()]))
        assert all(("c" * 60) in line for line in lines if line.split()[:1] in (["config"], ["results"]))


def test_a_run_does_not_differ_from_itself(runs: Path) -> None:
    records = read_records([runs / "chars", runs / "chars"], silent)
    assert render_differences(records, compare(records)) == "the runs do not differ"


def test_a_run_that_was_trained_to_its_end_and_then_further_differs_from_one_that_was_not(runs: Path) -> None:
    shutil.copytree(runs / "chars", runs / "further")
    assert main(["train", "runs/further", "train.steps=8"]) == 0
    assert main(["train", "runs/chars/config.yaml", "train.steps=8", "run_dir=runs/at-once"]) == 0
    rows = compare(read_records([runs / "further", runs / "at-once"], silent))["config"]
    row = next(row for row in rows if row.key == "train.steps")
    assert (row.values, row.texts) == (([6, 8], 8), ("6, then 8", "8"))


def test_losses_are_called_better_only_where_they_compare(runs: Path) -> None:
    def better(*chosen: Path) -> set[str]:
        rows = compare(read_records(chosen, silent))["results"]
        return {row.key for row in rows if row.better}

    assert {"bpb", "bpc"} <= better(runs / "chars", runs / "pieces")
    assert not {"val_loss", "perplexity"} & better(runs / "chars", runs / "pieces")
    assert {"bpb", "val_loss", "perplexity"} <= better(runs / "chars", runs / "chars")
    data = json.loads((runs / "pieces" / "data.json").read_text())
    (runs / "pieces" / "data.json").write_text(json.dumps({**data, "fingerprint": "another"}))
    assert not {"bpb", "bpc"} & better(runs / "chars", runs / "pieces")


def test_diff_prints_tables_or_json(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "runs/chars", "runs/pieces"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines() if line and line.split()[0] in ("results", "config", "data")]
    assert main(["diff", "runs/chars", "runs/pieces", "--json"]) == 0
    actual = json.loads(capsys.readouterr().out)
    assert actual["runs"] == ["runs/chars", "runs/pieces"]
    assert actual["config"]["optim.lr"] == [0.02, 0.01]
    assert actual["results"]["steps"] == [6, 6]


def test_the_verb_writes_the_page(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "runs/chars", "runs/pieces", "-o", "both.html"]) == 0
    assert capsys.readouterr() == ("", "wrote both.html\n")
    assert (runs.parent / "both.html").read_text().startswith("<!doctype html>")
    assert main(["report", "--no-baselines"]) == 0
    assert (runs.parent / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["report", "nowhere"], "error: there is no run at nowhere"),
        (["report", "-o", "page.pdf"], "error: a page is written as .html, not as page.pdf"),
        (["report", "-o", "no/where/page.html"], "error: there is no directory"),
        (
            ["report", "runs/chars/checkpoints/step-00000006"],
            "error: runs/chars/checkpoints/step-00000006 is a checkpo",
        ),
        (["diff", "runs/chars"], "error: give two runs or more to compare"),
    ],
)
def test_a_wrong_request_is_refused_with_code_2(
    runs: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], error: str
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(error)


DAMAGE: list[tuple[str, Callable[[str], str]]] = [
    ("data.json", lambda text: text[:20]),
    ("data.json", lambda _: "[]"),
    ("data.json", lambda _: '{"source": 1, "fingerprint": 2, "splits": {"train": 3}}'),
    ("run.json", lambda _: "{}"),
    ("run.json", lambda _: '{"versions": [], "created": 1, "command": 2}'),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGE)
def test_a_damaged_run_is_an_error_with_its_place_and_leaves_no_page(
    runs: Path, capsys: pytest.CaptureFixture[str], name: str, damage: Callable[[str], str]
) -> None:
    path = runs / "chars" / name
    path.write_text(damage(path.read_text()))
    assert main(["report", "runs/chars", "--no-baselines"]) == 1
    assert "runs/chars" in capsys.readouterr().err
    assert not (runs.parent / "report.html").exists()
