"""`gpt scale`: the fit finds laws that are there, says how sure it is, and the ladder survives what a sweep does."""

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_cli.config import Config, load_config, parse_config
from gpt_cli.errors import RequestError
from gpt_cli.run.log import read_metrics
from gpt_cli.search.scaling import run_scale
from gpt_cli.search.scaling.ladder import effective_parameters, measure_scales, plan_ladder, scales
from gpt_cli.search.scaling.loss_law import LossLaw, best_split, bootstrap, fit_law, interval
from tests.support.hub import local_hub
from tests.support.sweep_kills import kill_again_and_again

pytestmark = pytest.mark.system

N = np.repeat([2e4, 5e4, 1.2e5, 3e5], 4)
D = np.tile([2e5, 4e5, 8e5, 1.6e6], 4)
LAW = LossLaw(1.2, 30.0, 250.0, 0.34, 0.42)
Command = Callable[..., Any]


@settings(max_examples=25)
@given(
    alpha=st.floats(0.15, 1.0), beta=st.floats(0.15, 1.0), e=st.floats(0.3, 2.0), n_term=st.floats(0.2, 1.0),
    d_term=st.floats(0.2, 1.0),
)  # fmt: skip
def test_a_law_without_noise_is_found_again(alpha: float, beta: float, e: float, n_term: float, d_term: float) -> None:
    law = LossLaw(e, n_term * 1e5**alpha, d_term * 6e5**beta, alpha, beta)
    actual = fit_law(N, D, law.loss(N, D))
    assert actual.alpha == pytest.approx(alpha, rel=0.02)
    assert actual.beta == pytest.approx(beta, rel=0.02)
    assert actual.e == pytest.approx(e, abs=0.03)
    assert np.abs(actual.loss(N, D) - law.loss(N, D)).max() < 1e-4
    assert actual.loss(1.2e6, 6e6) == pytest.approx(float(law.loss(1.2e6, 6e6)), abs=0.01)


def test_no_term_of_a_law_is_negative_whatever_the_losses_are() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        actual = fit_law(N, D, rng.uniform(0.5, 3.0, len(N)))
        assert min(actual.e, actual.a, actual.b) >= 0


def test_with_noise_nine_of_ten_intervals_hold_the_loss_beyond_the_ladder() -> None:
    rng = np.random.default_rng(2)
    n_covered, half_widths, predictions = 0, [], []
    truth = float(LAW.loss(6e5, 3.2e6))
    for trial in range(30):
        loss = LAW.loss(N, D) + rng.normal(0.0, 0.005, len(N))
        law = fit_law(N, D, loss)
        draws = [float(draw.loss(6e5, 3.2e6)) for draw in bootstrap(N, D, loss, law, 30, trial)]
        low, high = interval(float(law.loss(6e5, 3.2e6)), draws, len(loss))
        n_covered += low <= truth <= high
        half_widths.append((high - low) / 2)
        predictions.append(float(law.loss(6e5, 3.2e6)))
    assert n_covered >= 26  # by percentiles, which hold eight of ten, 24
    assert np.mean(half_widths) <= 3 * np.std(predictions)  # 1.8 where all is known


@given(st.floats(1e12, 1e18))
def test_the_best_split_of_a_budget_is_where_its_formula_has_it(operations: float) -> None:
    n, d, _ = best_split(LAW, operations, 0.0, 6.0)
    ratio = (LAW.alpha * LAW.a / (LAW.beta * LAW.b)) ** (1 / (LAW.alpha + LAW.beta))
    assert n == pytest.approx(ratio * (operations / 6) ** (LAW.beta / (LAW.alpha + LAW.beta)), rel=0.01)
    assert 6 * n * d == pytest.approx(operations, rel=0.001)


def test_a_ladder_fills_its_time_and_holds_out_what_is_larger_and_longer_than_all_of_it() -> None:
    base = parse_config("", "none", ["model.n_embd=128"])
    per_token = {scale: 1e-5 * (0.2 + scale**2) for scale in scales()}
    ladder = plan_ladder(base, 600.0, 2, per_token)
    held_out_rung, *rungs = ladder
    assert held_out_rung.held_out
    assert all(held_out_rung.steps >= 2 * rung.steps and held_out_rung.n_embd > rung.n_embd for rung in rungs)
    assert len({(rung.n_embd, rung.steps) for rung in rungs}) == 16
    seconds_by_width = {max(32, round(128 * scale)): seconds for scale, seconds in per_token.items()}
    seconds = sum(rung.steps * 16 * 128 * seconds_by_width[rung.n_embd] for rung in ladder) / 2
    assert 0.75 * 600 <= seconds <= 0.86 * 600
    for rung in ladder:
        assert rung.config(base).train.steps == rung.steps
    with pytest.raises(RequestError, match="is too small"):
        plan_ladder(base, 5.0, 2, per_token)


def test_larger_widths_are_timed_where_a_steps_fixed_cost_hides_the_speed_of_the_ladders() -> None:
    base = parse_config("", "none", ["model.n_embd=32", "model.n_layer=1", "model.n_head=2"])
    noise = itertools.cycle([1.03, 1.0, 0.95, 1.02])

    def measure(config: Config) -> float:
        return next(noise) * 1e-5 + 6e-12 * effective_parameters(config, 64)

    per_token = measure_scales(measure, base)
    assert max(per_token) > 2
    assert max(per_token.values()) >= 2 * min(per_token.values())
    fixed, slope = run_scale._time_of_token(base, 64, per_token, None)
    assert 3e-12 < slope < 12e-12  # by the ladder's own widths it may be anything
    assert fixed == pytest.approx(1e-5, rel=0.5)
    wide = parse_config("", "none", ["model.n_embd=1024", "model.n_head=8"])
    assert tuple(measure_scales(measure, wide)) == scales()


def test_widths_of_one_size_are_trained_once_and_a_config_with_too_few_sizes_is_refused() -> None:
    per_token = dict.fromkeys(scales(), 1e-5)
    for width, sizes in ((32, 3), (128, 4)):
        base = parse_config("", "none", [f"model.n_embd={width}", "model.n_head=2", "model.n_layer=2"])
        ladder = plan_ladder(base, 600.0, 1, per_token)
        assert len(set(ladder)) == len(ladder) == 4 * sizes + 1
    base = parse_config("", "none", ["model.n_embd=16", "model.n_head=1", "model.n_layer=1"])
    with pytest.raises(RequestError, match="too small for a ladder of sizes: below it there are 2"):
        plan_ladder(base, 600.0, 1, per_token)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("It was the best of times, it was the worst of times, it was the age.\n" * 300)
    (tmp_path / "tiny.yaml").write_text(
        "data: {source: text.txt}\n"
        "model: {n_layer: 2, n_head: 2, n_embd: 32, context_length: 16}\n"
        "train: {batch_size: 2}\n"
        "log: {every: 1}\n"
        "runtime: {device: cpu, precision: fp32, engine: torch, threads: 1}\n"
    )
    return tmp_path


def write_plan(folder: Path, home: str = "scales/tiny", min_steps: int = 3) -> None:
    """A plan of few steps, such as is measured elsewhere, so that no test depends on how fast it is here."""
    from dataclasses import asdict, replace

    from gpt_cli.config import dump_config
    from gpt_cli.search.time_budget import with_values

    base = with_values(load_config(folder / "tiny.yaml"), {"runtime.threads": 1})
    per_token = {scale: 1e-5 * (1 + scale**2) for scale in scales()}
    ladder = plan_ladder(base, 0.05, 1, {scale: 1e-8 * seconds / 1e-5 for scale, seconds in per_token.items()})
    planned_steps = ladder[-1].steps
    ladder = [replace(rung, steps=min_steps * rung.steps // planned_steps) for rung in ladder]
    (folder / home).mkdir(parents=True)
    plan = {
        "config": dump_config(base.model_copy(update={"run_dir": None})), "seconds": 60.0, "per_token": per_token,
        "ladder": [asdict(rung) for rung in ladder],
    }  # fmt: skip
    (folder / home / "scale.json").write_text(json.dumps(plan))


def test_it_fits_tries_the_law_on_what_it_has_not_seen_and_goes_on_with_what_is_there(
    folder: Path, gpt_here: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_scale, "DRAWS", 20)
    write_plan(folder)
    outcome = gpt_here("scale", "tiny.yaml", "--budget", "60s", "--json")
    assert outcome.rc == 0, outcome.stderr
    result = json.loads(outcome.stdout)
    assert len(result["points"]) == 13  # two of the four widths come to one size
    assert len({(point["n"], point["d"]) for point in result["points"]}) == 13
    [held_out_point] = [point for point in result["points"] if point["held_out"]]
    assert result["held_out_error"] == pytest.approx(held_out_point["fitted"] - held_out_point["loss"])
    assert all(point["d"] > 0 for point in result["points"])
    losses = [entry["loss"] for entry in result["advice"]]
    assert losses == sorted(losses, reverse=True)
    assert (folder / "scales/tiny/law.png").read_bytes().startswith(b"\x89PNG")
    assert gpt_here("train", "--config", "scales/tiny/advised.yaml", "--dry-run").rc == 0
    advised = load_config(folder / "scales/tiny/advised.yaml")
    assert advised.run_dir == "runs/tiny-advised"  # the config's own run, if there is one, stays as it is
    assert advised.checkpoint.every == max(1, advised.train.steps // 8)  # not as often as the config's shorter run
    assert advised.schedule.warmup_steps <= advised.train.steps // 10
    second_outcome = gpt_here("scale", "tiny.yaml", "--budget", "60s", "--json")
    assert json.loads(second_outcome.stdout) == result
    other_jobs = gpt_here("scale", "tiny.yaml", "runtime.threads=null", "--jobs", "3", "--budget", "60s", "--json")
    assert json.loads(other_jobs.stdout) == result
    runs = sorted((folder / "scales/tiny").glob("*-seed=*"))
    assert all(read_metrics(run) for run in runs)
    device_outcome = gpt_here("scale", "tiny.yaml", "--budget", "60s", "--device-flops", "1e15")
    assert "a device that does --device-flops" in device_outcome.stdout
    assert "Held out: " in device_outcome.stdout
    other_outcome = gpt_here("scale", "tiny.yaml", "--budget", "61s")
    assert other_outcome.rc == 2


def test_a_ladder_goes_on_with_the_commit_of_the_data_set_that_it_began_with(
    folder: Path, gpt_here: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_scale, "DRAWS", 5)
    file, line = folder / "tiny.yaml", json.dumps({"text": (folder / "text.txt").read_text()})
    unpinned = file.read_text().replace("text.txt", "hf:someone/stories")
    with local_hub(folder / "huggingface", monkeypatch) as hub:
        source = f"hf:someone/stories@{hub.commit('someone/stories', {'x.jsonl': line})}"
        file.write_text(unpinned.replace("hf:someone/stories", source))
        write_plan(folder, min_steps=1)
        file.write_text(unpinned)
        hub.commit("someone/stories", {"y.jsonl": line})
        outcome = gpt_here("scale", "tiny.yaml", "--budget", "60s", "--jobs", "1")
    assert "another request" not in outcome.stderr
    configs = list((folder / "scales/tiny").glob("*/config.yaml"))
    assert configs
    assert {load_config(config).data.source for config in configs} == {source}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--budget", "soon"], "--budget must be a time"),
        (["optim.lr=auto"], "a ladder has one rate and its own steps"),
        (["--budget", "1s", "train.batch_size=512"], "is too small"),
    ],
)
def test_a_wrong_request_is_one_error(folder: Path, gpt_here: Command, arguments: list[str], error: str) -> None:
    outcome = gpt_here("scale", "tiny.yaml", *arguments)
    assert outcome.rc == 2
    assert error in outcome.stderr


def test_it_says_that_the_config_of_a_run_is_scaled_where_a_text_was_named(folder: Path, gpt_here: Command) -> None:
    (folder / "runs/text").mkdir(parents=True)
    config = (folder / "tiny.yaml").read_text() + "run_dir: runs/text\n"
    (folder / "runs/text/config.yaml").write_text(config)
    (folder / "named.yaml").write_text(config)
    for source, has_note in (("text.txt", True), ("named.yaml", False)):
        outcome = gpt_here("scale", source, "--budget", "1s")
        assert outcome.rc == 2
        assert ("runs/text exists, and its config is scaled" in " ".join(outcome.stderr.split())) is has_note


@pytest.mark.slow
@pytest.mark.robust
@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
def test_killed_10_times_it_ends_with_the_law_of_one_left_alone(
    folder: Path, gpt: Command, record_property: Callable[[str, object], None]
) -> None:
    record_property("faults", 10)
    for home in ("scales/tiny", "whole"):
        write_plan(folder, home, min_steps=40)
    command = ["scale", "tiny.yaml", "--budget", "60s", "--json"]
    assert kill_again_and_again(command, folder, folder / "scales/tiny", kills=10, steps=1500, seed=4) >= 3
    killed_outcome, full_outcome = gpt(*command), gpt(*command, "--out", "whole")
    assert killed_outcome.rc == full_outcome.rc == 0, killed_outcome.stderr
    results = [json.loads(outcome.stdout) for outcome in (killed_outcome, full_outcome)]
    assert {**results[0], "home": ""} == {**results[1], "home": ""}
