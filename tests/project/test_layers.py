"""The layout holds: what may import what is checked by tools, and the tools are shown to see a breach."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import ROOT
from tests.support.waiting import HANG

TOOLS = Path(sys.executable).parent


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    command = [TOOLS / "lint-imports", "--no-cache", "--no-logo", "--config", root / "pyproject.toml"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=HANG, check=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "gpt_cli", tmp_path / "gpt_cli", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def plant(file: Path, line: str) -> None:
    file.write_text(f"{line}\n{file.read_text()}")


def test_every_import_obeys_the_layout() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout


def test_what_one_system_alone_has_is_imported_where_that_system_was_asked_for() -> None:
    only_somewhere = {
        "fcntl",
        "grp",
        "msvcrt",
        "posix",
        "pty",
        "pwd",
        "readline",
        "resource",
        "termios",
        "tty",
        "winreg",
    }
    for file in (ROOT / "gpt_cli").rglob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:  # the top level: what happens at import
            names = {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
            names |= {node.module or ""} if isinstance(node, ast.ImportFrom) else set()
            assert not names & only_somewhere, f"{file}:{node.lineno}"


@pytest.mark.parametrize(
    ("file", "line", "complaint"),
    [
        ("errors.py", "import gpt_cli.cli.output", "gpt_cli.errors -> gpt_cli.cli.output"),
        ("model/gpt.py", "import gpt_cli.training", "gpt_cli.model.gpt -> gpt_cli.training"),
        ("run/__init__.py", "import gpt_cli.sampling", "gpt_cli.run -> gpt_cli.sampling"),
        ("tokenizer/alphabets.py", "import torch", "gpt_cli.tokenizer.alphabets -> torch"),
        ("config/schema.py", "import numpy", "gpt_cli.config.schema -> numpy"),
        ("newroom.py", "", "gpt_cli.newroom"),
    ],
)
def test_a_planted_breach_of_the_layout_is_caught(copy: Path, file: str, line: str, complaint: str) -> None:
    (copy / "gpt_cli" / file).touch()
    plant(copy / "gpt_cli" / file, line)
    result = lint_imports(copy)
    assert result.returncode == 1
    assert complaint in result.stdout


@pytest.mark.parametrize("file", ["__init__", "__main__", "errors", "order", "files/new", "config/schema", "cli/main"])
@pytest.mark.parametrize("line", ["import torch", "from numpy import array", "import torch.nn as nn"])
def test_what_help_imports_cannot_import_torch_or_numpy(file: str, line: str) -> None:
    name = f"gpt_cli/{file}.py"
    command = [TOOLS / "ruff", "check", "--no-cache", "--select", "TID253", "--stdin-filename", name, "-"]
    result = subprocess.run(command, cwd=ROOT, input=line, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "TID253" in result.stdout
