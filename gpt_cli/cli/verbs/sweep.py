"""`gpt sweep`: a config under other values, compared over seeds."""

import math
from itertools import islice, takewhile
from pathlib import Path
from typing import Annotated

import typer

from gpt_cli.cli.options.config_argument import (
    ConfigArgument,
    JobsOption,
    changes_argument,
    file_first,
    note_without_effect,
    seconds_of,
)
from gpt_cli.cli.output import JsonOption, note, print_json
from gpt_cli.config.conditions import missing_condition
from gpt_cli.errors import ExitCode, RequestError
from gpt_cli.files.locations import refuse_dash, to_slug
from gpt_cli.report.sweep_text import render_sweep
from gpt_cli.search.sweep.axes import corners, parse_axes
from gpt_cli.search.sweep.run_sweep import run_sweep
from gpt_cli.search.sweep.sweep import SweepRequest
from gpt_cli.terminal.words import plural

_SEEDS = 3
_CORNERS = 100  # that are looked at for a note: each is a config, which takes milliseconds to load
_WITHOUT_LOSS = ("sample.", "log.", "checkpoint.", "runtime.watchdog_minutes")


def sweep(
    config: ConfigArgument,
    arguments: Annotated[
        list[str] | None,
        changes_argument(
            "section.key=VALUES", "Values to try, A,B,C; a range to search, LOW..HIGH; or one value, for all runs."
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, max=1000, help="Seeds for each setting; default: 3.")] = None,
    budget: Annotated[str | None, typer.Option(metavar="TIME", help="Start no run that would end later.")] = None,
    max_runs: Annotated[int | None, typer.Option(min=1, metavar="N", help="Train at most N runs.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where to keep it; default: sweeps/NAME.")] = None,
    jobs: JobsOption = None,
    json: JsonOption = False,
) -> int:
    """Train a config under other values, with several seeds, and report which differences are beyond seed noise.

    Lists are tried in all combinations. Ranges are searched by Optuna (pip install 'gpt-cli[sweep]'), rates on a log
    scale, as is any other key after log:LOW..HIGH; the best runs are trained again with other seeds.

    After an interruption at any moment, the same command resumes with the runs that there are, and ends with the same
    result. DIR then has report.html, effects.png and best.yaml, the config that won.

    With --seeds and no key, measure how far seeds alone move the loss.

    Example: gpt sweep configs/quickstart.yaml optim.lr=0.01,0.02 --seeds 2
    """
    seconds = None if budget is None else seconds_of("--budget", budget)
    file, arguments = file_first("sweep", str(config), arguments or [])
    fixed, axes = parse_axes(arguments)
    if seeds is None:
        seeds = _SEEDS if axes else 1  # without a key it is refused: to train a config some times is to be asked for
    name = Path(file).parent.name if Path(file).name == "config.yaml" else Path(file).stem
    request = SweepRequest(Path(file), fixed, axes, seeds, out or Path("sweeps", to_slug(name)))
    refuse_dash(request.home)
    _check_effects(request)
    finished = run_sweep(request, note, budget=seconds, max_runs=max_runs, jobs=jobs)

    from gpt_cli.report.sweep_page import write_sweep

    files = write_sweep(finished.result, request.home) + ([finished.best] if finished.best is not None else [])
    if json:
        print_json({**finished.result.to_json(), "files": [str(file) for file in files]})
    else:
        print(render_sweep(finished.result))
    if finished.exit_code is not None:
        note("stopped; the same command resumes from here")
        return finished.exit_code
    for written in files:
        note(f"wrote {written}")
    if finished.result.left is not None:
        note(f"{plural(finished.result.runs - finished.result.ended, 'run')} left, as {finished.result.left}")
    return ExitCode.DONE if finished.best is not None else ExitCode.FAILED


def _check_effects(request: SweepRequest) -> None:
    """Raise RequestError for an axis that has no effect in any run of the sweep; note other keys without effect."""
    for axis in request.axes:
        if axis.key.startswith(_WITHOUT_LOSS):
            raise RequestError(f"{axis.key} has no effect here: no loss depends on it")
        needs = (missing_condition(request.config_of(point), axis.key) for point in corners(request.axes))
        first = list(takewhile(bool, needs))  # it stops at a point where the key has an effect
        if len(first) == math.prod(len(axis.ends()) for axis in request.axes):
            raise RequestError(f"{axis.key} has no effect here: it needs {first[0]}")
        if needed := next(filter(None, [*first[:1], *islice(needs, _CORNERS)]), None):
            note(f"{axis.key} has no effect without {needed}: settings that differ in {axis.key} alone are then equal")
    note_without_effect(request.config_of(next(iter(corners(request.axes)))), request.fixed)
