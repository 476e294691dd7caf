"""`train.budget`: what the config leaves open is chosen for the time there is, once; a resumed run keeps the choice."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING

from gpt_cli.cli.output import note
from gpt_cli.errors import RequestError

if TYPE_CHECKING:
    from gpt_cli.config import Config


_LENGTHS = ("train.steps", "train.max_minutes")


def choose_for_budget(
    config: "Config", file: Path | None, overrides: Sequence[str], started: float, *, together: bool
) -> "Config":
    """`config`, from `file` (None: fitted to a text) under `overrides`, made to end `train.budget` after `started`.

    `started` is by `time.perf_counter`. Raises RequestError where another length is asked for, too, the time is too
    short, or several processes are to train it `together`.
    """
    from gpt_cli.config import load_config
    from gpt_cli.config.keys import dotted_keys, get_key
    from gpt_cli.config.load import merge_layers, read_config_file
    from gpt_cli.config.section import parse_duration
    from gpt_cli.corpus.prepare import prepare_corpus
    from gpt_cli.run.run_files import run_of
    from gpt_cli.search.time_budget import SHAPE, choice_of_run, config_for_budget

    overridden = dotted_keys(merge_layers("", "the overrides", overrides).values)
    if "train.budget" in overridden or run_of(config) is None:
        refuse_another_length({key: get_key(config, key) for key in overridden})
    elif asked := [key for key in _LENGTHS if key in overridden and get_key(config, key) is not None]:
        raise RequestError(
            f"{asked[0]} of {config.run_dir} was chosen for train.budget={config.train.budget}",
            hint=_train_further(config, "train.steps=N"),
        )
    of_file = "" if file is None else read_config_file(file)
    fixed = overridden | dotted_keys(merge_layers(of_file, str(file), ()).values)
    fixed -= {*_LENGTHS}  # the time decides them
    if config.train.init_from is not None:  # the run whose weights are taken decides on the model
        fixed |= {*SHAPE, "model.context_length"}
    if file is None and config.data.format != "text":  # the longest example decides on the context
        fixed |= {"model.context_length"}
    assert config.run_dir is not None
    assert config.train.budget is not None
    config_path = Path(config.run_dir, "config.yaml")
    if config_path.is_file():
        run = load_config(config_path)
        if run.train.budget == config.train.budget:
            return choice_of_run(config, run, fixed)
        if run.train.budget is not None:
            further = _train_further(config, f"train.budget={config.train.budget}")
            raise RequestError(f"{config.run_dir} was planned for train.budget={run.train.budget}", hint=further)
        return config
    if together:
        raise RequestError(
            "train.budget is measured and chosen for one process",
            hint="with --devices, give train.max_minutes and train.steps",
        )
    corpus = prepare_corpus(config.data, config.tokenizer, note=note)
    seconds = (parse_duration(config.train.budget) or 0) - (time.perf_counter() - started)
    return config_for_budget(config, seconds, corpus, fixed, note)


def _train_further(config: "Config", length: str) -> str:
    """The way out where a run has another length than is asked for."""
    command = join(["gpt", "train", *config.data.sources, f"train.init_from={config.run_dir}", length])
    return f"train its model further, in another run: {command}"


def refuse_to_lift(config: "Config", file: Path, overrides: Sequence[str]) -> None:
    """Raise RequestError if `overrides` lift the train.budget of a run, but not the time limit that it chose."""
    from gpt_cli.config import load_config
    from gpt_cli.config.load import enclosing_run

    keys = {override.partition("=")[0] for override in overrides}
    if "train.budget" not in keys or "train.max_minutes" in keys or enclosing_run(file) is None:
        return
    minutes, budget = config.train.max_minutes, load_config(file).train.budget
    if config.train.budget is None and None not in (minutes, budget):
        elsewhere = "" if "run_dir" in keys else " run_dir=runs/NAME"  # the run keeps the budget that it was begun with
        raise RequestError(
            f"train.max_minutes {minutes:g} was chosen for train.budget={budget}, and would stay",
            hint=f"train.budget=null train.max_minutes=null{elsewhere} lifts both, in a new run;"
            " train.steps=N says how long it trains",
        )


def refuse_another_length(overrides: Mapping[str, object]) -> None:
    """Raise RequestError if `overrides` (values by dotted keys) set another length of a run than train.budget."""
    for key in _LENGTHS:
        if overrides.get(key) is not None:
            raise RequestError(f"{key} and train.budget contradict each other", hint="leave one of them out")
