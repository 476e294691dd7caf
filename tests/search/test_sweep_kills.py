"""A search that is stopped anywhere ends as one left alone: the runs are simulated, everything else is as it is."""

import math
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from gpt_cli.config import Config, parse_config
from gpt_cli.errors import RequestError
from gpt_cli.run.log import RunLog, read_metrics
from gpt_cli.search.sweep import run_sweep as run_sweep_module
from gpt_cli.search.sweep import search_source
from gpt_cli.search.sweep.axes import parse_axes
from gpt_cli.search.sweep.run_pool import RunEnd
from gpt_cli.search.sweep.run_sweep import run_sweep
from gpt_cli.search.sweep.sweep import SweepRequest

pytestmark = pytest.mark.system

pytest.importorskip("optuna", reason="the extra [sweep] is not installed")

CONFIG = """\
data: {source: text.txt}
model: {n_layer: 1, n_head: 2, n_embd: 16, context_length: 16}
train: {batch_size: 4, steps: 12}
runtime: {device: cpu, engine: torch, threads: 1}
"""
STEPS, EVAL_EVERY, SAVE_EVERY = 12, 2, 3
Victim = Literal["sweep", "all", "trainer"]


class Killed(BaseException):
    """The end of the process, at once."""


class Moments:
    """Counts the moments at which something can be interrupted, and interrupts at one of them."""

    def __init__(self, last: int | None = None) -> None:
        self.count, self.last = 0, last

    def pass_(self) -> None:
        self.count += 1
        if self.count == self.last:
            raise Killed


def loss_of(config: Config, step: int) -> float:
    """A loss that has a best rate, and falls over the run."""
    noise = zlib.crc32(f"{config.seed} {config.model.mlp}".encode()) / 2**32
    return (math.log10(float(config.optim.lr)) + 2) ** 2 + 0.02 * noise + 1 / (1 + step)


class Trainers:
    """In place of processes: each run that was started makes a step, or a few, whenever it is waited for."""

    def __init__(self, jobs: int, moments: Moments, victim: Victim) -> None:
        self.jobs, self.moments, self.victim = jobs, moments, victim
        self.running: dict[str, Iterator[RunEnd | None]] = {}
        self.configs: dict[str, Config] = {}
        self.stopped: set[str] = set()

    def __enter__(self) -> "Trainers":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def has_free(self) -> bool:
        return len(self.running) < self.jobs

    def start(self, name: str, config: str) -> None:
        assert self.has_free
        self.moments.pass_()
        self.configs[name] = parse_config(config, name)
        self.running[name] = self.train(name, self.configs[name])
        self.moments.pass_()

    def stop(self, name: str) -> None:
        self.stopped.add(name)

    def wait(self, _: float) -> list[RunEnd]:
        ends: list[RunEnd] = []
        for number, (name, run) in enumerate(list(self.running.items())):
            for _ in range(1 + (number + len(name)) % 3):  # some are faster
                if (end := self.advance(name, run)) is not None:
                    del self.running[name]
                    ends.append(end)
                    break
        return ends

    def advance(self, name: str, run: Iterator[RunEnd | None]) -> RunEnd | None:
        try:
            self.moments.pass_()
        except Killed:
            if self.victim != "trainer":
                raise
            return RunEnd(name, error="its process ended by signal 9", killed=True)
        return next(run)

    def save_and_leave(self) -> None:
        for name, run in self.running.items():
            self.stop(name)
            next(end for end in run if end is not None)

    def train(self, name: str, config: Config) -> Iterator[RunEnd | None]:
        """As the trainer does: evaluates before it saves, goes on from the last checkpoint, dies of what diverges."""
        run = Path(str(config.run_dir))
        (run / "checkpoints").mkdir(parents=True, exist_ok=True)
        (run / "run.json").write_text("{}")
        last_saved = saved_step(run)
        with RunLog(run) as log:
            log.truncate(last_saved)
            for step in range(last_saved + 1, STEPS + 1):
                if name in self.stopped:
                    self.stopped.discard(name)
                    save(run, step - 1)
                    yield RunEnd(name, exit_code=143)
                    return
                if step == 9 and float(config.optim.lr) > 0.06:
                    log.event("died", step=8, error="NonFiniteError: the loss is not finite")
                    yield RunEnd(name, error="the loss is not finite")
                    return
                log.metrics(step, time=float(step), loss=1.0)
                yield None
                if step % EVAL_EVERY == 0:
                    log.metrics(step, time=float(step), tokens=step, val_loss=loss_of(config, step), bpb=1.0)
                    yield None
                if step % SAVE_EVERY == 0:
                    save(run, step)
                    yield None
            yield RunEnd(name, exit_code=0)


def save(run: Path, step: int) -> None:
    (run / "checkpoints" / f"step-{step:08}").mkdir(parents=True, exist_ok=True)


def saved_step(run: Path) -> int:
    return max((int(path.name[5:]) for path in (run / "checkpoints").glob("step-*")), default=0)


Sweep = Callable[..., dict[str, Any]]


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    """`sweep(home, jobs=2, last=7)`: a search in `home`, or the rest of it, to its result or its 7th moment."""
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    (tmp_path / "text.txt").write_text("a text that is there")
    monkeypatch.chdir(tmp_path)
    _, axes = parse_axes(["optim.lr=0.0001..0.1", "model.mlp=gelu,relu"])

    def run(home: str, *, jobs: int = 2, last: int | None = None, victim: Victim = "all") -> dict[str, Any]:
        moments = Moments(last)
        trainers = Trainers(jobs, moments, victim)

        def replace_file(path: Path, data: bytes) -> None:
            moments.pass_()
            path.write_bytes(data)
            moments.pass_()

        monkeypatch.setattr(search_source, "replace_file", replace_file)
        monkeypatch.setattr(run_sweep_module, "RunPool", lambda *_: trainers)
        request = SweepRequest(tmp_path / "tiny.yaml", [], axes, 1, tmp_path / home)
        try:
            outcome = run_sweep(request, lambda _: None, budget=None, max_runs=12, jobs=jobs)
        except Killed:
            if victim == "sweep":  # the trainers find that nobody asks any more, save and leave
                trainers.save_and_leave()
            raise
        result = outcome.result.to_json()
        return {"settings": result["settings"], "moments": moments.count, "curves": curves(tmp_path / home, result)}

    return run


def curves(home: Path, result: dict[str, Any]) -> dict[str, Any]:
    """What each run logged; of those that were given up, until then."""
    last_steps = {
        f"{setting['number']:03}": int(problem.rpartition(" ")[2])
        for setting in result["settings"]
        for problem in setting["failed"]
        if problem.startswith("given up")
    }
    return {
        run.name: [line for line in read_metrics(run) if line["step"] <= last_steps.get(run.name[:3], STEPS)]
        for run in sorted(home.glob("*-seed=*"))
    }


@pytest.fixture
def expected(sweep: Sweep) -> dict[str, Any]:
    """The search left alone: some of its runs are given up, and one diverges."""
    result = sweep("whole")
    problems = [problem for setting in result["settings"] for problem in setting["failed"]]
    assert [problem.partition(" at")[0] for problem in problems].count("given up") > 1
    assert any("not finite" in problem for problem in problems)
    return result


@pytest.mark.robust
@pytest.mark.parametrize("stride", [41, pytest.param(1, marks=pytest.mark.slow)])
def test_a_search_killed_at_any_moment_ends_as_one_left_alone(
    sweep: Sweep, expected: dict[str, Any], stride: int
) -> None:
    for moment in range(1, expected["moments"] + 1, stride):
        victim: Victim = ("all", "sweep", "trainer")[moment % 3]
        try:
            actual = sweep(f"killed-{moment}", last=moment, victim=victim)  # a trainer alone is made anew
        except Killed:
            actual = sweep(f"killed-{moment}", jobs=1 + moment % 4)
        assert (actual["settings"], actual["curves"]) == (expected["settings"], expected["curves"]), (moment, victim)


def test_a_search_killed_again_and_again_ends_as_one_left_alone(sweep: Sweep, expected: dict[str, Any]) -> None:
    kills = 0
    while True:
        try:
            actual = sweep("killed", last=40 + kills % 7, victim=("all", "sweep")[kills % 2], jobs=1 + kills % 4)
            break
        except Killed:
            kills += 1
    assert kills >= 5
    assert (actual["settings"], actual["curves"]) == (expected["settings"], expected["curves"])


def test_how_many_processes_there_are_changes_no_trial(sweep: Sweep, expected: dict[str, Any]) -> None:
    assert sweep("alone", jobs=1)["settings"] == sweep("many", jobs=4)["settings"] == expected["settings"]


def test_what_was_drawn_stays_drawn_and_is_drawn_again_as_it_was_where_it_is_lost(
    sweep: Sweep, expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_trials = (tmp_path / "whole" / "trials.json").read_bytes()
    (tmp_path / "whole" / "trials.json").unlink()
    assert sweep("whole")["settings"] == expected["settings"]
    assert (tmp_path / "whole" / "trials.json").read_bytes() == old_trials
    monkeypatch.setattr("gpt_cli.search.sweep.optuna_search.propose", lambda *_: pytest.fail("it was drawn again"))
    assert sweep("whole")["settings"] == expected["settings"]
    for damaged_trials in (b"[", b"{}", b'[{"optim.lr": "0.1"}]', b"[1]"):
        (tmp_path / "whole" / "trials.json").write_bytes(damaged_trials)
        with pytest.raises(RequestError, match=r"trials\.json does not have the values of this search"):
            sweep("whole")
