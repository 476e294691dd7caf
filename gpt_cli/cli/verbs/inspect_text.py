"""`gpt data inspect`: a text, looked over before a model learns from it."""

from dataclasses import asdict
from typing import Annotated

import typer

from gpt_cli.cli.options.data_options import (
    TEXT_KEY,
    VAL_FRACTION,
    EncodingOption,
    SplitOption,
    TestFractionOption,
    TextKeyOption,
    ValFractionOption,
    ValSourceOption,
    data_config,
)
from gpt_cli.cli.output import JsonOption, note, print_json


def inspect(
    corpus: Annotated[
        list[str],
        typer.Argument(metavar="CORPUS", help="Files, folders, globs, - or builtin:python-docs.", show_default=False),
    ],
    val_fraction: ValFractionOption = VAL_FRACTION,
    test_fraction: TestFractionOption = 0.0,
    split: SplitOption = "characters",
    val_source: ValSourceOption = None,
    encoding: EncodingOption = "utf-8",
    text_key: TextKeyOption = TEXT_KEY,
    json: JsonOption = False,
) -> None:
    """Look a text over: rare and invisible characters, duplicates, train/val overlap, what a good loss is.

    The text is divided as training divides it, and the test split is not read. The baselines are
    Kneser-Ney n-gram models and compressors, learned on the training part and measured on the validation part. Of a
    large text, samples are compared, and that is said.

    Example: gpt data inspect book.txt
    """
    from gpt_cli.analysis.advice import advise
    from gpt_cli.analysis.scanner import inspect_text
    from gpt_cli.analysis.split_text import SplitText
    from gpt_cli.report.text_report_view import render_inspection
    from gpt_cli.terminal.progress import stage_progress

    data = data_config(
        corpus,
        val_fraction=val_fraction,
        test_fraction=test_fraction,
        split=split,
        val_source=val_source,
        encoding=encoding,
        text_key=text_key,
    )
    with stage_progress() as progress:
        inspection = inspect_text(SplitText.find(data, note, progress), progress)
    if test_fraction:
        note("what is kept for the test was not looked at")
    if json:
        print_json({"corpus": corpus, **asdict(inspection), "advice": advise(inspection)})
    else:
        print(render_inspection(inspection))
