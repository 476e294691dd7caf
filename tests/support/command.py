"""`gpt` in this process, and what it says."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from gpt_cli.cli.main import main


@dataclass(frozen=True)
class Answer:
    """What `gpt` said."""

    code: int
    out: str
    err: str


Run = Callable[..., Answer]


def in_process(capsys: pytest.CaptureFixture[str], *verb: str) -> Run:
    """What runs `gpt VERB`, with more arguments."""

    def gpt(*arguments: str) -> Answer:
        code = main([*verb, *arguments])
        return Answer(code, *capsys.readouterr())

    return gpt
