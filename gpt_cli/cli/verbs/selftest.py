"""`gpt selftest` and `gpt doctor`: gpt's guarantees tested on this machine, and one run examined."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gpt_cli.cli.options.run_options import RunArgument, RunOption, find_one
from gpt_cli.cli.output import JsonOption, note, print_json
from gpt_cli.cli.process import unwind_on_sigterm
from gpt_cli.errors import ExitCode
from gpt_cli.files.locations import require_directory
from gpt_cli.selftest.check import Check, all_passed, render_checks


def selftest(
    quick: Annotated[bool, typer.Option("--quick", help="Take seconds instead of minutes.")] = False,
    directory: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where to work, on the disk to be tested.", show_default=False)
    ] = Path(),
    seed: Annotated[int, typer.Option(min=0, help="Of the moments of the kills and the places of the flips.")] = 0,
    json: JsonOption = False,
) -> int:
    """Test gpt's guarantees on this machine and this disk.

    Trains a tiny model, kills it again and again, flips bits in its checkpoints, and compares the results with those
    expected. Works in a temporary directory, which it removes. Exits with 1 if anything fails.

    Example: gpt selftest --quick
    """
    from gpt_cli.selftest.machine import run_selftest

    require_directory(directory, missing=False)
    with unwind_on_sigterm():
        return _print(run_selftest(directory, quick=quick, seed=seed, note=note), json, {"seed": seed})


def doctor(run: RunArgument = None, run_option: RunOption = None, json: JsonOption = False) -> int:
    """Examine a run: its files, its model, and the step at which it would resume.

    Verifies the checksums of every checkpoint, that all numbers are finite, that the model cannot see the future and
    decodes the same with a cache, and that tokenizer and text are those it was trained with. Changes nothing. Exits
    with 1 if anything is wrong.

    Example: gpt doctor runs/quickstart
    """
    from gpt_cli.selftest.doctor import examine

    path = find_one(run, run_option)
    return _print(examine(path, note), json, {"run": path})


def _print(results: Iterable[Check], json: bool, facts: dict[str, object]) -> int:
    """Print the results of checks, in JSON beside `facts`; return the exit code."""
    checks = list(results)
    passed = all_passed(checks)
    if json:
        print_json({**facts, "passed": passed, "checks": [asdict(check) for check in checks]})
    else:
        print(render_checks(checks))
    return ExitCode.DONE if passed else ExitCode.FAILED
