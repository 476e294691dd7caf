"""`gpt scale`, from the request to its result.

DIR/scale.json                    written first: the config, the ladder, the seconds per token
DIR/NNN-width=32,steps=100-.../   run directories like any other
"""

import bisect
import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpt_cli.config import Config, dump_config, parse_config
from gpt_cli.corpus.hub import pin_config
from gpt_cli.corpus.prepare import prepare_corpus
from gpt_cli.errors import Notify, RequestError
from gpt_cli.files import list_directory, read_file, replace_file
from gpt_cli.literals import INT32_MAX
from gpt_cli.run.find_run import refuse_nested
from gpt_cli.runtime.device import choose_device, setup_runtime
from gpt_cli.runtime.processor import default_threads
from gpt_cli.runtime.signals import stop_requests
from gpt_cli.search.scaling.ladder import Rung, effective_parameters, measure_scales, plan_ladder, shape, shape_values
from gpt_cli.search.scaling.loss_law import Array, LossLaw, best_split, bootstrap, fit_law, interval, residual_noise
from gpt_cli.search.sweep.executor import ListSource, RunLimits, RunTask, execute, open_home
from gpt_cli.search.sweep.outcomes import Outcome
from gpt_cli.search.sweep.run_pool import RunPool
from gpt_cli.search.sweep.sweep import config_changes
from gpt_cli.search.time_budget import time_candidate, with_values
from gpt_cli.terminal.words import format_duration, plural

PLAN, ADVISED = "scale.json", "advised.yaml"
_LIMIT = 1 << 20
DRAWS = 200  # of the bootstrap
_FEWEST = 8  # runs that a law of five constants is fitted to
_SAVED_EVERY = 300.0  # seconds of the advised training
_BUDGET_FACTORS = (1, 10, 100)  # advice is for the budget times each of these


@dataclass(frozen=True)
class Advice:
    """The run with the lowest expected loss in this many seconds. Intervals are of 90 %."""

    seconds: float
    parameters: float
    parameters_interval: tuple[float, float]
    tokens: float
    epochs: float
    loss: float
    loss_interval: tuple[float, float]


@dataclass(frozen=True)
class ScalePoint:
    """A run of the ladder: N parameters, D tokens, its loss and the loss by the law."""

    name: str
    n: float
    d: float
    loss: float
    fitted: float
    held_out: bool


@dataclass(frozen=True)
class ScaleResult:
    """The law, its runs, and the advice."""

    home: str
    law: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    noise: float
    points: list[ScalePoint]
    held_out_error: float | None
    """Predicted minus measured loss, in nats per token; None where that run has no loss."""
    held_out_interval: tuple[float, float] | None
    """The interval of the prediction."""
    advice: list[Advice]
    here: bool
    """True if the times were measured on this machine."""
    train_tokens: int
    failed: list[str]


@dataclass(frozen=True)
class ScaleRequest:
    """A ladder for `config` in `seconds`, in the directory `home`; `device_flops`: the device that advice is for."""

    config: Config
    seconds: float
    home: Path
    device_flops: float | None = None


def run_scale(request: ScaleRequest, note: Notify, jobs: int | None) -> tuple[ScaleResult | None, int | None]:
    """Train the ladder, or what is left of it, and fit the law; returns (result, 128 + the signal that stopped it)."""
    base = request.config
    if base.task.kind != "language":
        raise RequestError("a scaling law is of the loss per token, and task.kind=classes has one per text")
    names = {name for name in list_directory(request.home) if not name.startswith(".tmp-")}
    if PLAN not in names and not names <= {"lock"}:
        raise RequestError(f"{request.home} holds other files and no ladder", hint="choose another: --out DIR")
    refuse_nested(request.home)
    if PLAN in names:
        plan, base = _read_plan(request, note)
    else:
        base = pin_config(base, note)
    corpus = prepare_corpus(base.data, base.tokenizer, note=note)
    vocab_size, unique = corpus.tokenizer.vocab_size, len(corpus.train)
    jobs = jobs or (default_threads() if setup_runtime(base.runtime).device.type == "cpu" else 1)
    if PLAN in names:
        jobs = min(jobs, max(1, default_threads() // (base.runtime.threads or default_threads())))
    else:
        threads = base.runtime.threads or (None if jobs == 1 else max(1, default_threads() // jobs))
        base = with_values(base, {"runtime.threads": threads}) if threads is not None else base
        plan = _plan(request, base, jobs, lambda config: _seconds_per_token(config, corpus, note))
    with open_home(request.home), stop_requests() as stop:
        if PLAN not in names:
            replace_file(request.home / PLAN, (json.dumps(plan, indent=1) + "\n").encode())
        rungs = [Rung(**rung) for rung in plan["ladder"]]
        tasks = [_task(number, rung, base, request.home) for number, rung in enumerate(rungs)]
        note(
            f"scale: {len(tasks)} runs, {jobs} side by side, about {format_duration(request.seconds)}\n"
            f"  in {request.home}"
        )
        with RunPool(jobs) as pool:
            execution = execute(ListSource(tasks), pool, RunLimits(), stop, note)
    rows = [
        (task, rung, execution.outcomes[task.name])
        for task, rung in zip(tasks, rungs, strict=True)
        if task.name in execution.outcomes
    ]
    code = None if stop.received is None else 128 + stop.received
    if code is not None:
        return None, code
    per_token = {float(scale): seconds for scale, seconds in plan["per_token"].items()}
    result = analyse(request, rows, vocab_size, unique, per_token, base)
    threads = request.config.runtime.threads  # not the share of a run of the ladder
    advised = with_values(base, {"run_dir": f"runs/{request.home.name}-advised", "runtime.threads": threads})
    replace_file(request.home / ADVISED, _advised_config(advised, result.advice[0], vocab_size).encode())
    return result, None


def analyse(
    request: ScaleRequest,
    rows: Sequence[tuple[RunTask, Rung, Outcome]],
    vocab_size: int,
    unique: int,
    per_token: Mapping[float, float],
    base: Config,
) -> ScaleResult:
    """Fit the law to the finished runs: its error on the one held out, and its advice."""
    finished = [(task, rung, outcome) for task, rung, outcome in rows if outcome.val_loss is not None]
    n_of = {task.name: effective_parameters(task.config, vocab_size) for task, _, _ in finished}
    fitted = [
        (n_of[task.name], outcome.tokens, outcome.val_loss) for task, rung, outcome in finished if not rung.held_out
    ]
    if len(fitted) < _FEWEST:
        raise RequestError(
            f"{len(fitted)} runs of the ladder have a loss, too few for a law", hint="see their events.jsonl"
        )
    n, d, loss = (np.array(column, dtype=np.float64) for column in zip(*fitted, strict=True))
    law = fit_law(n, d, loss)
    draws = bootstrap(n, d, loss, law, DRAWS, seed=base.seed)
    noise = residual_noise(n, d, loss, law)
    points = [
        ScalePoint(
            task.name, n_of[task.name], float(outcome.tokens), float(outcome.val_loss or 0.0),
            float(law.loss(n_of[task.name], float(outcome.tokens))), rung.held_out,
        )
        for task, rung, outcome in finished
    ]  # fmt: skip
    held_out = next((point for point in points if point.held_out), None)
    times = _time_of_token(base, vocab_size, per_token, request.device_flops)
    advice = [_advise(law, draws, len(fitted), times, request.seconds * factor, unique) for factor in _BUDGET_FACTORS]
    held_out_error = held_out_interval = None
    if held_out is not None:
        held_out_error = held_out.fitted - held_out.loss
        predictions = [float(draw.loss(held_out.n, held_out.d)) for draw in draws]
        held_out_interval = interval(held_out.fitted, predictions, len(fitted))
    return ScaleResult(
        str(request.home), asdict(law),
        {
            name: interval(getattr(law, name), [getattr(draw, name) for draw in draws], len(fitted))
            for name in ("alpha", "beta", "e")
        },
        noise, points, held_out_error, held_out_interval, advice,
        request.device_flops is None, unique,
        [f"{task.name}: {outcome.error}" for task, _, outcome in rows if outcome.state == "failed"],
    )  # fmt: skip


def _advise(
    law: LossLaw, draws: Sequence[LossLaw], runs: int, times: tuple[float, float], seconds: float, unique: int
) -> Advice:
    n, d, loss = best_split(law, seconds, *times)
    splits = [best_split(draw, seconds, *times) for draw in draws]
    low, high = interval(math.log(n), [math.log(split[0]) for split in splits], runs, -math.inf)
    return Advice(
        seconds, n, (math.exp(low), math.exp(high)), d, d / unique, loss,
        interval(loss, [split[2] for split in splits], runs),
    )  # fmt: skip


def _time_of_token(
    base: Config, vocab_size: int, per_token: Mapping[float, float], device_flops: float | None
) -> tuple[float, float]:
    """(seconds, seconds per parameter) of a token: a line through the measurements, or from `device_flops`."""
    if device_flops is not None:
        return 0.0, 6.0 / device_flops
    sizes = [
        effective_parameters(with_values(base, shape_values(*shape(base, scale))), vocab_size) for scale in per_token
    ]
    n: Array = np.array(sizes)
    seconds: Array = np.array(list(per_token.values()))
    slope, fixed = np.polyfit(n, seconds, 1, w=1.0 / seconds)
    if fixed < 0 or slope <= 0:
        return 0.0, float((seconds / n).mean())
    return float(fixed), float(slope)


def _plan(request: ScaleRequest, base: Config, jobs: int, seconds_of: Any) -> dict[str, Any]:
    per_token = of_advised = measure_scales(seconds_of, base)
    threads, on_cpu = request.config.runtime.threads, choose_device(base.runtime.device).type == "cpu"
    if on_cpu and threads != base.runtime.threads:  # what is advised is trained by itself, with all threads
        of_advised = measure_scales(seconds_of, with_values(base, {"runtime.threads": threads}))
    ladder = plan_ladder(base, request.seconds, jobs, per_token)
    return {
        "config": dump_config(base.model_copy(update={"run_dir": None})),
        "seconds": request.seconds, "per_token": of_advised, "ladder": [asdict(rung) for rung in ladder],
    }  # fmt: skip


def _read_plan(request: ScaleRequest, note: Notify) -> tuple[dict[str, Any], Config]:
    """The plan there, and the config with its commits of data sets, and its threads, which the jobs decided."""
    base = request.config
    try:
        plan: dict[str, Any] = json.loads(read_file(request.home / PLAN, _LIMIT))
        planned = parse_config(plan["config"], "the plan", of_run=True)
        base = pin_config(base, note, planned)
        if base.runtime.threads is None:
            base = with_values(base, {"runtime.threads": planned.runtime.threads})
        changes = config_changes(plan["config"], dump_config(base.model_copy(update={"run_dir": None})))
        if plan["seconds"] != request.seconds:
            changes.append(f"\n  --budget: {plan['seconds']:.0f} s there, {request.seconds:.0f} s here")
    except (ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{request.home / PLAN} is not the plan of a ladder", hint="--out DIR") from error
    if changes:
        hint = "choose another directory: --out DIR"
        raise RequestError(f"{request.home} is a ladder of another request{''.join(changes)}", hint=hint)
    return plan, base


def _seconds_per_token(config: Config, corpus: Any, note: Notify) -> float:
    candidate = time_candidate(config, corpus, setup_runtime(config.runtime), note)
    return candidate.seconds_per_step / candidate.tokens_per_step


def _task(number: int, rung: Rung, base: Config, home: Path) -> RunTask:
    name = f"{number:03}-width={rung.n_embd},steps={rung.steps}-seed={base.seed}"
    config = rung.config(base).model_copy(update={"run_dir": str(home / name)})
    held_out = ", held out" if rung.held_out else ""
    layers = plural(rung.n_layer, "layer")
    return RunTask(name, f"{layers} of width {rung.n_embd}, {rung.steps:,} steps{held_out}", config)


def _advised_config(base: Config, advice: Advice, vocab_size: int) -> str:
    """The config, as YAML, of the shape nearest to the advice.

    It is evaluated at its end alone, like the ladder's runs, and saved eight times like them, or every five minutes.
    """

    @functools.cache
    def scaled(eighths: int) -> tuple[float, Config]:
        config = with_values(base, shape_values(*shape(base, 0.125 * eighths)))
        return effective_parameters(config, vocab_size), config

    above = bisect.bisect_left(range(1, 127), advice.parameters, key=lambda eighths: scaled(eighths)[0]) + 1
    neighbours = [scaled(max(1, above - 1)), scaled(above)]
    _, config = min(neighbours, key=lambda pair: abs(math.log(pair[0] / advice.parameters)))
    tokens_per_step = config.train.batch_size * config.model.context_length
    steps = min(INT32_MAX, max(1, round(advice.tokens / tokens_per_step)))
    values = {
        "train.steps": steps,
        "schedule.warmup_steps": min(config.schedule.warmup_steps, steps // 10),
        "eval.every": None,
        "checkpoint.every": max(1, steps // max(8, int(advice.seconds / _SAVED_EVERY))),
        "sample.every": None,
    }
    return dump_config(parse_config(dump_config(with_values(config, values)), "advice"), full=False)
