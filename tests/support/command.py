"""`gpt` in this process or in one of its own, and what it says."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from gpt_cli.cli.main import main
from gpt_cli.errors import RequestError

ROOT = Path(__file__).parents[2]


class Outcome(NamedTuple):
    """How a command ended."""

    rc: int
    stdout: str
    stderr: str


def subprocess_env(**variables: str) -> dict[str, str]:
    """The environment of this process and `variables`; Python finds this checkout there."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **variables}


def run_python(source: str, directory: Path, **variables: str) -> str:
    """What a program prints."""
    completed = subprocess.run(
        [sys.executable, "-c", source],
        cwd=directory,
        env=subprocess_env(**variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def parse_arguments(arguments: list[str]) -> None:
    """Take `arguments` of `gpt` apart as `gpt` does, and run nothing. Raises typer.TyperException."""
    from gpt_cli.cli.main import app

    command: Any = typer.main.get_command(app)
    context = typer.Context(command, info_name="gpt")
    while hasattr(command, "resolve_command") and arguments and not arguments[0].startswith("-"):
        _, command, arguments = command.resolve_command(context, arguments)
    try:
        command.make_context(command.name, list(arguments))
    except RequestError as error:
        raise (error.__cause__ or error) from None


def as_json(answer: Outcome) -> dict[str, Any]:
    """What a command that succeeded printed with --json."""
    assert answer.rc == 0, answer.stderr
    value: dict[str, Any] = json.loads(answer.stdout)
    return value


Run = Callable[..., Outcome]


def in_process(capture: pytest.CaptureFixture[str], *verb: str) -> Run:
    """What runs `gpt VERB`, with more arguments."""

    def gpt(*arguments: object) -> Outcome:
        capture.readouterr()
        code = main([*verb, *map(str, arguments)])
        return Outcome(code, *capture.readouterr())

    return gpt
