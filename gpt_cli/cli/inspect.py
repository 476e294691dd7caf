"""`gpt data inspect`: a text, looked over before a model learns from it."""

from typing import Annotated

import typer

from gpt_cli.cli.output import note, print_json
from gpt_cli.cli.progress import progress_bar
from gpt_cli.errors import RequestError


def inspect(
    corpus: Annotated[
        list[str],
        typer.Argument(
            metavar="CORPUS ...", help="Files, folders, globs, - or builtin:python-docs.", show_default=False
        ),
    ],
    val_fraction: Annotated[float, typer.Option(help="The last part of the text, which validates.")] = 0.1,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Look a text over: rare and invisible characters, copies, leaks into validation, and what a good loss is.

    The baselines are Kneser-Ney n-gram models and compressors, learned on the training part and measured on the
    validation part. Of a large text, samples are compared, and that is said.

    Example: gpt data inspect book.txt
    """
    from gpt_cli.corpus.inspection.advice import advise
    from gpt_cli.corpus.inspection.inspect import inspect_documents
    from gpt_cli.corpus.sources import find_path, read_documents
    from gpt_cli.corpus.store import is_store
    from gpt_cli.report.inspection import render_inspection

    if not 0 < val_fraction < 1:
        raise RequestError(f"--val-fraction must lie between 0 and 1, not {val_fraction}")
    for source in corpus:
        if not source:
            raise RequestError("a CORPUS is empty text, which names nothing")
        if is_store(find_path(source)):
            raise RequestError(f"{source} is a token store", hint="inspect the text that it was made of")
    with progress_bar("reading", " characters") as progress:
        found = inspect_documents(
            read_documents(corpus, note=note), val_fraction, progress=lambda done: progress(done, None)
        )
    if json:
        print_json({"corpus": corpus, **found.to_json(), "advice": advise(found)})
    else:
        print(render_inspection(found))
