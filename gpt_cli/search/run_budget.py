"""The lengths of a run that `train.budget` decides, and what lifting a budget lifts."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from gpt_cli.config import Config, load_config
from gpt_cli.config.keys import replace_keys
from gpt_cli.config.load import enclosing_run
from gpt_cli.errors import RequestError

LENGTHS = ("train.steps", "train.max_minutes")


def lift_budget(config: Config, file: Path, overrides: Sequence[str]) -> Config:
    """Lift the time limit that a run's train.budget chose where `overrides` lift the budget."""
    keys = {override.partition("=")[0] for override in overrides}
    lifts = "train.budget" in keys and config.train.budget is None and "train.max_minutes" not in keys
    if not lifts or enclosing_run(file) is None or load_config(file).train.budget is None:
        return config
    return replace_keys(config, {"train.max_minutes": None})


def refuse_another_length(values: Mapping[str, object]) -> None:
    """Raise RequestError if the `values` of keys set another length of a run than train.budget."""
    if asked := [key for key in LENGTHS if values.get(key) is not None]:
        raise RequestError(f"{asked[0]} and train.budget contradict each other", keys=asked)
