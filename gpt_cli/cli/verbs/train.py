"""`gpt train`: text in, run directory out."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from gpt_cli.cli.options.config_argument import changes_argument
from gpt_cli.cli.options.train_request import resolve
from gpt_cli.cli.output import note, print_json
from gpt_cli.cli.process import gc_paused
from gpt_cli.cli.train_output import print_summary
from gpt_cli.cli.train_together import launch_training, refuse_batch_of, train_together
from gpt_cli.config import Config
from gpt_cli.cpu.train.build_settings import build_engine_in_background

KEYS = {  # what --help shows, of a hundred keys
    "train.steps=1000": "Optimizer steps.",
    "train.budget=10m": "Time to train for; chooses size, context and steps.",
    "train.batch_size=16": "Sequences per step.",
    "optim.lr=0.02": "Peak learning rate.",
    "model.n_layer=4": "Transformer blocks.",
    "model.n_embd=128": "Width of the model.",
    "model.context_length=128": "Tokens that the model sees at once.",
    "model.dropout=0.1": "Dropout, against overfitting.",
    "tokenizer.kind=bpe": "char, byte or bpe.",
    "run_dir=runs/NAME": "Where to keep the run.",
    "...": "`gpt config init -o -` prints every key with its meaning; so does docs/reference/config.md.",
}


def train(
    arguments: Annotated[
        list[str] | None,
        changes_argument(
            "TEXT|CONFIG|RUN|section.key=value",
            "Texts to train on, a config file, or a run to resume; config keys to override.",
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="The config file.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan without training.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object on stdout.")] = False,
    devices: Annotated[
        str | None, typer.Option(metavar="N|auto", help="Train on N GPUs of this machine, or in N CPU processes.")
    ] = None,
) -> int:
    """Train a model, or resume an interrupted run.

    With CONFIG, a .yaml file, train what it describes. With RUN, resume it. With TEXT (files, folders, globs, a token
    store, or - for standard input), fit a config to the text and this machine, and keep the run in runs/, named after
    the text; add train.init_from=RUN to fine-tune that run's model.

    Example: gpt train book.txt train.steps=200
    """
    started = time.perf_counter()
    together = "WORLD_SIZE" in os.environ  # as torchrun has it
    if dry_run or (devices is None and not together):
        return _train(arguments or (), config, started, dry_run=dry_run, json=json, devices=devices)
    if together:
        several = int(os.environ["WORLD_SIZE"]) > 1
        return train_together(lambda: _choose(arguments or (), config, started, together=several)[0], json=json)
    return launch_training("auto" if devices is None else devices, arguments or (), config, json=json)


train.keys = KEYS  # type: ignore[attr-defined]  # for help


def _train(
    arguments: Sequence[str], file: Path | None, started: float, *, dry_run: bool, json: bool, devices: str | None
) -> int:
    processes = 1
    if devices is not None:
        from gpt_cli.distributed.launch import device_count

        processes = device_count(devices)
    chosen, expected_loss = _choose(arguments, file, started, dry_run=dry_run, together=processes > 1)
    if devices is not None:
        refuse_batch_of(chosen, processes)
    if dry_run:
        return _print_plan(chosen, processes, json=json)
    if chosen.runtime.engine != "torch":
        build_engine_in_background(samples=chosen.sample.every is not None)
    with gc_paused():
        from gpt_cli.training.console import Console
        from gpt_cli.training.loop import train as run_training

    summary = run_training(chosen, Console(note), expected_loss)
    print_summary(summary, json=json)
    return summary.exit_code


def _print_plan(config: Config, processes: int, *, json: bool) -> int:
    from gpt_cli.report.info_view import render_plan
    from gpt_cli.search.dry_run import plan

    if processes > 1:
        note(f"this is the plan of one process; {processes} share the batch and the cores")
    outlook = plan(config, note)
    if json:
        print_json(outlook.to_json())
    else:
        print(render_plan(outlook))
    return 0


def _choose(
    arguments: Sequence[str], file: Path | None, started: float, *, dry_run: bool = False, together: bool = False
) -> tuple[Config, float | None]:
    """Return the config that was asked for, with everything chosen that it leaves open before a run.

    With it comes the validation loss that is expected of a new run of train.budget.
    """
    chosen, file, overrides = resolve(arguments, file, stdin="discard" if dry_run else "keep")
    expected_loss = None
    if chosen.train.budget is not None:
        from gpt_cli.search.time_budget import choose_for_budget

        chosen, expected_loss = choose_for_budget(chosen, file, overrides, started, note, together=together)
    if chosen.optim.lr == "auto" and not dry_run:
        from gpt_cli.search.lr_range_test import with_proposed_lr

        chosen = with_proposed_lr(chosen, note)
    return chosen, expected_loss
