"""`make flaky` finds a test whose outcome depends on the order or on the run, and only such a test."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flaky import neighbours
from tests.support.command import ROOT

CONFTEST = "from tests.support.shuffle import pytest_addoption, pytest_collection_modifyitems\n"
SOUND = """
import pytest

@pytest.mark.parametrize("n", range(3))
def test_sound(n): pass

def test_skipped(): pytest.skip()
"""
PLANTED = """
from pathlib import Path
seen = []

def test_every_other_time():
    count = Path("count")
    count.write_text(count.read_text() + "x" if count.exists() else "x")
    assert len(count.read_text()) % 2

def test_before(): seen.append(1)
def test_that_needs_the_one_before(): assert seen

class TestClass:
    def test_always_red(self): assert 1 == 2
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_sound.py").write_text(SOUND)
    return tmp_path


def flaky(suite: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.flaky", "--busy", "0", *arguments]
    return subprocess.run(command, cwd=suite, env=bare(), capture_output=True, text=True, check=False)


def bare() -> dict[str, str]:
    """An environment in which pytest is soon there: without plugins, those of this run included."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return {**outer, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}


def test_what_depends_on_the_run_or_on_the_order_is_listed_and_what_is_always_red(suite: Path) -> None:
    (suite / "test_planted.py").write_text(PLANTED)
    completed = flaky(suite, "--runs", "4", "--seed", "1")
    assert completed.returncode == 1, completed.stdout + completed.stderr
    lines = completed.stdout.splitlines()
    begins = [number for number, line in enumerate(lines) if line.startswith("--shuffle ")]
    assert [lines[number].split(":")[0] for number in begins] == [f"--shuffle {seed}" for seed in (1, 2, 3, 4)]
    assert all(lines[number + 1].startswith("    test_planted.py::") for number in begins)  # told at once
    summary, *listed = lines[max(n for n, line in enumerate(lines) if line.startswith("    test_planted.py::")) + 1 :]
    assert summary == "2 of 8 tests changed their outcome, 1 fail always"
    assert [line for line in listed if not line.startswith(" ")] == [
        "test_planted.py::test_every_other_time",
        "test_planted.py::test_that_needs_the_one_before",
        "test_planted.py::TestClass::test_always_red",
    ]
    assert "    failed 2 of 4: --shuffle 2, 4" in listed
    assert "    failed 4 of 4: --shuffle 1, 2, 3, 4" in listed
    assert any("assert 1 == 2" in line for line in listed)


def test_a_sound_suite_has_nothing_to_list(suite: Path) -> None:
    completed = flaky(suite, "--runs", "2", "test_sound.py")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "0 of 4 tests changed their outcome, 0 fail always" in completed.stdout


def test_what_cannot_be_run_is_an_error(suite: Path) -> None:
    completed = flaky(suite, "--runs", "2", "test_absent.py")
    assert completed.returncode == 2
    assert completed.stderr.startswith("error: pytest ended with 4")


def test_an_order_is_that_of_its_seed_and_keeps_the_tests_of_a_file_together(suite: Path) -> None:
    (suite / "test_other.py").write_text(SOUND)

    def order(seed: int) -> list[str]:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", f"--shuffle={seed}"]
        completed = subprocess.run(command, cwd=suite, env=bare(), capture_output=True, text=True, check=True)
        return [line for line in completed.stdout.splitlines() if "::" in line]

    orders = [order(seed) for seed in (1, 2, 2)]
    assert orders[0] != orders[1] == orders[2]
    assert sorted(orders[0]) == sorted(orders[1])
    for names in orders:
        files = [name.partition("::")[0] for name in names]
        assert sum(file != following for file, following in itertools.pairwise(files)) == 1


def test_the_busy_neighbours_end_with_what_they_disturb() -> None:
    with neighbours(2) as processes:
        assert [process.poll() for process in processes] == [None, None]
    assert all(process.returncode for process in processes)


@pytest.mark.parametrize("_", range(2))
def test_torch_draws_the_same_numbers_in_every_test(_: int) -> None:
    import torch

    assert torch.equal(torch.randn(3), torch.randn(3, generator=torch.Generator().manual_seed(0)))
