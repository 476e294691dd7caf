"""`gpt bench`: how fast this machine trains a model."""

from dataclasses import asdict
from typing import Annotated

import typer

from gpt_cli.cli.options.config_argument import ConfigOrDefaultsArgument, config_or_defaults
from gpt_cli.cli.output import JsonOption, note, print_json


def bench(
    arguments: ConfigOrDefaultsArgument = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="How long to measure steps.")] = 10.0,
    json: JsonOption = False,
) -> None:
    """Measure training steps: tokens/s, share of what this device can multiply, memory, time by part.

    Whole steps on random tokens of the config's shape; nothing is read but the vocabulary, nothing is kept.

    Example: gpt bench configs/quickstart.yaml train.batch_size=64
    """
    from gpt_cli.bench.measure import bench as measure
    from gpt_cli.bench.measure import render_bench

    config = config_or_defaults(arguments or ())
    figures = measure(config, note, seconds)
    if json:
        print_json(asdict(figures))
    else:
        print(render_bench(figures))
