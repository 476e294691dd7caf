"""The options of every verb that runs a model, and how an option is declared under a heading of `--help`."""

from typing import Annotated, Any, Literal

import typer

from gpt_cli.literals import Device

DeviceOption = Annotated[Device, typer.Option(help="Where to compute.")]
EngineOption = Annotated[
    Literal["auto", "native", "torch"], typer.Option(help="native: without torch, on a CPU. auto: that, if it can.")
]
DtypeOption = Annotated[
    Literal["fp32", "bf16", "int8"],
    typer.Option("--dtype", "--weights", help="How native (or CUDA: bf16) keeps the matrices; fp32 is exact."),
]


def option(heading: str, text: str, *names: str, **settings: Any) -> Any:
    """An option that `--help` lists under `heading`."""
    return typer.Option(*names, help=text, rich_help_panel=heading, **settings)
