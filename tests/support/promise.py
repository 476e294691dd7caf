"""A row of the tables in docs/reliability.md."""

from dataclasses import dataclass
from typing import Literal

Where = Literal["suite", "slow", "attack"]


@dataclass(frozen=True)
class Promise:
    """What is promised, how it is attacked, and by which tests (pytest's ids, without their parameters).

    `where` is the table that it belongs to: that of `make test`, `make test-slow` or `make attack`.
    """

    promise: str
    fault: str
    tests: tuple[str, ...]
    where: Where = "suite"
