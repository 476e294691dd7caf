"""Snapshots of the public interfaces, in tests/project/interfaces: what a change of them changes for others.

python -m tests.support.interfaces      writes them anew
"""

import difflib
import os
import tempfile
from pathlib import Path

from tests.support.command import ROOT
from tests.support.command_line_interface import command_line_interface
from tests.support.json_interface import json_interface
from tests.support.python_interface import python_interface

FOLDER = ROOT / "tests" / "project" / "interfaces"
FILES = tuple(FOLDER / name for name in ("python.txt", "command_line.txt", "json.txt"))


def difference(file: Path, lines: list[str]) -> str:
    """The diff from a snapshot to the interface as it is now; empty if they are equal."""
    committed = file.read_text(encoding="utf-8").splitlines()
    return "\n".join(difflib.unified_diff(committed, lines, file.name, "now", n=0, lineterm=""))


def main() -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["GPT_CACHE"] = str(Path(folder, "cache"))
        Path(folder, "work").mkdir()
        python, command_line, outputs = FILES
        for file, lines in (
            (python, python_interface()),
            (command_line, command_line_interface()),
            (outputs, json_interface(Path(folder, "work"))),
        ):
            file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            print(file.relative_to(ROOT))


if __name__ == "__main__":
    main()
