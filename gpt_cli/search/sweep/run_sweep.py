"""`gpt sweep`, from the request to its result."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpt_cli.config import Config
from gpt_cli.corpus.prepare import check_paths
from gpt_cli.errors import Notify, RequestError
from gpt_cli.runtime.processor import default_threads
from gpt_cli.runtime.signals import stop_requests
from gpt_cli.search.sweep.axes import grid
from gpt_cli.search.sweep.executor import RunLimits, execute, open_home
from gpt_cli.search.sweep.run_pool import RunPool
from gpt_cli.search.sweep.search_source import SearchSource
from gpt_cli.search.sweep.sweep import (
    PLAN,
    Runs,
    SweepPlan,
    SweepRequest,
    check_home,
    grid_source,
    make_plan,
    open_plan,
)
from gpt_cli.search.sweep.sweep_result import SweepResult, collect, write_best
from gpt_cli.terminal.words import plural
from gpt_cli.tokenizer import Tokenizer

_FEWEST = 2  # runs that can be compared
_START_SECONDS = 3.0  # of a process, before its first step: most of it imports torch


@dataclass(frozen=True)
class Finished:
    """A sweep that has ended, or was interrupted."""

    result: SweepResult
    best: Path | None
    exit_code: int | None
    """128 + the signal that stopped it."""


def run_sweep(
    request: SweepRequest, note: Notify, *, budget: float | None, max_runs: int | None, jobs: int | None
) -> Finished:
    """Train the runs of `request`, or those that are left, and compare them.

    Raises RequestError, before anything is trained, for a config that is wrong, a text that is not there, and limits
    too low.
    """
    base = request.base()
    check_home(request.home)
    request, base = request.pinned(base, note)
    is_new = not (request.home / PLAN).exists()
    if is_new:
        check_paths([*base.data.sources, *base.data.val_sources])
        _check_initial(request, base)
    _require_optuna(request)
    devices = _devices(base)
    jobs = jobs or (len(devices) or 1 if _on_gpu(base) else default_threads())
    if not request.is_search:
        jobs = min(jobs, len(list(grid(request.axes))) * request.seeds)
    runs_in_budget = None
    if budget is not None and is_new:
        runs_in_budget = _runs_in(budget, jobs, base, note)
    limit = min([limit for limit in (max_runs, runs_in_budget) if limit is not None], default=None)
    plan = make_plan(request, base, jobs, limit, note)
    with open_home(request.home), stop_requests() as stop:
        plan = open_plan(request.home, plan, is_limited=max_runs is not None and budget is None)
        runs = Runs(request, plan, base)
        source = SearchSource(runs) if request.is_search else grid_source(runs)
        note(_opening(request, plan, source.total_runs, jobs))
        with RunPool(jobs, devices if len(devices) > 1 else ()) as pool:
            limits = RunLimits(budget, None if request.is_search else max_runs)
            execution = execute(source, pool, limits, stop, note)
        search = source if isinstance(source, SearchSource) else None
        result = collect(runs, execution.outcomes, search, source.total_runs, execution.left)
        return Finished(result, write_best(result, runs), stop.received and 128 + stop.received)


def _opening(request: SweepRequest, plan: SweepPlan, runs: int, jobs: int) -> str:
    if plan.trials is not None:
        kind = f"a search of {plural(plan.trials, 'run')}"
    elif request.axes:
        kind = f"{runs // request.seeds} settings"
    else:
        kind = "no key is varied, so it says how far seeds alone move the loss"
    seeds = plural(request.seeds, "seed")
    concurrency = "one after the other" if jobs == 1 else f"{jobs} side by side"
    each = "" if plan.threads is None else f", {plural(plan.threads, 'thread')} each"
    return f"sweep: {kind}, {seeds}: {plural(runs, 'run')}, {concurrency}{each}\n  in {request.home}"


def _check_initial(request: SweepRequest, base: Config) -> None:
    """Raise RequestError where a run could not begin with the weights that its `train.init_from` names."""
    configs = [base] if request.is_search else [request.config_of(point) for point in grid(request.axes)]
    distinct = {
        repr((config.train.init_from, config.model, config.task, config.tokenizer, config.data)): config
        for config in configs
        if config.train.init_from is not None
    }
    if not distinct:
        return
    from gpt_cli.corpus.prepare import learn_tokenizer
    from gpt_cli.training.init_from import initial_checkpoint

    tokenizers: dict[str, Tokenizer] = {}
    for config in distinct.values():
        text = repr((config.tokenizer, config.data))
        if text not in tokenizers:
            tokenizers[text] = learn_tokenizer(config.data, config.tokenizer, note=_silent)
        initial_checkpoint(config.model_copy(update={"run_dir": None}), tokenizers[text], _silent)


def _silent(_: str) -> None:
    """Print nothing: each run says it."""


def _require_optuna(request: SweepRequest) -> None:
    if not request.is_search:
        return
    try:
        import optuna  # noqa: F401 - only a search needs it
    except ImportError:
        ranges = ", ".join(str(axis) for axis in request.axes)
        raise RequestError(
            f"{ranges}: ranges are searched by Optuna, which is not installed",
            hint="pip install 'gpt-cli[sweep]', or list values: key=A,B,C",
        ) from None


def _on_gpu(base: Config) -> bool:
    if base.runtime.device == "cpu":
        return False
    from gpt_cli.runtime.device import choose_device

    return choose_device(base.runtime.device).type != "cpu"


def _devices(base: Config) -> Sequence[str]:
    """The numbers of the GPUs."""
    if base.runtime.device == "cpu":
        return ()
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def _runs_in(budget: float, jobs: int, base: Config, note: Notify) -> int:
    """The number of runs of `base` in the budget, from the time of a few steps. Raises RequestError for too few."""
    seconds = _seconds_of_run(base, note)
    runs = int(budget * jobs / seconds)
    if runs < _FEWEST:
        raise RequestError(
            f"the budget of {budget:.0f} s is too small: a run takes about {seconds:.0f} s here, {jobs} side by side,"
            f" and comparing takes {_FEWEST}",
            hint=f"--budget {math.ceil(2 * _FEWEST * seconds / jobs)}s or more, or fewer steps: train.steps=N",
        )
    note(f"a run takes about {seconds:.0f} s here: the budget has time for about {runs}")
    return runs


def _seconds_of_run(base: Config, note: Notify) -> float:
    from gpt_cli.corpus.prepare import prepare_corpus
    from gpt_cli.runtime.device import setup_runtime
    from gpt_cli.search.time_budget import time_candidate

    corpus = prepare_corpus(base.data, base.tokenizer, note=note)
    step = time_candidate(base, corpus, setup_runtime(base.runtime), lambda _: None)
    passes = 1 + (base.train.steps // base.eval.every if base.eval.every else 0)
    steps = base.train.steps + passes * len(corpus.val) / step.tokens_per_step / 3.0
    return _START_SECONDS + step.seconds_per_step * steps
