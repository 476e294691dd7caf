"""`gpt data`: the corpora that are known by name, and a look at any other."""

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
from gpt_cli.corpus import registry
from gpt_cli.files.locations import require_directory
from gpt_cli.terminal.progress import stage_progress
from gpt_cli.terminal.table import render_table
from gpt_cli.terminal.words import format_size

app = App()
app.command("inspect")(inspect)


@app.callback(invoke_without_command=True)
def data(context: typer.Context) -> None:
    """List, download or inspect corpora."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("list")
def list_corpora(json: JsonOption = False) -> None:
    """List the known corpora, and which of them are on this machine.

    Example: gpt data list
    """
    paths = {corpus.name: registry.corpus_path(corpus, registry.corpora_dir()) for corpus in registry.CORPORA}
    here = {name: path for name, path in paths.items() if os.path.exists(path)}
    if json:
        keys = ("name", "about", "url", "size", "sha256", "licence", "split")
        facts = [{key: getattr(corpus, key) for key in keys} for corpus in registry.CORPORA]
        print_json({"corpora": [{**about, "path": here.get(about["name"])} for about in facts]})
        return
    rows = [
        (corpus.name, format_size(corpus.size), "yes" * (corpus.name in here), f"{corpus.about}; {corpus.licence}")
        for corpus in registry.CORPORA
    ]
    print(render_table(rows, header=("name", "download", "here", "text; licence")))
    note("download one with: gpt data get NAME")


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_corpus)],
    to: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep it in DIR/NAME. [default: the cache]")] = None,
    json: JsonOption = False,
) -> None:
    """Download a corpus, verify its sha256, and print its path.

    A corpus that was downloaded before is not downloaded again.

    Example: gpt data get tiny-shakespeare
    """
    corpus = registry.find_corpus(name)
    if to is not None:
        require_directory(to)
    with stage_progress() as progress:
        path = registry.fetch_corpus(corpus, to or registry.corpora_dir(), progress=partial(progress, corpus.name))
    source = f"corpus:{name}" if to is None else os.fspath(path)
    if json:
        print_json({"name": name, "path": path, "source": source, "licence": corpus.licence, "split": corpus.split})
    else:
        print(path)
    note(f"licence: {corpus.licence}; divided as: {corpus.split}")
    task = ["task.kind=classes"] * bool(corpus.labels) + ["data.format=pairs"] * bool(corpus.zip_pair)
    note(" ".join(["train on it with: gpt train", quote(source), *task]))
