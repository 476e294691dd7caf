"""What every test may count on: a cache of its own, a `gpt` to run, and examples that repeat."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[1]

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # workers share the cores; torch reads it when imported

# The same examples in every run, so that a red suite stays red; `--hypothesis-profile explore` looks further.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", deadline=None, database=None, max_examples=1000)
settings.load_profile("repeatable")


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    rc: int
    stdout: str
    stderr: str


@pytest.fixture(scope="session")
def _kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where compiled kernels are kept from one test to the next, and from one worker to the other."""
    mine = tmp_path_factory.getbasetemp()
    folder = (mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine) / "kernels"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def _isolated(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory, _kernels: Path
) -> Iterator[None]:
    """A cache of its own for each test, but for the kernels, and no setting of the developer's shell."""
    cache = tmp_path_factory.mktemp("cache")
    shutil.copytree(_kernels, cache / "native")
    monkeypatch.setenv("GPT_CACHE", str(cache))
    monkeypatch.delenv("GPT_DEBUG", raising=False)
    yield
    for kernel in (cache / "native").glob("*.so"):
        if not (_kernels / kernel.name).exists():
            kernel.replace(_kernels / kernel.name)  # whole or not at all: the other worker may be copying


@pytest.fixture(autouse=True)
def _torch_as_it_starts() -> Iterator[None]:
    """Undo, after a test, the process-wide switches of torch that a run sets."""
    yield
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_flush_denormal(False)
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")


@pytest.fixture(autouse=True, scope="session")
def _matplotlib_outside_the_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["MPLCONFIGDIR"] = str(tmp_path_factory.mktemp("matplotlib"))  # its font cache


@pytest.fixture
def gpt(tmp_path: Path) -> Callable[..., Outcome]:
    """`gpt("train", "--help", stdin="", cwd=tmp_path, timeout=120, NAME="value")` runs it in a process."""

    def run(
        *arguments: str | Path,
        stdin: str = "",
        cwd: Path = tmp_path,
        timeout: float = 120,
        **environment: str,
    ) -> Outcome:
        done = subprocess.run(
            [sys.executable, "-m", "gpt_cli", *map(str, arguments)],
            input=stdin.encode(),
            capture_output=True,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            timeout=timeout,
            check=False,
        )
        return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture
def gpt_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Outcome]]:
    """`gpt_here("train", "--help")` runs it in this process, in `tmp_path`: seconds less than a process of its own."""
    from gpt_cli.cli.main import main

    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads() if (torch := sys.modules.get("torch")) else None

    def run(*arguments: str | Path) -> Outcome:
        capfd.readouterr()
        return Outcome(main(list(map(str, arguments))), *capfd.readouterr())

    yield run
    if (torch := sys.modules.get("torch")) and threads:
        torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder `shared/data` beside the checkout, which not every machine has."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here")
    return folder
