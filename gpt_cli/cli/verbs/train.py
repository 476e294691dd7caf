"""`gpt train`: text in, run directory out."""

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from gpt_cli.cli.options.complete import complete_change
from gpt_cli.cli.options.train_request import Request
from gpt_cli.cli.output import note, print_json
from gpt_cli.cli.process import gc_paused

if TYPE_CHECKING:
    from gpt_cli.config import Config
    from gpt_cli.training.summary import Summary


def train(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT|CONFIG|RUN|section.key=value",
            help="A text to fit a config to, a config file, or a run to resume; keys of the config to override.",
            show_default=False,
            autocompletion=complete_change,
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="What to train, on what, how long.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be trained, without training.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object on stdout.")] = False,
    devices: Annotated[
        str | None, typer.Option(metavar="N|auto", help="Train on N GPUs of this machine, or in N CPU processes.")
    ] = None,
) -> int:
    """Train a model, or resume a run that was interrupted.

    With CONFIG, a .yaml file, train what it describes. With RUN, resume it. With TEXT (files, folders, globs, a token
    store, or - for standard input), fit a config to that text and this machine, and keep the run in runs/ under the
    text's name; with train.init_from=RUN, too, train that model further.

    Example: gpt train book.txt train.steps=200
    """
    started = time.perf_counter()
    together = "WORLD_SIZE" in os.environ  # as torchrun has it
    if dry_run or (devices is None and not together):
        return _train(arguments or (), config, started, dry_run=dry_run, json=json, devices=devices)
    from gpt_cli.cli.train_together import launch_training, train_together

    if together:
        several = int(os.environ["WORLD_SIZE"]) > 1
        return train_together(lambda: _choose(arguments or (), config, started, together=several), json=json)
    return launch_training("auto" if devices is None else devices, arguments or (), config, json=json)


def _train(
    arguments: Sequence[str], file: Path | None, started: float, *, dry_run: bool, json: bool, devices: str | None
) -> int:
    processes = 1
    if devices is not None:
        from gpt_cli.cli.train_together import refuse_batch_of
        from gpt_cli.distributed.launch import device_count

        processes = device_count(devices)
    chosen = _choose(arguments, file, started, dry_run=dry_run, together=processes > 1)
    if devices is not None:
        refuse_batch_of(chosen, processes)
    if dry_run:
        from gpt_cli.report.info_view import render_plan
        from gpt_cli.search.dry_run import plan

        if processes > 1:
            note(f"this plan is that of one process; {processes} share the batch, each with its part of the cores")
        outlook = plan(chosen, note)
        if json:
            print_json(outlook.to_json())
        else:
            print(render_plan(outlook))
        return 0

    if chosen.runtime.engine != "torch":
        from gpt_cli.cpu.train.build_settings import build_engine_in_background

        build_engine_in_background(samples=chosen.sample.every is not None)
    with gc_paused():
        from gpt_cli.training.console import Console
        from gpt_cli.training.loop import train as run_training

    summary = run_training(chosen, Console(note))
    print_summary(summary, chosen.train.steps, json=json)
    return summary.exit_code


def _choose(
    arguments: Sequence[str], file: Path | None, started: float, *, dry_run: bool = False, together: bool = False
) -> "Config":
    """The config of what was asked for, with everything chosen that it leaves to be chosen before a run."""
    request = Request(arguments, file, stdin="discard" if dry_run else "keep")
    chosen = request.config
    if chosen.train.budget is not None:
        from gpt_cli.cli.options.budget import choose_for_budget

        chosen = choose_for_budget(chosen, request.file, request.overrides, started, together=together)
    if chosen.optim.lr == "auto" and not dry_run:
        from gpt_cli.search.lr_range_test import with_proposed_lr

        chosen = with_proposed_lr(chosen, note)
    return chosen


train.keys = {  # type: ignore[attr-defined]  # what help shows, without reading the schema, which takes long
    "train.steps=1000": "How long.",
    "train.budget=10m": "The time it may take, for which size, context and steps are chosen.",
    "train.batch_size=16": "Sequences per step.",
    "optim.lr=0.02": "Peak learning rate.",
    "model.n_layer=4": "Blocks.",
    "model.n_embd=128": "Width.",
    "model.context_length=128": "Tokens that it sees at once.",
    "model.dropout=0.1": "Against memorising a text that is read often.",
    "tokenizer.kind=bpe": "char, byte or bpe.",
    "run_dir=runs/NAME": "Where the run is kept.",
    "...": "`gpt config init -o -` prints every key with its meaning; so does docs/reference/config.md.",
}


def print_summary(summary: "Summary", steps: int, *, json: bool) -> None:
    """Print the summary of a run of at most `steps`: for people to stderr, with `json` to stdout, too."""
    from gpt_cli.terminal.words import format_duration

    if json:
        print_json(summary.to_json())
    note(f"{'stopped' if summary.exit_code else 'done'}: {summary.stopped}; step {summary.steps:,} is saved")
    if summary.accuracy is not None:
        note(
            f"  accuracy {summary.accuracy:.4f}  macro F1 {summary.macro_f1:.4f}"
            f"  val loss {summary.val_loss:.4f} (best {summary.best_val_loss:.4f})"
        )
    elif summary.val_loss is not None:
        extent = "" if summary.val_tokens is None else f" of the first {summary.val_tokens:,} tokens"
        note(
            f"  val loss {summary.val_loss:.4f}{extent} (best {summary.best_val_loss:.4f})"
            f"  bpc {summary.bpc:.3f}  bpb {summary.bpb:.3f}"
        )
    elif summary.best_val_loss is not None:
        note(f"  this step was not evaluated; the best val loss before it is {summary.best_val_loss:.4f}")
    note(f"  {format_duration(summary.train_seconds)} of training, {summary.tokens_per_second:,.0f} tokens/s")
    note(f"  weights sha256 {summary.weights_sha256[:16]}")
    if summary.best_step == 0 and summary.steps and summary.val_loss is not None:
        note("  the best val loss is from before the first step: no checkpoint is that good")
    elif summary.best_step and summary.best_checkpoint is None:
        note(f"  the checkpoint of the best val loss, step {summary.best_step:,}, is damaged or gone")
    elif summary.best_checkpoint not in (None, summary.checkpoint):
        verb = "sample" if summary.accuracy is None else "eval"
        if summary.overfitting is not None:
            best = f"gpt {verb} --run {quote(f'{summary.run_dir}@best')}"
            note(f"  overfitting: {summary.overfitting};\n  {best} has the best weights")
        else:
            note(f"  the best is kept too: gpt {verb} --run {quote(str(summary.best_checkpoint))}")
    if summary.exit_code:
        note("the same command resumes from here")
    run = quote(str(summary.run_dir))
    ended_by = re.search(r"train\.(max_minutes|until_loss|patience)\b", summary.stopped)
    if ended_by and summary.steps < steps:
        note(f"continue: gpt train {run} {ended_by[0]}=null")
    note(f"sample: gpt sample --run {run}" if summary.accuracy is None else f"classify: gpt classify --run {run} TEXT")
