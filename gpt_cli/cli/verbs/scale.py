"""`gpt scale`: a law for the loss, fitted to a ladder of small runs."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gpt_cli.cli.options.complete import complete_change
from gpt_cli.cli.output import JsonOption, note, print_json
from gpt_cli.errors import ExitCode, RequestError
from gpt_cli.files.locations import refuse_dash

_SLOWEST, _FASTEST = 1e9, 1e19  # operations a second: a processor of the nineties, all computers of a country


def scale(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT|CONFIG|RUN|section.key=value",
            help="What is to be trained, and changes to it.",
            autocompletion=complete_change,
        ),
    ],
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time for all runs together, such as 2h.")] = "1h",
    device_flops: Annotated[
        float | None,
        typer.Option(min=1.0, help="Advise for a device of X operations a second, such as 4e14."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where all is kept; default: scales/ and the run's name.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Runs side by side; default: one per core, or one.")
    ] = None,
    json: JsonOption = False,
) -> int:
    """Fit a scaling law to small runs: which size, how many tokens, and what loss to expect in which time.

    Four widths up to three quarters of the config's are trained on four lengths each, and the law is tried on a larger,
    longer run that it has not seen. Killed at any moment, the same command goes on with what is there.

    Example: gpt scale configs/quickstart.yaml --budget 30m
    """
    from gpt_cli.cli.options.train_request import Request, is_override
    from gpt_cli.config.section import parse_duration
    from gpt_cli.report.scale_text import draw_scale, render_scale
    from gpt_cli.search.scaling.run_scale import ADVISED, ScaleRequest, run_scale

    if device_flops is not None and not _SLOWEST <= device_flops <= _FASTEST:
        raise RequestError(
            f"--device-flops is {device_flops:g} operations a second, which no device does",
            hint="of 400 TFLOPS it is --device-flops 4e14",
        )
    if (seconds := parse_duration(budget)) is None:
        raise RequestError(f"--budget must be a time such as 30m or 2h, not {budget!r}", hint="--budget 30m")
    if all(is_override(argument) and not argument.startswith("data.source=") for argument in arguments):
        raise RequestError("there is nothing to scale: give a text, a config or a run", hint="gpt scale book.txt")
    request = Request(arguments, None, stdin="refuse", into_run=False)
    config = request.config
    if config.train.budget is not None or config.optim.lr == "auto":
        raise RequestError(
            "a ladder chooses sizes and steps, and has one rate: leave out train.budget and optim.lr=auto"
        )
    if any(override.startswith("train.steps=") for override in request.overrides):
        raise RequestError(
            "train.steps has no effect here: a ladder chooses the steps of its runs", hint="leave it out"
        )
    assert config.run_dir is not None
    if request.file is None and (Path(config.run_dir) / "config.yaml").is_file():
        note(f"{config.run_dir} exists, and its config is scaled; run_dir=runs/NAME fits one to this machine")
    home = out or Path("scales", Path(config.run_dir).name)
    refuse_dash(home)
    result, code = run_scale(ScaleRequest(config, float(seconds), home, device_flops), note, jobs)
    if result is None:
        note("stopped; the same command goes on from here")
        return code or ExitCode.FAILED
    draw_scale(result, home / "law.png")
    if json:
        print_json(asdict(result))
    else:
        print(render_scale(result))
    for name in ("law.png", ADVISED):
        note(f"wrote {home / name}")
    return ExitCode.DONE
