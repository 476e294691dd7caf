"""Whatever a text is, looking at it gives an answer or one clear error: never a traceback, never a bug's exit code."""

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpt_cli.cli.main import main
from gpt_cli.terminal.escape import escape_control_chars

pytestmark = pytest.mark.robust

VERBS = (
    ["data", "inspect", "odd.txt"],
    ["data", "inspect", "odd.txt", "--window", "3"],
)

ALPHABETS = [
    "ab",
    "a",
    "\n",
    "\r\n",
    " \t\n",
    "\x00\x01\x1b[31m\x7f\x85",
    "\u202e\u200f\u2066abc\n",
    "\u200b\u200d\ufeff\u00ad",
    "e\u0301\u0300\u0308a",
    "ßüéñ\n",
    "שלוםمرحبا ",
    "漢字仮名交じり文。\n",
    "😀👩\u200d👩\u200d👧🏳️\u200d🌈",
    "\ue000\uf8ff\ufffd\ufffe\U0010ffff",
    "\u2028\u2029\x0b\x0c\n",
    "--==__  ..",
    '{"text": "a"}\n',
    "<|endoftext|> ",
    "$x_1$ %s \\n {0}",
    "".join(map(chr, range(0x4E00, 0x4F00))),
    "".join(chr(code) for code in range(0x10000, 0x11000, 7)),
    "0123456789,.-eE+",
]


def odd_bytes(count: int) -> Iterator[bytes]:
    """Texts of every script and none, of every length, some cut or spoilt."""
    rng = random.Random(20)
    for number in range(count):
        alphabet = "".join(rng.sample(ALPHABETS, rng.choice([1, 1, 1, 2, 5])))
        length = rng.choice([0, 1, 2, 3, 19, 20, 21, 31, 32, 33, 63, 100, 300, 900])
        text = "".join(rng.choice(alphabet) for _ in range(length))
        if number % 4 == 0:  # something to find twice
            text = text[: rng.randrange(1, 80)] * rng.randrange(1, 30)
        data = text.encode(rng.choice(["utf-8"] * 8 + ["utf-16", "utf-16-le", "utf-8-sig"]))
        if number % 9 == 0:
            data = data[: rng.randrange(len(data) + 1)]
        if number % 11 == 0 and data:
            spoilt = bytearray(data)
            spoilt[rng.randrange(len(data))] = rng.choice([0x00, 0x80, 0xC0, 0xED, 0xFF])
            data = bytes(spoilt)
        yield data


@pytest.mark.parametrize("count", [120, pytest.param(2_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_an_odd_text_gives_an_answer_or_one_clear_error(
    verb: list[str], count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    answers = 0
    for number, data in enumerate(odd_bytes(count)):
        Path("odd.txt").write_bytes(data)
        as_json = number % 2 == 0
        code = main([*verb, "--json"] if as_json else verb)
        out, err = capsys.readouterr()
        assert escape_control_chars(out + err, keep="\n") == out + err, data
        if code == 0:
            answers += 1
            assert "error: " not in err, data
            _check(json.loads(out, parse_constant=_refuse)) if as_json else _expect_some(out)
        else:
            assert code in (1, 2), (data, err)
            assert (out, err.count("error: ")) == ("", 1), (data, out, err)
    assert answers > count / 2
    assert [path.name for path in Path().iterdir()] == ["odd.txt"]


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def _check(value: object) -> None:
    """Every figure is finite, and none is below zero."""
    match value:
        case dict():
            for item in value.values():
                _check(item)
        case list():
            for item in value:
                _check(item)
        case float() | int():
            assert math.isfinite(value)
            assert value >= 0


def _expect_some(out: str) -> None:
    assert out.strip()
