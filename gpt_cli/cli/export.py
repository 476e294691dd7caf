"""`gpt export`: a run in the formats of others."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from gpt_cli.cli.output import note, print_json


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run or checkpoint.")],
    target: Annotated[Path, typer.Argument(metavar="PATH", help="The new directory (hf) or file.")],
    to: Annotated[Literal["hf"], typer.Option(help="hf: a directory for Transformers.")] = "hf",
    dtype: Annotated[Literal["f32", "f16", "bf16"], typer.Option(help="Of the numbers in it.")] = "f32",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Write a trained model as others read it.

    Example: gpt export runs/quickstart --to hf exports/quickstart
    """
    import torch

    from gpt_cli.export.huggingface import export_huggingface
    from gpt_cli.run.directory import find_run
    from gpt_cli.run.load import load_model

    loaded = load_model(find_run(run), torch.device("cpu"), note)
    layout = export_huggingface(loaded, target, dtype)
    if json:
        print_json({"run": loaded.path, "step": loaded.step, "path": target, "architecture": layout.architecture})
    note(f"{target}: step {loaded.step:,} of {run} as a {layout.architecture} of Transformers, {dtype}")
