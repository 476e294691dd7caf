"""Options that several verbs share, and decorators that declare a table of them for a verb."""

from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Literal, TypeVar

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

Verb = TypeVar("Verb", bound=Callable[..., Any])
OptionTable = Mapping[str, tuple[Any, Any]]
"""{name of a parameter: (its annotation, its default)}."""


def takes(options: OptionTable) -> Callable[[Verb], Verb]:
    """Declare `options` for a verb, before its keyword-only parameters.

    The verb receives them as keyword arguments that its own signature does not list.
    """

    def declare(verb: Verb) -> Verb:
        own = signature(verb).parameters.values()
        before = [one for one in own if one.kind is Parameter.POSITIONAL_OR_KEYWORD]
        after = [one for one in own if one.kind is Parameter.KEYWORD_ONLY]
        shared = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (annotation, default) in options.items()
        ]
        verb.__signature__ = Signature([*before, *shared, *after])  # type: ignore[attr-defined]
        return verb

    return declare


def option(heading: str, text: str, *names: str, **settings: Any) -> Any:
    """An option that `--help` lists under `heading`."""
    return typer.Option(*names, help=text, rich_help_panel=heading, **settings)
