"""docs/reference says what the schema and the verbs say, and the example of a verb is one that it takes."""

import re
import shlex
from typing import Any

import pytest
import typer

from docs.make_reference import commands_page, config_page, every_command, example, values
from gpt_cli.config.keys import fields, schema_of
from tests.support.command import ROOT, parse_arguments

PAGES = ROOT / "docs" / "reference"
COMMANDS = dict(every_command())


@pytest.mark.parametrize(("name", "written"), [("config.md", config_page), ("commands.md", commands_page)])
def test_the_page_is_what_make_reference_writes(name: str, written: Any) -> None:
    assert (PAGES / name).read_text(encoding="utf-8") == written(), "run: make reference"


def test_every_key_and_every_option_has_its_row() -> None:
    page = config_page()
    for key in fields():
        assert page.count(f"| `{key}`") == 1, key
    page = commands_page()
    for path, context in COMMANDS.items():
        section = page[page.index(f"\n## {path}\n") :].partition("\n## ")[2].partition("\n## ")[0]
        for parameter in context.command.params:
            written = (
                parameter.opts if parameter.param_type_name == "option" else [parameter.metavar.replace("|", "\\|")]
            )
            assert parameter.name == "help" or f"| `{written[-1]}" in section or f", {written[-1]}" in section, (
                path,
                written,
            )


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("model.n_layer", "whole number, 1 to 10,000"),
        ("model.n_kv_head", "whole number, at least 1, or `null`"),
        ("train.steps", "whole number, at least 0"),
        ("optim.betas", "list of 2 numbers, each at least 0 and below 1"),
        ("optim.ema", "number, above 0 and below 1, or `null`"),
        ("runtime.compile", "`auto`, `reduce-overhead`, `true` or `false`"),
        ("data.val_source", "text, not empty, list of texts, or `null`"),
        ("lora.targets", "list of `qkv`, `out`, `up` or `down`"),
    ],
)
def test_what_a_key_takes_is_said_with_its_limits(key: str, words: str) -> None:
    assert values(schema_of(key)) == words


@pytest.mark.parametrize("path", COMMANDS)
def test_the_example_of_a_verb_is_one_that_it_takes_and_stands_on_one_line(path: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    command = COMMANDS[path].command
    line = example(command)
    assert line.startswith(path)
    assert f"  Example: {line}\n" in command.get_help(COMMANDS[path])
    parse_arguments(shlex.split(line.partition(" > ")[0])[1:])
    with pytest.raises(typer.TyperException):
        parse_arguments([*shlex.split(path)[1:], "--no-such-option"])


@pytest.mark.parametrize("path", COMMANDS)
def test_the_help_of_a_verb_fits_into_80_columns_and_names_no_type_of_python(path: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = COMMANDS[path].command.get_help(COMMANDS[path])
    assert max(map(len, text.splitlines())) <= 80
    assert not re.search(r"<(list\[|int|float|str|path|PATH)|range>", text)
