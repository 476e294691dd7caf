"""`gpt sweep`: a config under other values, compared over seeds."""

import math
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpt_cli.cli.options.complete import complete_change
from gpt_cli.cli.output import JsonOption, note, print_json
from gpt_cli.errors import ExitCode, RequestError
from gpt_cli.files.locations import refuse_dash

if TYPE_CHECKING:
    from gpt_cli.search.sweep.sweep import SweepRequest


_SEEDS = 3
_FURTHER_CORNERS = 100  # each is a config, which takes milliseconds to load


def sweep(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="What is to be trained.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="section.key=VALUES",
            help="Values to try, A,B,C; a range to search, LOW..HIGH; or one value, for all runs.",
            show_default=False,
            autocompletion=complete_change,
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Runs of each setting, with other seeds; default: 3.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Start no run that would end later than, say, 30m or 2h.")
    ] = None,
    max_runs: Annotated[int | None, typer.Option(min=1, metavar="N", help="Train at most N runs.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where all is kept; default: sweeps/ and the config's name.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Runs side by side; default: one per core, or per GPU.")
    ] = None,
    json: JsonOption = False,
) -> int:
    """Train a config under other values, with several seeds, and say which differences seeds would not make.

    Lists are tried in all combinations. Ranges are searched by Optuna (pip install 'gpt-cli[sweep]'), rates on a log
    scale, as any other key is after log:LOW..HIGH; the best runs are trained again with other seeds.

    Stopped or killed at any moment, the same command goes on with the runs that there are, and ends with the same
    result. DIR then has report.html, effects.png and best.yaml, the config that won.

    With --seeds and no key it measures how far seeds alone move the loss.

    Example: gpt sweep configs/quickstart.yaml optim.lr=0.01,0.02 --seeds 2
    """
    from gpt_cli.cli.options.config_argument import file_first
    from gpt_cli.config.section import parse_duration
    from gpt_cli.report.sweep_page import write_sweep
    from gpt_cli.report.sweep_text import render_sweep
    from gpt_cli.search.sweep.run_sweep import run_sweep

    seconds = None if budget is None else parse_duration(budget)
    if budget is not None and seconds is None:
        raise RequestError(f"--budget must be a time such as 90s, 30m or 1h30m, not {budget!r}", hint="--budget 30m")
    config_file, arguments = file_first("sweep", str(config), arguments or [])
    request = _request(Path(config_file), arguments, seeds, out)
    finished = run_sweep(request, note, budget=seconds, max_runs=max_runs, jobs=jobs)
    files = write_sweep(finished.result, request.home) + ([finished.best] if finished.best is not None else [])
    if json:
        print_json({**finished.result.to_json(), "files": [str(file) for file in files]})
    else:
        print(render_sweep(finished.result))
    if finished.exit_code is not None:
        note("stopped; the same command goes on from here")
        return finished.exit_code
    for file in files:
        note(f"wrote {file}")
    if finished.result.left is not None:
        left = finished.result.runs - finished.result.ended
        note(f"{left} {'run is' if left == 1 else 'runs are'} left, as {finished.result.left}")
    return ExitCode.DONE if finished.best is not None else ExitCode.FAILED


def _request(config: Path, arguments: list[str], seeds: int | None, out: Path | None) -> "SweepRequest":
    from gpt_cli.files.locations import to_slug
    from gpt_cli.search.sweep.axes import parse_axes
    from gpt_cli.search.sweep.sweep import SweepRequest

    fixed, axes = parse_axes(arguments)
    if seeds is None:
        seeds = _SEEDS if axes else 1  # without a key it is refused: to train a config some times is to be asked for
    name = config.parent.name if config.name == "config.yaml" else config.stem
    request = SweepRequest(config, fixed, axes, seeds, out or Path("sweeps", to_slug(name)))
    refuse_dash(request.home)
    _check_effects(request)
    return request


def _check_effects(request: "SweepRequest") -> None:
    """Raise RequestError for an axis that has no effect in any run of the sweep; note other keys without effect."""
    from gpt_cli.cli.options.ineffective_keys import missing_condition, note_without_effect
    from gpt_cli.search.sweep.axes import corners

    for axis in request.axes:
        if axis.key.startswith(("sample.", "log.", "checkpoint.")) or axis.key == "runtime.watchdog_minutes":
            raise RequestError(
                f"{axis.key} has no effect here: no loss depends on it",
                hint="gpt sample compares texts" if axis.key.startswith("sample.") else "leave it out",
            )
        needs = (missing_condition(request.config_of(point), axis.key) for point in corners(request.axes))
        first = list(takewhile(lambda need: need is not None, needs))  # it stops at a point where the key has an effect
        if len(first) == math.prod(len(axis.ends()) for axis in request.axes):
            raise RequestError(f"{axis.key} has no effect here: it needs {first[0]}")
        if needed := next(filter(None, [*first[:1], *islice(needs, _FURTHER_CORNERS)]), None):
            note(f"{axis.key} has no effect without {needed}: settings that differ in {axis.key} alone are then equal")
    note_without_effect(request.config_of(next(iter(corners(request.axes)))), request.fixed)
