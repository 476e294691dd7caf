"""`gpt import`: the models of others as runs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from gpt_cli.cli.output import note, print_json


def import_(
    kind: Annotated[Literal["hf"], typer.Argument(metavar="hf", help="A model of Transformers, in safetensors.")],
    source: Annotated[str, typer.Argument(metavar="DIR|NAME", help="Its directory, or its name on the hub.")],
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="The new run.")],
    download: Annotated[
        bool, typer.Option("--download", help="Get NAME from the hub if it is not in the cache of this machine.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Make a model of GPT-2's, Llama's, Qwen3's or NanoChat's architecture a run.

    It samples, is evaluated on any text, is exported again, and is what train.init_from names to train it further.

    Example: gpt import hf exports/quickstart runs/imported
    """
    from gpt_cli.export.reading import import_huggingface

    layout = import_huggingface(source, run_dir, download=download)
    if json:
        print_json({"source": source, "run_dir": run_dir, "architecture": layout.architecture})
    note(f"{run_dir}: {source}, a {layout.architecture}")
