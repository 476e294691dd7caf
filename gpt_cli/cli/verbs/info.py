"""`gpt info`: what a config or a run amounts to."""

from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from gpt_cli.cli.options.complete import complete_change
from gpt_cli.cli.options.run_options import RunOption, one_run
from gpt_cli.cli.output import JsonOption, note, print_json
from gpt_cli.errors import RequestError
from gpt_cli.files.kinds import CONFIG, kind_of


def info(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="RUN|CONFIG", help="A run, checkpoint or config file. [default: the newest run]"),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="section.key=value", help="Changes to the config file.", autocompletion=complete_change),
    ] = None,
    run_option: RunOption = None,
    devices: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Say what falls to each of N devices, too.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Say how large a model is, what training it costs, and how far a run has come.

    Example: gpt info configs/quickstart.yaml model.n_layer=8
    """
    from gpt_cli.cli.options.config_argument import file_first, load_effective
    from gpt_cli.report.info_view import render_info, render_share
    from gpt_cli.run.find_run import find_run
    from gpt_cli.run.model_info import info_of_config, info_of_run

    share = None
    if path is not None:
        file, overrides = file_first("info", str(path), overrides or [])
        path = Path(file)
    path = one_run(path, run_option)
    kind = None if path is None else kind_of(path)
    if path is not None and (kind == "config" or (kind == "text" and path.is_file())):
        config = load_effective(path, overrides or [])
        figures = info_of_config(path, overrides or [], note)
        if config.train.budget is not None:
            note("train.budget chooses a model by measuring, when training starts: these figures are of what is set")
        if devices is not None:
            from gpt_cli.training.device_share import device_share

            share = device_share(config, figures.vocab_size, devices)
    elif devices is not None:
        raise RequestError(
            "--devices is for a config file: a run has been trained already",
            hint=f"gpt info {_config_of(path)} --devices {devices}",
        )
    elif overrides and "=" not in overrides[0]:
        raise RequestError(
            f"one run or config at a time: {overrides[0]} is a second one", hint=f"gpt info {quote(overrides[0])}"
        )
    elif overrides:
        raise RequestError(
            f"a run has the config it has: {overrides[0]} cannot change it",
            hint=f"change its config: gpt info {_config_of(path)} {quote(overrides[0])}",
        )
    else:
        figures = info_of_run(find_run(path), note)
    if json:
        print_json(asdict(figures) | ({} if share is None else {"per_device": asdict(share)}))
    else:
        print(render_info(figures) if share is None else f"{render_info(figures)}\n\n{render_share(share)}")


def _config_of(run: Path | None) -> str:
    """The config of a run as a shell reads it."""
    from gpt_cli.run.find_run import find_run

    return quote(str(find_run(run) / CONFIG))
