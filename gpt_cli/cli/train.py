"""`gpt train`: text in, run directory out."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpt_cli.cli.output import note, print_json
from gpt_cli.config import Config, dump_config, load_config, parse_config
from gpt_cli.errors import RequestError

if TYPE_CHECKING:
    from gpt_cli.training.summary import Summary


def train(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT] [section.key=value ...]", show_default=False, help="See below."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A config file.", metavar="FILE", show_default=False)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be trained, and leave nothing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object on stdout.")] = False,
) -> int:
    """Train a model, or go on with a run that was interrupted.

    With --config FILE, train what it describes; section.key=value overrides one of its keys. With TEXT, a text file
    (folder, glob, token store) in its place, a config is fitted to that text and this machine.

    Example: gpt train --config configs/quickstart.yaml train.steps=200
    """
    sources = [argument for argument in arguments or () if "=" not in argument]
    overrides = [argument for argument in arguments or () if "=" in argument]
    if len(sources) + (config is not None) != 1:
        raise RequestError(
            "give either --config FILE or one TEXT to train on",
            hint="gpt train --config configs/quickstart.yaml, or gpt train book.txt",
        )
    chosen = load_config(config, overrides) if config is not None else _fitted(sources[0], overrides)
    if dry_run:
        from gpt_cli.training.plan import plan, render_plan

        outlook = plan(chosen, note)
        print_json(outlook.to_json()) if json else print(render_plan(outlook))
        return 0

    from gpt_cli.training.console import Console
    from gpt_cli.training.loop import train as run_training

    summary = run_training(chosen, Console())
    if json:
        print_json({key: value for key, value in asdict(summary).items() if key != "exit_code"})
    _say_how_it_ended(summary)
    return summary.exit_code


def _fitted(source: str, overrides: list[str]) -> Config:
    """The config of the run that was made for this text before, or else one fitted to it and this machine."""
    run_dir = Path("runs") / (Path(source).stem or "text")
    if (run_dir / "config.yaml").is_file():
        existing = load_config(run_dir / "config.yaml", overrides)
        if existing.data.source == source:
            return existing.model_copy(update={"run_dir": existing.run_dir or str(run_dir)})
        raise RequestError(
            f"{run_dir} is a run on another text, {existing.data.source}", hint="add run_dir=runs/ANOTHER_NAME"
        )

    import torch

    from gpt_cli.corpus.fit import fit_config
    from gpt_cli.runtime.processor import physical_cores

    fitted, reasons = fit_config(
        source, run_dir=str(run_dir), has_gpu=torch.cuda.is_available(), cores=physical_cores()
    )
    for reason in reasons:
        note(reason)
    return parse_config(dump_config(fitted), str(run_dir / "config.yaml"), overrides)


def _say_how_it_ended(summary: "Summary") -> None:
    minutes, seconds = divmod(round(summary.train_seconds), 60)
    note(f"{'stopped' if summary.exit_code else 'done'}: {summary.stopped}; step {summary.steps:,} is saved")
    if summary.val_loss is not None:
        note(
            f"  val loss {summary.val_loss:.4f} (best {summary.best_val_loss:.4f})"
            f"  bpc {summary.bpc:.3f}  bpb {summary.bpb:.3f}"
        )
    note(f"  {minutes}:{seconds:02} of training, {summary.tokens_per_second:,.0f} tokens/s")
    note(f"  weights sha256 {summary.weights_sha256[:16]}")
    if summary.best_checkpoint not in (None, summary.checkpoint):
        note(f"  the best is kept too: gpt sample --run {summary.best_checkpoint}")
    note(f"sample: gpt sample --run {summary.run_dir}")
