"""The summary of a run, as `gpt train` prints it."""

from collections.abc import Iterator
from shlex import quote
from typing import TYPE_CHECKING

from gpt_cli.cli.output import note, print_json
from gpt_cli.terminal.words import format_duration

if TYPE_CHECKING:  # it imports torch
    from gpt_cli.training.summary import Summary


def print_summary(summary: "Summary", *, json: bool) -> None:
    """Print the summary of a run: for people to stderr, with `json` to stdout, too."""
    if json:
        print_json(summary.to_json())
    note(f"{'stopped' if summary.exit_code else 'done'}: {summary.stopped}; step {summary.steps:,} is saved")
    for line in _losses(summary):
        note(f"  {line}")
    note(f"  {format_duration(summary.train_seconds)} of training, {summary.tokens_per_second:,.0f} tokens/s")
    note(f"  weights sha256 {summary.weights_sha256[:16]}")
    for line in _best(summary):
        note(f"  {line}")
    if summary.exit_code:
        note("the same command resumes from here")
    run = quote(summary.run_dir)
    if summary.ended_by is not None:
        note(f"continue: gpt train {run} {summary.ended_by}=null")
    note(f"sample: gpt sample --run {run}" if summary.accuracy is None else f"classify: gpt classify --run {run} TEXT")


def _losses(summary: "Summary") -> Iterator[str]:
    if summary.val_loss is None:
        if summary.best_val_loss is not None:
            yield f"this step was not evaluated; the best val loss before it is {summary.best_val_loss:.4f}"
        return
    loss, best = f"val loss {summary.val_loss:.4f}", f"(best {summary.best_val_loss:.4f})"
    if summary.accuracy is not None:
        yield f"accuracy {summary.accuracy:.4f}  macro F1 {summary.macro_f1:.4f}  {loss} {best}"
        return
    extent = "" if summary.val_tokens is None else f" of the first {summary.val_tokens:,} tokens"
    yield f"{loss}{extent} {best}  bpc {summary.bpc:.3f}  bpb {summary.bpb:.3f}"
    if summary.expected_loss is not None:
        yield f"expected {summary.expected_loss:.2f}, reached {summary.val_loss:.2f}"


def _best(summary: "Summary") -> Iterator[str]:
    """Yield where the best weights are, if not in the last checkpoint."""
    verb = "sample" if summary.accuracy is None else "eval"
    if summary.best_step == 0 and summary.steps and summary.val_loss is not None:
        yield "the best val loss is from before the first step: no checkpoint is that good"
    elif summary.best_step and summary.best_checkpoint is None:
        yield f"the checkpoint of the best val loss, step {summary.best_step:,}, is damaged or gone"
    elif summary.best_checkpoint in (None, summary.checkpoint):
        return
    elif summary.overfitting is not None:
        yield f"overfitting: {summary.overfitting};"
        yield f"gpt {verb} --run {quote(f'{summary.run_dir}@best')} has the best weights"
    else:
        yield f"the best is kept too: gpt {verb} --run {quote(str(summary.best_checkpoint))}"
