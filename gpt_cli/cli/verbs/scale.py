"""`gpt scale`: a law for the loss, fitted to a ladder of small runs."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gpt_cli.cli.options.config_argument import JobsOption, changes_argument, seconds_of
from gpt_cli.cli.options.train_request import resolve
from gpt_cli.cli.output import JsonOption, note, print_json
from gpt_cli.errors import ExitCode, RequestError
from gpt_cli.files.kinds import CONFIG
from gpt_cli.files.locations import refuse_dash


def scale(
    arguments: Annotated[
        list[str],
        changes_argument("TEXT|CONFIG|RUN|section.key=value", "What to train; config keys to override."),
    ],
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time for all runs together, such as 2h.")] = "1h",
    device_flops: Annotated[
        float | None, typer.Option(min=1e9, max=1e19, help="Advise for a device of X FLOP/s, such as 4e14.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where to keep it; default: scales/NAME.")] = None,
    jobs: JobsOption = None,
    json: JsonOption = False,
) -> int:
    """Fit a scaling law to small runs: which size, how many tokens, and what loss to expect in which time.

    Train four widths, up to three quarters of the config's, on four lengths each, and test the law on a larger, longer
    run that it has not seen. After an interruption at any moment, the same command resumes.

    Example: gpt scale configs/quickstart.yaml --budget 30m
    """
    seconds = seconds_of("--budget", budget)
    config, file, overrides = resolve(arguments, stdin="refuse", into_run=False)
    if config.train.budget is not None or config.optim.lr == "auto":
        raise RequestError("a ladder has one rate and its own steps: leave out train.budget and optim.lr=auto")
    if any(override.startswith("train.steps=") for override in overrides):
        raise RequestError("train.steps has no effect here: a ladder chooses the steps of its runs")
    assert config.run_dir is not None
    if file is None and Path(config.run_dir, CONFIG).is_file():
        note(f"{config.run_dir} exists, and its config is scaled; run_dir=runs/NAME fits one to this machine")
    home = out or Path("scales", Path(config.run_dir).name)
    refuse_dash(home)

    from gpt_cli.report.scale_text import draw_scale, render_scale
    from gpt_cli.search.scaling.run_scale import ADVISED, ScaleRequest, run_scale

    result, code = run_scale(ScaleRequest(config, seconds, home, device_flops), note, jobs)
    if result is None:
        note("stopped; the same command resumes from here")
        return code or ExitCode.FAILED
    draw_scale(result, home / "law.png")
    if json:
        print_json(asdict(result))
    else:
        print(render_scale(result))
    for name in ("law.png", ADVISED):
        note(f"wrote {home / name}")
    return ExitCode.DONE
