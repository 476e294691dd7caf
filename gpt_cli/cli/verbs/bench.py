"""`gpt bench`: the speed at which this machine trains a model."""

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
    """Measure training steps: tokens/s, share of this device's peak arithmetic, memory, time by part.

    Whole steps on random tokens of the config's shape; only the vocabulary is read, and nothing is kept.

    Example: gpt bench configs/quickstart.yaml train.batch_size=64
    """
    from gpt_cli.bench.measure import bench as measure
    from gpt_cli.bench.measure import render_bench

    figures = measure(config_or_defaults(arguments or ()), note, seconds)
    print_json(asdict(figures)) if json else print(render_bench(figures))
