"""The page of promises says what the tests say: every row is a test that exists, and every figure was survived."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.mutations import MUTATIONS, ROOT, planted
from tests.promises import PAGE, PROMISES, TITLES, Figures, is_of, written
from tests.support.command import subprocess_env
from tests.support.promise import Promise, Where

pytestmark = pytest.mark.robust


def table(where: Where) -> dict[str, list[str]]:
    """The rows of a table of the page, by their promise."""
    start = PAGE.read_text().index(TITLES[where])
    lines = re.split(r"\n#+ ", PAGE.read_text()[start + 1 :])[0].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ") and "promise | what" not in line]
    return {row[0]: row[1:] for row in rows}


@pytest.mark.parametrize("where", TITLES)
def test_every_promise_has_its_row_and_every_row_its_promise(where):
    assert list(table(where)) == [promise.promise for promise in PROMISES if promise.where == where]


@pytest.mark.parametrize("where", TITLES)
def test_every_injected_fault_was_survived(where):
    for name, (_, faults, survived, seconds, *_) in table(where).items():
        if where != "suite" and faults == "not measured yet":
            continue
        assert int(faults.replace(",", "")) > 0, name
        assert faults == survived, name
        assert float(seconds) >= 0, name


def test_every_test_that_stands_for_a_promise_exists():
    for test in [test for promise in PROMISES for test in promise.tests] + [mutation.test for mutation in MUTATIONS]:
        file, _, node = test.partition("::")
        source = (ROOT / "tests" / file).read_text()
        name = node.partition("[")[0]
        assert not name or f"def {name}(" in source or f"{name} = " in source, test


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_every_fault_has_a_place_in_the_source_to_be_planted_at(mutation):
    assert planted(mutation, ROOT / "gpt_cli") != (ROOT / "gpt_cli" / mutation.file).read_text()


def test_every_planted_fault_is_on_the_page():
    output = re.findall(r"^\| (.*?) \| (caught|not run yet) \|", PAGE.read_text(), flags=re.M)
    assert [name for name, _ in output] == [mutation.name for mutation in MUTATIONS]
    caught = [verdict for _, verdict in output].count("caught")
    assert f"{caught} of {caught} planted faults that were run were caught." in PAGE.read_text()


def test_only_what_was_measured_is_written_anew():
    page = f"# x\n\n{TITLES['suite']}\n\nold\n\n{TITLES['slow']}\n\n{TITLES['attack']}\n\n## next\n"
    first, second = (promise for promise in PROMISES if promise.where == "suite" and promise in PROMISES[:2])
    first_only = written(page, {first.promise: Figures(3, 3, 1.0)})
    both = written(first_only, {second.promise: Figures(5, 4, 2.0)})
    assert "| 3 | 3 | 1 |" in first_only
    assert first_only.count("| not measured yet | | |") == len(PROMISES) - 1
    assert both.index(first.promise) < both.index(second.promise) < both.index(TITLES["slow"]) < both.index("## next")
    assert written(both, {}) == both
    assert "| 5 | 4 | 2 |" in both


def test_a_case_belongs_to_its_test_and_to_no_other():
    assert Promise("p", "f", ()).where == "suite"
    assert is_of("a.py::test_x[1]", "a.py::test_x")
    assert is_of("a.py::C::test_x", "a.py")
    assert not is_of("a.py::test_xy", "a.py::test_x")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_cuda_device_the_tests_for_it_say_so_and_pass():
    completed = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-m",
            "gpu",
            "-n",
            "0",
            "-rs",
            "-p",
            "no:cacheprovider",
            "tests/training/test_gpu.py",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout
    assert "there is no CUDA device here" in completed.stdout
    assert Path(ROOT / "Makefile").read_text().count("pytest -m gpu -n 0 -rs\n") == 1


def test_the_cost_of_saving_is_measured_by_a_command(tmp_path):
    (tmp_path / "text.txt").write_text("It was the best of times, it was the worst of times.\n" * 40)
    (tmp_path / "tiny.yaml").write_text(
        "data: {source: text.txt}\nmodel: {n_layer: 1, n_head: 2, n_embd: 16, context_length: 16}\n"
        "train: {steps: 6, batch_size: 4}\neval: {every: null}\nsample: {every: null}\nruntime: {device: cpu}\n"
    )
    completed = subprocess.run(
        [
            *(sys.executable, "-m", "bench.training", "--only", "share", "--most", "100"),
            *("--config", "tiny.yaml", "checkpoint.every=2"),
        ],
        cwd=tmp_path,
        env=subprocess_env(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    assert re.search(r"^saving +3 +\d\S+ +\d\S+$", completed.stdout, re.MULTILINE)
    assert re.search(r"^of \S+ s and 6 steps; a checkpoint has \S+ MB$", completed.stdout, re.MULTILINE)
    assert re.search(r"share of a run beside its steps  \S+ %  100 %  yes$", completed.stdout, re.MULTILINE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.txt", "tiny.yaml"]
