"""`gpt train`: text in, run directory out."""

import os
import re
import time
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from gpt_cli.cli.output import note, print_json
from gpt_cli.cli.process import importing
from gpt_cli.errors import RequestError

if TYPE_CHECKING:
    from gpt_cli.config import Config
    from gpt_cli.training.summary import Summary


def train(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT|section.key=value",
            help="A text to fit a config to, in place of --config; keys of the config to override.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="What to train, on what, how long.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be trained, and leave nothing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object on stdout.")] = False,
) -> int:
    """Train a model, or go on with a run that was interrupted.

    With --config FILE, train what it describes. With TEXT (a file, folder, glob or token store), fit a config to that
    text and this machine, and keep the run in runs/ under the text's name.

    Example: gpt train --config configs/quickstart.yaml train.steps=200
    """
    started = time.perf_counter()
    from gpt_cli.config import load_config

    overrides = [argument for argument in arguments or () if is_override(argument)]
    sources = [argument for argument in arguments or () if argument not in overrides]
    if len(sources) + (config is not None) != 1:
        raise RequestError(
            "give either --config FILE or one TEXT to train on",
            hint="gpt train --config configs/quickstart.yaml, or gpt train book.txt",
        )
    chosen = load_config(config, overrides) if config is not None else _fitted(sources[0], overrides)
    if chosen.train.budget is not None:
        from gpt_cli.cli.budget import choose_for_budget

        chosen = choose_for_budget(chosen, config, overrides, started)
    if dry_run:
        from gpt_cli.report.plan import plan, render_plan

        outlook = plan(chosen, note)
        if json:
            print_json(outlook.to_json())
        else:
            print(render_plan(outlook))
        return 0

    if chosen.optim.lr == "auto":
        from gpt_cli.training.tune import with_proposed_lr

        chosen = with_proposed_lr(chosen, note)
    if chosen.runtime.engine != "torch":
        from gpt_cli.training.native.sources import compile_ahead

        compile_ahead(samples=chosen.sample.every is not None)
    with importing():
        from gpt_cli.training.console import Console
        from gpt_cli.training.loop import train as run_training

    summary = run_training(chosen, Console(note))
    if json:
        print_json(summary.to_json())
    _say_how_it_ended(summary)
    return summary.exit_code


def is_override(argument: str) -> bool:
    """Whether it is `section.key=value`; a file may be called like one, but not like one of a key that there is."""
    from gpt_cli.config.keys import fields, sections

    if not re.match(r"[a-z_]+(\.[a-z_]+)*=", argument):
        return False
    key = argument.partition("=")[0]
    return key in fields() or key in sections() or not os.path.lexists(argument)


def _fitted(source: str, overrides: list[str]) -> "Config":
    """The config of the run that was made for this text before, or else one fitted to it and this machine."""
    from gpt_cli.cli.fitting import fit_to_this_machine, name_after, resolve_source
    from gpt_cli.config import dump_config, load_config, parse_config
    from gpt_cli.config.load import read_layers

    # The other overrides are checked below, with what they lie upon.
    values = read_layers("", "the overrides", overrides).values
    if isinstance(data := values.get("data"), dict) and "source" in data:
        raise RequestError(
            f"the text is named twice: {source}, and data.source={data['source']}",
            hint="leave one of them out; several texts at once are a data.source in a config",
        )
    asked = values.get("run_dir")
    run_dir = Path(asked if isinstance(asked, str) and asked else f"runs/{name_after(source)}")
    if (run_dir / "config.yaml").is_file():
        existing = load_config(run_dir / "config.yaml", overrides)
        if isinstance(existing.data.source, str) and resolve_source(existing.data.source) == resolve_source(source):
            return existing
        raise RequestError(
            f"{run_dir} is a run on another text, {existing.data.source}",
            hint=f"give this one another name: gpt train {quote(source)} run_dir=runs/NAME",
        )
    fitted, reasons = fit_to_this_machine(source, str(run_dir))
    by_time = any(override.startswith("train.budget=") for override in overrides)  # which decides on the shape
    note("\n".join(reasons[:2] if by_time else reasons))
    return parse_config(dump_config(fitted, full=False), str(run_dir / "config.yaml"), overrides)


def _say_how_it_ended(summary: "Summary") -> None:
    from gpt_cli.training.console import clock

    note(f"{'stopped' if summary.exit_code else 'done'}: {summary.stopped}; step {summary.steps:,} is saved")
    if summary.val_loss is not None:
        note(
            f"  val loss {summary.val_loss:.4f} (best {summary.best_val_loss:.4f})"
            f"  bpc {summary.bpc:.3f}  bpb {summary.bpb:.3f}"
        )
    note(f"  {clock(summary.train_seconds)} of training, {summary.tokens_per_second:,.0f} tokens/s")
    note(f"  weights sha256 {summary.weights_sha256[:16]}")
    if summary.best_checkpoint not in (None, summary.checkpoint):
        note(f"  the best is kept too: gpt sample --run {quote(str(summary.best_checkpoint))}")
    if summary.exit_code:
        note("the same command goes on from here")
    note(f"sample: gpt sample --run {quote(str(summary.run_dir))}")
