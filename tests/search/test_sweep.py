"""`gpt sweep`: honest comparisons of ordinary runs, whatever interrupts it."""

import json
import math
import random
import signal
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.config import load_config, parse_config
from gpt_cli.errors import RequestError
from gpt_cli.files import read_sums
from gpt_cli.run.checkpoint import list_checkpoints
from gpt_cli.run.log import read_events, read_metrics
from gpt_cli.runtime.signals import StopRequest
from gpt_cli.search.sweep.axes import ValueList, ValueRange, parse_axes, split_values
from gpt_cli.search.sweep.differences import compare, t_cdf, t_quantile
from gpt_cli.search.sweep.executor import Progress, RunLimits, RunTask, execute
from gpt_cli.search.sweep.outcomes import Outcome
from gpt_cli.search.sweep.run_pool import RunEnd
from tests.support.sweep_kills import kill_again_and_again, logged, start, wait_until_logged
from tests.support.tiny_run import TEXT

pytestmark = pytest.mark.system

CONFIG = """\
data: {source: text.txt}
model: {n_layer: 1, n_head: 2, n_embd: 16, context_length: 16}
train: {batch_size: 4, steps: 20}
schedule: {warmup_steps: 2}
eval: {every: 5}
checkpoint: {every: 5}
sample: {every: null}
log: {every: 1}
runtime: {device: cpu, precision: fp32, engine: torch, threads: 1}
"""
Command = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    return tmp_path


def weights(run: Path) -> str:
    return read_sums(list_checkpoints(run)[0])["model.safetensors"]


def curves(home: Path) -> dict[str, Any]:
    """All that the runs in `home` logged, without the time, and their last weights."""
    return {
        run.name: (
            [{key: value for key, value in line.items() if key != "time"} for line in read_metrics(run)],
            weights(run),
        )
        for run in sorted(home.glob("*-seed=*"))
    }


# What is asked for


def test_values_are_lists_ranges_or_one_and_rates_are_searched_on_a_log_scale() -> None:
    fixed, axes = parse_axes(
        [
            "optim.lr=0.001..0.1",
            "model.mlp=gelu,relu",
            "train.steps=5",
            "model.dropout=0..0.5",
            "model.n_layer=log:1..8",
        ]
    )
    assert fixed == ["train.steps=5"]
    assert axes == [
        ValueRange("optim.lr", 0.001, 0.1, log=True, whole=False),
        ValueList("model.mlp", ("gelu", "relu")),
        ValueRange("model.dropout", 0.0, 0.5, log=False, whole=False),
        ValueRange("model.n_layer", 1, 8, log=True, whole=True),
    ]
    assert parse_axes(["data.source=../a..b.txt"]) == (["data.source=../a..b.txt"], [])
    assert parse_axes(["optim.betas=[0.9,0.95],[0.9,0.99]"])[1] == [
        ValueList("optim.betas", ("[0.9,0.95]", "[0.9,0.99]"))
    ]
    assert parse_axes(['sample.prompt="a,b"'])[1] == []


@given(st.lists(st.text("abc01.", min_size=1), min_size=1))
def test_a_list_is_cut_into_what_it_was_joined_of(values: list[str]) -> None:
    assert split_values(",".join(values)) == values


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["optim.lrr=1,2"], "optim.lrr is not a key"),
        (["optim.lr=0,0.1"], "optim.lr must be above 0"),
        (["optim.lr=0.1..0.01"], "0.1 is not below 0.01"),
        (["optim.lr=log:0..0.01"], "a log scale begins above 0"),
        (["model.dropout=0..1"], "model.dropout must be below 1"),
        (["train.batch_size=1.5..3"], "takes whole numbers"),
        (["model.n_head=2,3"], "model.n_embd (16) must be a multiple of model.n_head (3)"),
        (["optim.lr=0.1,0.1"], "has a value twice"),
        (["optim.lr=0.1,,0.2"], "has an empty value"),
        (["optim.lr=0.1,0.2", "optim.lr=0.3,0.4"], "optim.lr is varied twice"),
        (["run_dir=a,b"], "run_dir cannot be swept"),
        (["run_dir=a", "optim.lr=1,2"], "run_dir is not for a sweep"),
        (["seed=1,2"], "seed cannot be swept"),
        (["data.val_fraction=0.1,0.2"], "losses on different texts do not compare"),
        (["data.source=a.txt,b.txt"], "losses on different texts do not compare"),
        (["optim.lr=0.1", "--seeds", "1"], "there is nothing to compare"),
        (["optim.lr=1,2", "--max-runs", "0"], "--max-runs"),
        (["optim.lr=1..2", "--max-runs", "5"], "5 runs are too few"),
        (["optim.lr=1,2", "--budget", "soon"], "--budget must be a time"),
        (["optim.lr=1,2", "train.steps=100000", "--budget", "1s"], "the budget of 1 s is too small"),
        (["optim.lr=1,2", "--out", "text.txt"], "text.txt is not a directory"),
        (["optim.lr=1,2", "--out", "."], "holds other files and no sweep"),
    ],
)
def test_a_wrong_request_is_one_error_before_the_first_run(
    folder: Path, gpt_here: Command, arguments: list[str], error: str
) -> None:
    outcome = gpt_here("sweep", "tiny.yaml", *arguments)
    assert outcome.rc == 2
    assert outcome.stderr.count("error:") == 1
    assert error in " ".join(outcome.stderr.split())
    assert sorted(path.name for path in folder.iterdir()) == ["text.txt", "tiny.yaml"]


# Which differences seeds would not make


@pytest.mark.parametrize(
    ("probability", "freedom", "value"),
    [(0.975, 1, 12.7062), (0.975, 2, 4.3027), (0.975, 3, 3.1824), (0.995, 10, 3.1693), (0.95, 120, 1.6577)],
)
def test_quantiles_of_t_are_those_of_the_tables(probability: float, freedom: int, value: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(value, abs=1e-4)
    assert t_cdf(value, freedom) == pytest.approx(probability, abs=1e-5)


@given(st.lists(st.tuples(st.floats(1, 2), st.floats(1, 2)), min_size=2, max_size=6))
def test_of_two_settings_the_interval_is_that_of_the_paired_t_test(pairs: list[tuple[float, float]]) -> None:
    first, second = ({seed: pair[side] for seed, pair in enumerate(pairs)} for side in (0, 1))
    _, actual = compare([first, second], 0)
    gaps = [b - a for a, b in pairs]
    assert actual is not None
    assert actual.low is not None
    assert actual.high is not None
    half_width = t_quantile(0.975, len(gaps) - 1) * statistics.stdev(gaps) / math.sqrt(len(gaps))
    assert actual.mean == pytest.approx(statistics.fmean(gaps), abs=1e-9)
    assert (actual.high - actual.low) / 2 == pytest.approx(half_width, abs=1e-6)


def test_settings_that_are_the_same_are_told_apart_in_one_sweep_of_twenty() -> None:
    rng = random.Random(5)
    alarms = 0
    for _ in range(400):
        seeds = [rng.gauss(0, 1.0) for _ in range(3)]
        losses = [{s: seeds[s] + rng.gauss(0, 0.1) for s in range(3)} for _ in range(4)]
        alarms += any(actual is not None and actual.is_told_apart for actual in compare(losses, 0))
    assert 0.01 <= alarms / 400 <= 0.07  # of the first one, whichever it is; the best of them is compared more severely


def test_a_difference_far_beyond_the_noise_is_told_apart_however_much_a_seed_moves_all() -> None:
    seeds = {1: 0.0, 2: 0.7, 3: -0.4}
    good_losses = {seed: 1.0 + shift for seed, shift in seeds.items()}
    bad_losses = {seed: 1.1 + shift + 0.001 * seed for seed, shift in seeds.items()}
    _, actual = compare([good_losses, bad_losses], 0)
    assert actual is not None
    assert actual.is_told_apart


@pytest.mark.parametrize("losses", [[{1: 1.0}, {1: 1.5}], [{1: 1.0}, {2: 1.5}], [{1: 1.0, 2: 1.1}, {3: 2.0}]])
def test_without_a_second_common_seed_nothing_is_known(losses: list[dict[int, float]]) -> None:
    assert [actual and actual.is_told_apart for actual in compare(losses, 0)] == [None, None]


def test_a_setting_that_lacks_a_seed_is_compared_by_those_it_has() -> None:
    full_losses, partial_losses = {1: 1.0, 2: 1.2, 3: 1.1}, {1: 2.0, 3: 2.1}
    _, actual, missing_difference = compare([full_losses, partial_losses, {}], 0)
    assert actual is not None
    assert actual.mean == pytest.approx(1.0)
    assert actual.is_told_apart
    assert missing_difference is None


# Sweeps


def test_its_runs_are_those_of_gpt_train_and_the_best_config_trains_as_it_stands(
    folder: Path, gpt_here: Command
) -> None:
    outcome = gpt_here("sweep", "tiny.yaml", "optim.lr=0.005,0.02", "model.mlp=gelu,relu", "--seeds", "2", "--json")
    assert outcome.rc == 0, outcome.stderr
    result = json.loads(outcome.stdout)
    home = folder / "sweeps" / "tiny"
    runs = sorted(home.glob("*-seed=*"))
    assert [run.name for run in runs][:2] == ["000-lr=0.005,mlp=gelu-seed=1337", "000-lr=0.005,mlp=gelu-seed=1338"]
    assert len(runs) == 8
    means = [setting["mean"] for setting in result["settings"]]
    assert means == sorted(means)
    best_setting = result["settings"][0]
    assert best_setting["difference"] is None
    assert all(other_setting["difference"]["mean"] >= 0 for other_setting in result["settings"][1:])
    assert gpt_here("train", "--config", "sweeps/tiny/best.yaml").rc == 0
    [winner] = home.glob(f"{best_setting['number']:03}-*-seed=1337")
    assert weights(folder / "runs" / "tiny-best") == weights(winner)
    page = (home / "report.html").read_text()
    assert "http" not in page.replace("http-equiv", "")
    assert "data:image/png;base64," in page
    assert "optim.lr=0.005 model.mlp=gelu" in page
    assert (home / "effects.png").read_bytes().startswith(b"\x89PNG")
    assert gpt_here("runs", "--dir", "sweeps/tiny").rc == 0

    repeat_outcome = gpt_here(
        "sweep", "tiny.yaml", "optim.lr=0.005,0.02", "model.mlp=gelu,relu", "--seeds", "2", "--json"
    )
    assert json.loads(repeat_outcome.stdout) == result
    extended_outcome = gpt_here(
        "sweep", "tiny.yaml", "optim.lr=0.005,0.02", "model.mlp=gelu,relu", "--seeds", "3", "--max-runs", "9"
    )
    assert extended_outcome.rc == 0, extended_outcome.stderr
    assert "3 runs left, as --max-runs 9 is reached" in extended_outcome.stderr
    other_axes_outcome = gpt_here("sweep", "tiny.yaml", "optim.lr=0.005,0.04", "model.mlp=gelu,relu", "--seeds", "2")
    assert other_axes_outcome.rc == 2
    assert "here:  optim.lr=0.005,0.04" in other_axes_outcome.stderr
    other_steps_outcome = gpt_here("sweep", "tiny.yaml", "optim.lr=0.005,0.02", "model.mlp=gelu,relu", "train.steps=21")
    assert other_steps_outcome.rc == 2
    assert "train.steps: 20 there, 21 here" in other_steps_outcome.stderr


def test_a_run_that_fails_is_told_and_the_others_go_on(folder: Path, gpt_here: Command) -> None:
    command = ("sweep", "tiny.yaml", "optim.name=adamw", "optim.lr=1e-3,1e30", "optim.grad_clip=null", "--seeds", "2")
    outcome = gpt_here(*command)
    assert outcome.rc == 0, outcome.stderr
    assert outcome.stderr.count("failed: ") == 2
    assert outcome.stdout.splitlines()[1].startswith("optim.lr=1e-3")
    assert "optim.lr=1e30: seed 1337 failed: " in outcome.stdout
    assert "Runs without a loss" in (folder / "sweeps/tiny/report.html").read_text()
    repeat_outcome = gpt_here(*command)
    assert repeat_outcome.stdout == outcome.stdout
    assert "failed: " not in repeat_outcome.stderr  # it is not trained again


def test_where_no_run_has_a_loss_it_fails(folder: Path, gpt_here: Command) -> None:
    (folder / "blank.txt").touch()
    outcome = gpt_here("sweep", "tiny.yaml", "data.source=blank.txt", "optim.lr=1e-3,2e-3", "--seeds", "1")
    assert outcome.rc == 1
    assert "blank.txt" in outcome.stdout
    assert not (folder / "sweeps/tiny/best.yaml").exists()


def test_one_seed_says_that_nothing_is_known(folder: Path, gpt_here: Command) -> None:
    outcome = gpt_here("sweep", "tiny.yaml", "optim.lr=0.005,0.02", "--seeds", "1", "--jobs", "1", "train.steps=5")
    assert outcome.rc == 0, outcome.stderr
    output = " ".join(outcome.stdout.split())
    assert "nothing is known about which differences another seed would make" in output
    assert all("?" in line for line in outcome.stdout.splitlines()[2:3])


SEARCH = ("optim.lr=0.0001..0.1", "model.mlp=gelu,relu", "--seeds", "2", "--max-runs", "22", "--json")


def test_a_search_gives_up_what_is_behind_and_compares_the_best_by_seeds_that_did_not_choose_them(
    folder: Path, gpt_here: Command
) -> None:
    pytest.importorskip("optuna", reason="the extra [sweep] is not installed")
    outcome = gpt_here("sweep", "tiny.yaml", *SEARCH)
    assert outcome.rc == 0, outcome.stderr
    result = json.loads(outcome.stdout)
    compared_settings = [setting for setting in result["settings"] if setting["losses"]]
    assert len(compared_settings) == 3
    assert all(set(setting["losses"]) == {"1338", "1339"} for setting in compared_settings)
    search_losses = sorted(setting["searched"] for setting in result["settings"] if not setting["failed"])
    assert sorted(setting["searched"] for setting in compared_settings) == search_losses[:3]
    pruned_settings = [setting for setting in result["settings"] if setting["failed"]]
    assert pruned_settings
    for setting in pruned_settings:
        [run] = (folder / "sweeps/tiny").glob(f"{setting['number']:03}-*")
        [event] = [event for event in read_events(run) if event["event"] == "pruned"]
        assert setting["failed"] == [f"given up at step {event['step']}"]
        assert 10 <= event["step"] < 20


def test_a_sweep_cut_short_compares_by_the_seeds_that_all_settings_have(folder: Path, gpt_here: Command) -> None:
    limited = ("--seeds", "2", "--max-runs", "4", "--out", "cut", "--json")
    result = json.loads(gpt_here("sweep", "tiny.yaml", "optim.lr=0.00001,0.01,0.02", *limited).stdout)
    assert result["ended"] == 4
    assert result["method"].startswith("One seed each so far")
    assert [len(setting["losses"]) for setting in result["settings"]] == [1, 1, 1]
    losses = [setting["mean"] for setting in result["settings"]]
    assert losses == sorted(losses)
    assert result["settings"][0]["values"] != {"optim.lr": "0.00001"}


def test_a_search_tries_no_values_twice_and_ends_when_all_are_tried(folder: Path, gpt_here: Command) -> None:
    result = json.loads(gpt_here("sweep", "tiny.yaml", "model.n_layer=1..3", "--seeds", "1", "--json").stdout)
    tried = [setting["values"]["model.n_layer"] for setting in result["settings"]]
    assert sorted(tried) == ["1", "2", "3"]
    assert result["runs"] == result["ended"] == 3


def test_a_search_names_what_the_config_refuses_and_counts_the_rest(folder: Path, gpt_here: Command) -> None:
    outcome = gpt_here("sweep", "tiny.yaml", "model.n_head=1..4", "train.steps=1", "--seeds", "1", "--json")
    result = json.loads(outcome.stdout)
    assert "1 setting of 4 left out, such as model.n_head=3: " in outcome.stderr
    assert "a search of 3 runs" in outcome.stderr
    assert result["runs"] == result["ended"] == 3


def test_a_search_goes_on_with_more_runs_and_keeps_those_it_has(folder: Path, gpt_here: Command) -> None:
    home = folder / "more"
    search = ("sweep", "tiny.yaml", "optim.lr=0.001..0.1", "train.steps=6", "eval.every=null", "--out", "more")
    for runs, expected in (("2", 2), ("4", 4), (None, 4), ("3", 4)):  # a lower limit forgets no run there is
        limit = () if runs is None else ("--max-runs", runs)
        before = {path.name: weights(path) for path in home.glob("*seed*")}
        result = json.loads(gpt_here(*search, "--seeds", "1", "--json", *limit).stdout)
        assert result["ended"] == len(result["settings"]) == expected
        assert before.items() <= {path.name: weights(path) for path in home.glob("*seed*")}.items()


def test_the_next_run_of_a_search_depends_on_those_a_fixed_way_before_it_alone(folder: Path) -> None:
    pytest.importorskip("optuna", reason="the extra [sweep] is not installed")
    from gpt_cli.search.sweep.optuna_search import propose

    axes = parse_axes(["optim.lr=0.0001..0.1", "model.n_layer=1..4", "model.mlp=gelu,relu"])[1]
    history = []
    for number in range(12):
        point = propose(axes, history, seed=number)
        assert point == propose(axes, list(history), seed=number)
        assert 0.0001 <= float(point["optim.lr"]) <= 0.1
        loss = abs(math.log10(float(point["optim.lr"])) + 2)
        history.append((point, Outcome("done", steps=9, val_loss=loss, evaluations=[(9, loss)])))
    assert len({tuple(point.values()) for point, _ in history}) == 12


def test_a_range_without_optuna_says_what_to_install(
    folder: Path, gpt_here: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    outcome = gpt_here("sweep", "tiny.yaml", "optim.lr=0.0001..0.1")
    assert outcome.rc == 2
    assert "pip install 'gpt-cli[sweep]'" in outcome.stderr


class FakeSource:
    """A source of runs of whose work there is this much."""

    def __init__(self, work: float) -> None:
        self.total_work, self.total_runs = work, 2


def test_the_time_left_is_by_the_pace_of_this_process_and_unknown_at_first() -> None:
    clock_time = 0.0
    task = RunTask("a", "a", parse_config("", "none", ["run_dir=a", "train.steps=100"]))
    progress = Progress(FakeSource(2 * task.work), lambda: clock_time, RunLimits())  # type: ignore[arg-type]
    progress.begun(task, Outcome("begun", steps=50))  # by a process before it
    assert progress.seconds_left() is None
    clock_time, expected = 30.0, 90.0
    progress.reached("a", 1.0)
    assert progress.seconds_left() == pytest.approx(expected / 1.5)  # half a run took 30 s, one whole run is left
    messages: list[str] = []
    progress.report(messages.append)
    assert messages == ["  50% of the work done, about 1:00 left"]
    progress.report(messages.append)
    assert len(messages) == 1


def test_the_share_of_the_work_is_that_of_the_runs_that_max_runs_lets_begin() -> None:
    clock_time = 0.0
    task = RunTask("a", "a", parse_config("", "none", ["run_dir=a", "train.steps=100"]))
    progress = Progress(FakeSource(2 * task.work), lambda: clock_time, RunLimits(max_runs=1))  # type: ignore[arg-type]
    progress.begun(task, Outcome("begun", steps=0))
    clock_time = 30.0
    progress.reached("a", 0.5)
    messages: list[str] = []
    progress.report(messages.append)
    assert messages == ["  50% of the work done, about 0:30 left"]


# Interrupted

no_kill = pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")


@no_kill
@pytest.mark.robust
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_has_the_runs_saved_and_the_same_command_goes_on(folder: Path, gpt: Command, number: int) -> None:
    command = ["sweep", "tiny.yaml", "optim.lr=0.005,0.02", "--seeds", "2", "train.steps=100", "--json"]
    home = folder / "sweeps" / "tiny"
    process = start(command, folder)
    wait_until_logged(process, home, 30)
    process.send_signal(number)
    _, stderr = process.communicate()
    assert process.returncode == 128 + number, stderr
    assert b"resumes from here" in stderr
    steps_at_stop = logged(home)
    started_runs = [run for run in home.glob("*-seed=*") if read_metrics(run)]
    assert started_runs
    assert all(read_events(run)[-1]["event"] == "ended" for run in started_runs)
    outcome = gpt(*command)
    assert outcome.rc == 0, outcome.stderr
    assert logged(home) >= steps_at_stop
    uninterrupted = gpt(*command, "--out", "whole")
    assert json.loads(outcome.stdout)["settings"] == json.loads(uninterrupted.stdout)["settings"]
    assert curves(home) == curves(folder / "whole")


@no_kill
@pytest.mark.robust
@pytest.mark.parametrize("kind", ["grid", pytest.param("search", marks=pytest.mark.slow)])
def test_killed_10_times_it_ends_with_the_result_of_one_left_alone(
    folder: Path, gpt: Command, kind: str, record_property: Callable[[str, object], None]
) -> None:
    record_property("faults", 10)
    command = ["sweep", "tiny.yaml", "optim.lr=0.002,0.02", "model.mlp=gelu,relu", "train.steps=60", "--seeds", "2"]
    if kind == "search":
        pytest.importorskip("optuna", reason="the extra [sweep] is not installed")
        command = ["sweep", "tiny.yaml", *SEARCH, "train.steps=40"]
    home = folder / "sweeps" / "tiny"
    power_cuts = kill_again_and_again(command, folder, home, kills=10, steps=250, seed=3)
    assert power_cuts >= 3
    jobs_args = ["--jobs", "1"] if kind == "search" else []  # how many processes there are changes no trial
    killed, uninterrupted = gpt(*command, "--json"), gpt(*command, "--json", "--out", "whole", *jobs_args)
    assert killed.rc == uninterrupted.rc == 0, killed.stderr
    results = [json.loads(outcome.stdout) for outcome in (killed, uninterrupted)]
    assert results[0]["settings"] == results[1]["settings"]
    assert (home / "best.yaml").read_text().replace("tiny-best", "whole-best") == (
        folder / "whole" / "best.yaml"
    ).read_text()
    uninterrupted_curves = curves(folder / "whole")
    killed_curves = curves(home)
    assert killed_curves.keys() == uninterrupted_curves.keys()
    pruned_numbers = {
        f"{setting['number']:03}" for setting in results[0]["settings"] if setting["failed"]
    }  # they end when told to
    assert bool(pruned_numbers) == (kind == "search")
    for name, (lines, digest) in killed_curves.items():
        if name[:3] not in pruned_numbers:
            assert (lines, digest) == uninterrupted_curves[name]


def test_a_plan_that_is_none_is_refused(folder: Path, gpt_here: Command) -> None:
    (folder / "sweeps" / "tiny").mkdir(parents=True)
    (folder / "sweeps/tiny/sweep.json").write_text("{}")
    outcome = gpt_here("sweep", "tiny.yaml", "optim.lr=1,2")
    assert outcome.rc == 2
    assert "is not the plan of a sweep" in outcome.stderr


def test_every_run_of_a_sweep_is_a_config_of_its_own_that_can_be_resumed(folder: Path, gpt_here: Command) -> None:
    assert gpt_here("sweep", "tiny.yaml", "model.n_layer=1,2", "--seeds", "1", "train.steps=5").rc == 0
    [run] = (folder / "sweeps/tiny").glob("001-*")
    assert load_config(run / "config.yaml").model.n_layer == 2
    assert gpt_here("train", str(run), "train.steps=8").rc == 0
    with pytest.raises(RequestError):
        parse_axes(["model.n_layer=2..1"])


def test_a_budget_begins_no_run_that_would_end_too_late_by_the_pace_of_those_before_it(tmp_path: Path) -> None:
    def task(name: str, steps: int) -> RunTask:
        return RunTask(name, name, parse_config("", "none", [f"run_dir={tmp_path / name}", f"train.steps={steps}"]))

    pool, request = InstantPool(), StopRequest()
    source = TaskSource([task("a", 100), task("b", 100), task("c", 300), task("d", 100)])
    execution = execute(source, pool, RunLimits(budget=35.0), request, lambda _: None)  # type: ignore[arg-type]
    assert pool.started == ["a", "b"]  # 10 s each; c would take 30 s
    assert execution.left == "the budget has no time for another run"


def test_a_budget_counts_the_time_that_has_passed_and_not_that_of_steps_alone(tmp_path: Path) -> None:
    def task(name: str) -> RunTask:
        return RunTask(name, name, parse_config("", "none", [f"run_dir={tmp_path / name}", "train.steps=10"]))

    pool = InstantPool()
    source, limits = TaskSource([task("a"), task("b")]), RunLimits(budget=35.0)
    clock = lambda: 40.0 if pool.started else 0.0  # noqa: E731 - a process that took 40 s for a second of steps
    execution = execute(source, pool, limits, StopRequest(), lambda _: None, clock)  # type: ignore[arg-type]
    assert pool.started == ["a"]
    assert execution.left == "the budget has no time for another run"


def test_a_run_that_is_interrupted_before_its_first_checkpoint_is_not_told_as_saved(tmp_path: Path) -> None:
    request = StopRequest()

    class InterruptedPool(InstantPool):
        """A pool whose process is interrupted, and ends, before it has trained a step."""

        def start(self, name: str, config: str) -> None:
            self.running.append(name)
            request.received = signal.SIGINT

        def stop_all(self) -> None:
            pass

        def wait(self, _: float) -> list[RunEnd]:
            return [RunEnd(self.running.pop(), exit_code=128 + signal.SIGINT)]

    log: list[str] = []
    source = TaskSource([RunTask("a", "a", parse_config("", "none", [f"run_dir={tmp_path / 'a'}"]))])
    execution = execute(source, InterruptedPool(), RunLimits(), request, log.append)  # type: ignore[arg-type]
    assert not execution.outcomes
    assert log == ["  a: stopped as it began"]


def test_a_run_whose_process_is_killed_goes_on_and_is_told_as_failed_when_that_happens_three_times(
    tmp_path: Path,
) -> None:
    class KilledPool(InstantPool):
        """A pool whose first processes are killed."""

        def __init__(self, kills: int) -> None:
            super().__init__()
            self.kills = kills

        def wait(self, seconds: float) -> list[RunEnd]:
            self.kills -= 1
            if self.kills < 0:
                return super().wait(seconds)
            return [RunEnd(self.running.pop(), error="its process ended by signal 9", killed=True)]

        def start(self, name: str, config: str) -> None:
            self.started.append(name)
            if self.kills > 0:
                self.running.append(name)
            else:
                super().start(name, config)

    for kills, state in ((2, "done"), (3, "failed")):
        config = parse_config("", "none", [f"run_dir={tmp_path / str(kills)}", "train.steps=10"])
        log: list[str] = []
        source = TaskSource([RunTask("a", "a", config)])
        execution = execute(source, KilledPool(kills), RunLimits(), StopRequest(), log.append)  # type: ignore[arg-type]
        assert execution.outcomes["a"].state == state
        assert log[:2] == ["  a: its process ended by signal 9; it goes on from its last checkpoint"] * 2


class TaskSource(FakeSource):
    """A source of runs in their order."""

    def __init__(self, tasks: list[RunTask]) -> None:
        super().__init__(sum(task.work for task in tasks))
        self._tasks = iter(tasks)

    def next(self, _: object) -> RunTask | None:
        return next(self._tasks, None)

    def pruned_at(self, *_: object) -> None:
        return None


class InstantPool:
    """A pool of one process, whose runs end when they are waited for, after a tenth of a second for each step."""

    jobs = 1

    def __init__(self) -> None:
        self.started: list[str] = []
        self.running: list[str] = []

    @property
    def has_free(self) -> bool:
        return not self.running

    def start(self, name: str, config: str) -> None:
        parsed_config = parse_config(config, name)
        run = Path(str(parsed_config.run_dir))
        (run / "checkpoints" / f"step-{parsed_config.train.steps:08}").mkdir(parents=True)
        (run / "run.json").write_text("{}")
        line = {
            "step": parsed_config.train.steps,
            "time": parsed_config.train.steps / 10,
            "val_loss": 1.0,
            "bpb": 1.0,
            "tokens": 1,
        }
        (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        self.started.append(name)
        self.running.append(name)

    def wait(self, _: float) -> list[RunEnd]:
        return [RunEnd(self.running.pop(), exit_code=0)]
