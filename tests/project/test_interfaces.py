"""Public interfaces match their snapshots, so that every change of one shows as a diff of a committed file."""

import re
from pathlib import Path

import pytest

from tests.support.command_line_interface import command_line_interface, every_command
from tests.support.interfaces import FILES, FOLDER, difference
from tests.support.json_interface import COMMANDS, MAPS, json_interface
from tests.support.python_interface import python_interface

JSON_OPTIONS = {"--json", "--jsonl"}


def check(name: str, lines: list[str]) -> None:
    if changes := difference(FOLDER / name, lines):
        pytest.fail(f"{changes}\nif intended, rewrite it: python -m tests.support.interfaces", pytrace=False)


def test_the_python_interface_matches_its_snapshot() -> None:
    check("python.txt", python_interface())


def test_the_command_line_matches_its_snapshot() -> None:
    check("command_line.txt", command_line_interface())


@pytest.mark.system
def test_the_json_output_matches_its_snapshot(tmp_path: Path) -> None:
    check("json.txt", json_interface(tmp_path))


def test_every_json_option_is_in_the_snapshot() -> None:
    options = {
        (path, option)
        for path, command in every_command()
        for parameter in command.params
        for option in JSON_OPTIONS.intersection(parameter.opts)
    }
    shown = {(name.partition(" -")[0], option) for name, _ in COMMANDS for option in JSON_OPTIONS & {*name.split()}}
    assert options == shown


def test_every_object_whose_keys_are_data_is_in_the_snapshot() -> None:
    lines = (FOLDER / "json.txt").read_text(encoding="utf-8").splitlines()
    for name, paths in MAPS.items():
        for path in paths:
            beginning = f"{name}: " + f"{path}.{{*}}".removeprefix(".")
            assert any(line.startswith(beginning) for line in lines), beginning


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_snapshot_is_sorted_and_has_no_machine_paths(file: Path) -> None:
    lines = file.read_text(encoding="utf-8").splitlines()
    assert lines == sorted(set(lines))
    assert [line for line in lines if re.search(r"/(home|root|tmp|usr|work|Users)\b| at 0x", line)] == []
