"""Results of checks, and a table of several."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gpt_cli.errors import UserError
from gpt_cli.terminal.table import render_table


@dataclass(frozen=True)
class Check:
    """One thing looked at: whether it is as it should be, and what was seen."""

    name: str
    passed: bool
    figure: str


def attempt(name: str, check: Callable[[], Check]) -> Check:
    """The result of `check`; a UserError that stops it is a finding, too."""
    try:
        return check()
    except UserError as error:
        return Check(name, False, " ".join(error.message.split()))


def render_checks(checks: Sequence[Check]) -> str:
    rows = [(check.name, "ok" if check.passed else "FAILED", check.figure) for check in checks]
    return render_table(rows, header=("check", "result", "detail"))


def all_passed(checks: Iterable[Check]) -> bool:
    return all(check.passed for check in checks)
