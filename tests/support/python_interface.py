"""The public Python interface, one entry a line: signatures, properties, fields and attributes, with their types."""

import ast
import dataclasses
import inspect
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import gpt_cli
from gpt_cli import errors
from gpt_cli.evaluation.text_classifier import Classification
from gpt_cli.sampling import SamplingOptions
from gpt_cli.tokenizer import Tokenizer

# Types of what callers hold, besides the names of gpt_cli itself.
HELD = {
    "Classification": Classification,
    "SamplingOptions": SamplingOptions,
    "Tokenizer": Tokenizer,
    "gpt_cli.errors.RequestError": errors.RequestError,
    "gpt_cli.errors.UserError": errors.UserError,
}
PROTOCOLS = ("__call__", "__enter__", "__exit__", "__getitem__", "__iter__", "__len__", "__next__", "__str__")


def python_interface() -> list[str]:
    """A line for each public name, and for each public member of the classes among them."""
    named = {f"gpt_cli.{name}": getattr(gpt_cli, name) for name in gpt_cli.__all__}
    return sorted(line for name, value in {**named, **HELD}.items() for line in _lines(name, value))


def type_text(kind: Any) -> str:
    """A type as source code writes it, the same in every version of Python and NumPy."""
    if isinstance(kind, str):
        return kind
    if kind in (None, types.NoneType):
        return "None"
    if kind is Ellipsis:
        return "..."
    if isinstance(kind, list):  # the parameters of a Callable
        return f"[{', '.join(map(type_text, kind))}]"
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(type_text, arguments))
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin is not None:
        name = type_text(origin)
        if name == "ndarray":
            return f"NDArray[{', '.join(map(type_text, typing.get_args(arguments[-1])))}]"
        return f"{name}[{', '.join(map(type_text, arguments))}]"
    return str(getattr(kind, "__name__", None) or getattr(kind, "__forward_arg__", kind))


class Written(str):
    """A type in words, which a signature prints without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _lines(name: str, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        yield f"{name}{_signature(value)}" if callable(value) else f"{name}: {type_text(type(value))}"
    elif typing.is_typeddict(value):
        yield f"{name}: TypedDict"
        for key, kind in typing.get_type_hints(value).items():
            yield f"{name}[{key!r}]: {type_text(kind)}{'' if key in value.__required_keys__ else ', optional'}"
    else:
        yield f"{name}: class({', '.join(base.__name__ for base in value.__bases__)})"
        if typing.Protocol not in value.__bases__:
            yield f"{name}{_signature(value)}"
        for member, written in _members(value).items():
            yield f"{name}.{member}{written}"


def _members(cls: type) -> dict[str, str]:
    """{name: what a line has after it} for the public members that the package itself defines."""
    members: dict[str, str] = {}
    for base in reversed([base for base in cls.__mro__ if base.__module__.partition(".")[0] == "gpt_cli"]):
        names = _names(base.__module__)
        fields = {field.name for field in dataclasses.fields(base)} if dataclasses.is_dataclass(base) else set()
        for member, value in vars(base).items():
            if member in fields or (member.startswith("_") and member not in PROTOCOLS):
                continue
            if isinstance(value, property):
                assert value.fget is not None
                kind = inspect.get_annotations(value.fget, globals=names, eval_str=True).get("return")
                members[member] = f": {type_text(kind)}, property"
            elif isinstance(value, classmethod | staticmethod):
                members[member] = _signature(getattr(base, member))
            elif callable(value):
                members[member] = _signature(value, skip=1)
            else:
                members[member] = f": {type_text(type(value))}"
        annotated = inspect.get_annotations(base, globals=names, eval_str=True)
        kinds = {**_assigned(base), **annotated}
        members |= {member: f": {type_text(kind)}" for member, kind in kinds.items() if not member.startswith("_")}
    return members


def _assigned(cls: type) -> dict[str, Any]:
    """{name: type} for the attributes that `__init__` assigns; the type is "?" where nothing says it."""
    if "__init__" not in vars(cls) or dataclasses.is_dataclass(cls):
        return {}
    initialize = vars(cls)["__init__"]
    names = _names(cls.__module__)
    parameters = inspect.get_annotations(initialize, globals=names, eval_str=True)
    kinds: dict[str, Any] = {}
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(initialize)))):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            kinds[node.target.attr] = eval(ast.unparse(node.annotation), names)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                for part in ast.walk(target):
                    if isinstance(part, ast.Attribute) and ast.unparse(part.value) == "self":
                        kinds[part.attr] = parameters.get(ast.unparse(node.value), "?")
    return kinds


def _signature(function: Callable[..., Any], skip: int = 0) -> str:
    """The signature without its first `skip` parameters, and for a class without what it returns."""
    module = inspect.unwrap(function).__module__
    signature = inspect.signature(function, globals=_names(module), eval_str=True)
    parameters = [
        one if one.annotation is one.empty else one.replace(annotation=Written(type_text(one.annotation)))
        for one in list(signature.parameters.values())[skip:]
    ]
    returned = signature.return_annotation
    if returned is not signature.empty:
        returned = signature.empty if inspect.isclass(function) else Written(type_text(returned))
    return str(signature.replace(parameters=parameters, return_annotation=returned))


@cache
def _names(module: str) -> dict[str, Any]:
    """The names of a module, those that it imports for type checkers alone included."""
    names = dict(vars(sys.modules[module]))
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            exec(compile(ast.Module(node.body, []), module, "exec"), names)
    return names
