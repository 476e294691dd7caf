"""`gpt info`: what a config or a run amounts to."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gpt_cli.cli.options.complete import complete_change
from gpt_cli.cli.options.config_argument import file_first, load_effective
from gpt_cli.cli.options.run_options import RunOption, one_run
from gpt_cli.cli.output import JsonOption, note, print_json
from gpt_cli.errors import UsageError
from gpt_cli.files.kinds import kind_of
from gpt_cli.run.find_run import find_run


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
    """Report how large a model is, what training it costs, and how far a run has come.

    Example: gpt info configs/quickstart.yaml model.n_layer=8
    """
    changes = overrides or []
    if path is not None:
        file, changes = file_first("info", str(path), changes)
        path = Path(file)
    path, config, share = one_run(path, run_option), None, None
    if path is not None and (kind_of(path) == "config" or (kind_of(path) == "text" and path.is_file())):
        config = load_effective(path, changes)
    elif devices is not None:
        raise UsageError("--devices is for a config file: a run has been trained already")
    elif changes:
        raise UsageError(f"{changes[0]} is for a config file: a run is shown as it is")
    else:
        path = find_run(path)

    from gpt_cli.report.info_view import render_info, render_share
    from gpt_cli.run.model_info import info_of_config, info_of_run
    from gpt_cli.training.device_share import device_share

    figures = info_of_run(path, note) if config is None else info_of_config(path, changes, note)
    if config is not None and config.train.budget is not None:
        note("train.budget chooses a model by measuring, when training starts: these figures are of what is set")
    if config is not None and devices is not None:
        share = device_share(config, figures.vocab_size, devices)
    if json:
        print_json(asdict(figures) | ({} if share is None else {"per_device": asdict(share)}))
    else:
        print(render_info(figures) if share is None else f"{render_info(figures)}\n\n{render_share(share)}")
