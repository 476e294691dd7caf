"""`train.budget`: what the config leaves open is chosen for the time there is, once; a resumed run keeps the choice."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from gpt_cli.cli.output import note
from gpt_cli.config import Config, load_config
from gpt_cli.config.keys import dotted_keys, get_key, replace_keys
from gpt_cli.config.load import enclosing_run, merge_layers, read_config_file
from gpt_cli.config.section import parse_duration
from gpt_cli.corpus.prepare import prepare_corpus
from gpt_cli.errors import RequestError, UsageError
from gpt_cli.files.kinds import CONFIG
from gpt_cli.run.run_files import run_of

JobsOption = Annotated[int | None, typer.Option(min=1, max=1024, help="Runs at once; default: one per core or GPU.")]
_LENGTHS = ("train.steps", "train.max_minutes")


def choose_for_budget(
    config: Config, file: Path | None, overrides: Sequence[str], started: float, *, together: bool
) -> Config:
    """`config`, from `file` (None: fitted to a text) under `overrides`, made to end `train.budget` after `started`.

    `started` is by `time.perf_counter`. Raises RequestError where another length is asked for, too, the time is too
    short, or several processes are to train it `together`.
    """
    from gpt_cli.search.time_budget import SHAPE, choice_of_run, config_for_budget

    assert config.run_dir is not None
    budget, run_dir = config.train.budget, config.run_dir
    assert budget is not None
    fixed = dotted_keys(merge_layers("", "the overrides", overrides).values)
    if "train.budget" in fixed or run_of(config) is None:
        refuse_another_length({key: get_key(config, key) for key in fixed})
    elif asked := [key for key in _LENGTHS if key in fixed and get_key(config, key) is not None]:
        raise RequestError(f"{asked[0]} of {run_dir} was chosen for train.budget={budget}", kind="another run")
    if file is not None:
        fixed |= dotted_keys(merge_layers(read_config_file(file), str(file), ()).values)
    fixed -= {*_LENGTHS}  # the time decides them
    if config.train.init_from is not None:  # the run whose weights are taken decides on the model
        fixed |= {*SHAPE, "model.context_length"}
    if file is None and config.data.format != "text":  # the longest example decides on the context
        fixed |= {"model.context_length"}
    if (written := Path(run_dir, CONFIG)).is_file():
        run = load_config(written)
        if run.train.budget not in (None, budget):
            raise RequestError(f"{run_dir} was planned for train.budget={run.train.budget}", kind="another run")
        return choice_of_run(config, run, fixed) if run.train.budget == budget else config
    if together:
        raise RequestError("train.budget is chosen for one process: with --devices, set train.max_minutes instead")
    corpus = prepare_corpus(config.data, config.tokenizer, note=note)
    seconds = (parse_duration(budget) or 0) - (time.perf_counter() - started)
    return config_for_budget(config, seconds, corpus, fixed, note)


def lift_budget(config: Config, file: Path, overrides: Sequence[str]) -> Config:
    """Lift the time limit that a run's train.budget chose where `overrides` lift the budget."""
    keys = {override.partition("=")[0] for override in overrides}
    lifts = "train.budget" in keys and config.train.budget is None and "train.max_minutes" not in keys
    if not lifts or enclosing_run(file) is None or load_config(file).train.budget is None:
        return config
    return replace_keys(config, {"train.max_minutes": None})


def refuse_another_length(values: Mapping[str, object]) -> None:
    """Raise RequestError if the `values` of keys set another length of a run than train.budget."""
    if asked := [key for key in _LENGTHS if values.get(key) is not None]:
        raise RequestError(f"{asked[0]} and train.budget contradict each other", keys=asked)


def seconds_of(option: str, text: str) -> float:
    """Return the seconds in `text`, such as 90s, 30m or 1h30m, of `option`. Raises RequestError for anything else."""
    if (seconds := parse_duration(text)) is None:
        raise UsageError(f"{option} must be a time such as 90s, 30m or 1h30m, not {text!r}")
    return float(seconds)
