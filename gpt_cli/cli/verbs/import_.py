"""`gpt import`: the models of others as runs."""

import re
from os.path import abspath, exists, isfile, join
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from gpt_cli.cli.output import JsonOption, note, print_json
from gpt_cli.errors import RequestError
from gpt_cli.files.kinds import is_gguf
from gpt_cli.files.locations import refuse_dash
from gpt_cli.terminal.words import with_article

_CHANGE = re.compile(r"([a-z_]+(?:\.[a-z_]+)*)=(.*)")


def import_(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="[hf|gguf] DIR|NAME|FILE [RUN]",
            help="A model of Transformers, in safetensors: its directory, or its name on the hub; or a GGUF file that"
            " gpt export wrote; or the directory of a LoRA adapter of PEFT, which is merged over its base. [default of"
            " RUN: its name, in runs/]",
        ),
    ],
    download: Annotated[
        bool, typer.Option("--download", help="Get NAME from the hub if it is not in the cache of this machine.")
    ] = False,
    base: Annotated[
        str | None,
        typer.Option(
            "--base",
            metavar="PATH",
            help="The base of an adapter: a run, a checkpoint or a model of Transformers. [default: the one it names]",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Make a model of GPT-2's, Llama's, Qwen3's or NanoChat's architecture a run.

    It samples, is evaluated on any text, is exported again, and is what train.init_from names to train it further.

    Example: gpt import hf exports/quickstart runs/imported
    """
    from gpt_cli.files.locations import to_slug
    from gpt_cli.run.find_run import is_run

    kind = arguments.pop(0) if arguments[0] in ("hf", "gguf") and len(arguments) > 1 else None
    source = arguments[0]
    if source in ("hf", "gguf") and not Path(source).exists():
        raise RequestError(f"gpt import {source} names no model", hint="gpt import DIR runs/NAME")
    for key, value in (change.groups() for change in map(_CHANGE.fullmatch, arguments[1:]) if change):
        name = quote(value) if key == "run_dir" else "runs/NAME"
        raise RequestError(
            f"{key}={value} is no run's directory, and no key changes a model that is imported",
            hint=f"gpt import {quote(source)} {name}",
        )
    if len(arguments) > 2:
        # A word before the model, such as safetensors; a name of the hub is no path either, but a run comes after it.
        is_word = not exists(source) and exists(arguments[1]) and not is_run(arguments[1])
        kept = arguments[1:3] if is_word else arguments[:2]
        before = "hf or gguf may stand before them" if is_word else f"leave out {quote(arguments[2])}"
        command = ["gpt", "import", *([kind] if kind else []), *map(quote, kept)]
        raise RequestError(
            f"one model becomes one run, and {arguments[2]} is a third name", hint=f"{before}: {' '.join(command)}"
        )
    run_dir = Path(arguments[1]) if len(arguments) > 1 else Path("runs") / to_slug(Path(abspath(source)).stem)
    refuse_dash(run_dir, "a run")
    is_adapter = kind is None and isfile(join(source, "adapter_config.json"))
    if base is not None and not is_adapter:
        raise RequestError(f"--base is for an adapter of PEFT, which {source} is not")
    if is_adapter:
        from gpt_cli.export.peft import import_peft

        architecture = import_peft(source, run_dir, base, download=download, note=note).architecture
    elif kind == "gguf" or (kind is None and is_gguf(Path(source))):
        from gpt_cli.export.gguf_reading import import_gguf

        layout = import_gguf(Path(source), run_dir)
        architecture = layout.model_type
    else:
        if is_gguf(Path(source)) and Path(source).is_file():
            raise RequestError(
                f"{source} is a file for llama.cpp", hint=f"gpt import {quote(source)} {quote(str(run_dir))}"
            )
        from gpt_cli.export.import_hf import import_huggingface

        layout = import_huggingface(source, run_dir, download=download, note=note)
        architecture = layout.architecture
    if json:
        print_json({"source": source, "run_dir": run_dir, "architecture": architecture})
    note(f"{run_dir}: {source}, {with_article(architecture)}")
