"""`gpt data`: the corpora that are known by name, and what a text is like."""

import os
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from gpt_cli.cli.help_format import App
from gpt_cli.cli.options.complete import complete_corpus
from gpt_cli.cli.output import JsonOption, note, print_json
from gpt_cli.cli.verbs.inspect_text import inspect

app = App(rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def data(context: typer.Context) -> None:
    """List the texts that are known by name, download one, or look into one."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("list")
def list_corpora(
    json: JsonOption = False,
) -> None:
    """List the known corpora, and which of them are on this machine.

    Example: gpt data list
    """
    from gpt_cli.corpus.registry import CORPORA, corpora_dir, corpus_path
    from gpt_cli.terminal.table import render_table
    from gpt_cli.terminal.words import format_size

    paths = {corpus.name: corpus_path(corpus, corpora_dir()) for corpus in CORPORA}
    here = {name for name, path in paths.items() if os.path.exists(path)}
    if json:
        available = {name: path if name in here else None for name, path in paths.items()}
        keys = ("name", "about", "url", "size", "sha256", "licence", "split")
        print_json(
            {"corpora": [{**{key: getattr(c, key) for key in keys}, "path": available[c.name]} for c in CORPORA]}
        )
        return
    rows = [
        (
            corpus.name,
            format_size(corpus.size),
            "yes" if corpus.name in here else "",
            f"{corpus.about}; {corpus.licence}",
        )
        for corpus in CORPORA
    ]
    print(render_table(rows, header=("name", "download", "here", "text; licence")))
    note("download one with: gpt data get NAME")


@app.command("get")
def get(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="As `gpt data list` shows it.", show_default=False, autocompletion=complete_corpus
        ),
    ],
    to: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep it in DIR/NAME. [default: the cache]")] = None,
    json: JsonOption = False,
) -> None:
    """Download a corpus, verify its sha256, and print where it is.

    What was downloaded before is not downloaded again.

    Example: gpt data get tiny-shakespeare
    """
    from gpt_cli.corpus.registry import corpora_dir, fetch_corpus, find_corpus
    from gpt_cli.files.locations import require_directory
    from gpt_cli.terminal.progress import stage_progress

    corpus = find_corpus(name)
    if to is not None:
        require_directory(to)
    with stage_progress() as progress:
        path = fetch_corpus(corpus, to or corpora_dir(), progress=partial(progress, corpus.name))
    source = f"corpus:{name}" if to is None else os.fspath(path)
    if json:
        print_json({"name": name, "path": path, "source": source, "licence": corpus.licence, "split": corpus.split})
    else:
        print(path)
    note(f"licence: {corpus.licence}; divided as: {corpus.split}")
    if corpus.labels:
        note(f"classify it with: gpt train --config FILE task.kind=classes data.source={quote(source)}")
    elif corpus.zip_pair:
        note(f"train on it with: gpt train --config FILE data.format=pairs data.source={quote(source)}")
    else:
        note(f"train on it with: gpt train {quote(source)}")


app.command("inspect")(inspect)
