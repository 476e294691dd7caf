"""`gpt tune`: a learning rate for a config, found by a short run."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gpt_cli.cli.options.config_argument import ConfigArgument, OverridesArgument, file_first, load_effective
from gpt_cli.cli.output import JsonOption, PictureOption, note, print_json


def tune(
    config: ConfigArgument,
    overrides: OverridesArgument = None,
    output: PictureOption = Path("lr.png"),
    steps: Annotated[int, typer.Option(min=10, max=10_000, help="Steps over which the rate grows.")] = 100,
    json: JsonOption = False,
) -> None:
    """Propose a learning rate: train briefly while the rate grows until the loss does, and plot both.

    The proposal is a quarter of the rate at which the loss was lowest: a starting point. With train.init_from, start
    from the weights there.

    Example: gpt tune configs/quickstart.yaml -o lr.png
    """
    from gpt_cli.report.figure_io import check_output
    from gpt_cli.report.range_test import draw_range_test
    from gpt_cli.search.lr_range_test import lr_range_test

    check_output(output)
    file, overrides = file_first("tune", str(config), overrides or [])
    test = lr_range_test(load_effective(Path(file), overrides), note, steps)
    draw_range_test(test, output)
    note(f"wrote {output}")
    if json:
        print_json(asdict(test))
        return
    print(f"{test.key}={test.proposed_lr:g}")
    if test.proposed_adamw_lr is not None:
        print(f"optim.adamw_lr={test.proposed_adamw_lr:g}")
