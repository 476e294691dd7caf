"""`gpt` in this process, and what it says."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from gpt_cli.cli.main import main


@dataclass(frozen=True)
class Answer:
    """What `gpt` said."""

    code: int
    out: str
    err: str


def as_json(answer: Answer) -> dict[str, Any]:
    """What a command that succeeded printed with --json."""
    assert answer.code == 0, answer.err
    value: dict[str, Any] = json.loads(answer.out)
    return value


Run = Callable[..., Answer]


def in_process(capsys: pytest.CaptureFixture[str], *verb: str) -> Run:
    """What runs `gpt VERB`, with more arguments."""

    def gpt(*arguments: str) -> Answer:
        code = main([*verb, *arguments])
        return Answer(code, *capsys.readouterr())

    return gpt
