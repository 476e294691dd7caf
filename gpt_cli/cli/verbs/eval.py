"""`gpt eval`: the exact loss of a trained model."""

from typing import Annotated, Literal

import typer

from gpt_cli.cli.options.run_options import RunArgument, RunOption, find_one
from gpt_cli.cli.options.sampling_options import DeviceOption
from gpt_cli.cli.output import JsonOption, note, print_json
from gpt_cli.cli.process import gc_paused
from gpt_cli.errors import RequestError


def evaluate(
    run: RunArgument = None,
    run_option: RunOption = None,
    split: Annotated[
        Literal["val", "test"], typer.Option(help="Which part of the run's text. Training never reads the test split.")
    ] = "val",
    text: Annotated[str | None, typer.Option(metavar="FILE", help="A text to evaluate on instead.")] = None,
    unknown: Annotated[
        Literal["error", "skip"], typer.Option(help="What to do with characters that the vocabulary lacks.")
    ] = "error",
    encoding: Annotated[str, typer.Option(help="Of --text.")] = "utf-8",
    text_key: Annotated[
        str, typer.Option(metavar="KEY", help="Of --text: of .jsonl lines, or column of tables.")
    ] = "text",
    device: DeviceOption = "auto",
    json: JsonOption = False,
) -> None:
    """Measure the exact loss of a run on its validation or test split, or on another text.

    Every token but the first is predicted once, in non-overlapping windows of the model's context.

    Example: gpt eval --run runs/quickstart --text letter.txt
    """
    with gc_paused():
        from gpt_cli.corpus.readers import ReaderOptions
        from gpt_cli.evaluation.evaluate_run import evaluate_run
        from gpt_cli.terminal.table import render_pairs

    if text is not None and split == "test":
        raise RequestError("--split test cannot be combined with --text: a text is evaluated whole")
    form = ReaderOptions(encoding, text_key)
    measured = evaluate_run(
        find_one(run, run_option, text_option="--text"),
        text,
        device,
        split=split,
        skip_unknown=unknown == "skip",
        note=note,
        form=form,
    )
    figures = measured.figures()
    if json:
        print_json(figures)
    else:
        print(render_pairs(figures))
