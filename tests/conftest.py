"""What every test may count on: a cache of its own, a `gpt` to run, and examples that repeat."""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("tests.support", "tests.portable")  # before any of them is imported

from tests.support.caches import cache_with, compile_engines, forget_old
from tests.support.command import ROOT, Outcome, Run, in_process, subprocess_env
from tests.support.seeds import pytest_fixture_setup, pytest_runtest_call, pytest_runtest_setup  # noqa: F401
from tests.support.shuffle import pytest_addoption, pytest_collection_modifyitems  # noqa: F401
from tests.support.waiting import HANG

NUMBERS = itertools.count()

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # workers share the cores; torch reads it when imported

# The same examples in every run, so that a red suite stays red; `--hypothesis-profile explore` looks further. Nothing
# is timed, neither an example nor the making of one (too_slow); examples of a test may share its folder.
UNTIMED = settings(
    deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.register_profile("repeatable", UNTIMED, derandomize=True)
settings.register_profile("explore", UNTIMED, max_examples=1000)
settings.load_profile("repeatable")


def pytest_configure() -> None:
    """Have signals end what the tests start, also where a shell that runs in the background has them ignored."""
    for number in (signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGINT)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(scope="session")
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What was compiled by other tests, by the other worker, and by the runs of pytest before this one.

    The name of a kernel tells from which sources, by what and for what it was compiled.
    """
    cache = getattr(request.config, "cache", None)  # not with `-p no:cacheprovider`
    folder: Path = tmp_path_factory.mktemp("kernels") if cache is None else cache.mkdir("kernels")
    forget_old(folder)
    compile_engines(folder, tmp_path_factory.mktemp("engines"))
    return folder


@pytest.fixture(scope="session")
def compiled(kernels: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A kernel, or the reason why there is none."""
    from gpt_cli.cpu.common.kernel import KernelUnavailable, load_kernel

    with cache_with(kernels, tmp_path_factory.mktemp("compiled") / "cache"):
        try:
            load_kernel()
        except KernelUnavailable as error:
            pytest.skip(f"no kernel here: {error}")


@pytest.fixture(autouse=True, scope="session")
def _caches(tmp_path_factory: pytest.TempPathFactory, kernels: Path) -> Iterator[Path]:
    """A cache for what several tests share, in a folder for more: `mktemp` would look through all that there were."""
    folder = tmp_path_factory.mktemp("caches")
    with cache_with(kernels, folder / "shared"):
        yield folder


@pytest.fixture(autouse=True)
def _isolated(_caches: Path, kernels: Path) -> Iterator[None]:
    """A cache of its own for each test, but for the kernels, and no setting of the developer's shell."""
    with cache_with(kernels, _caches / str(next(NUMBERS))):
        yield


@pytest.fixture(scope="session")
def _threads() -> int:
    import torch

    return torch.get_num_threads()


@pytest.fixture(autouse=True)
def _torch_as_it_starts(_threads: int) -> Iterator[None]:
    """Undo, after a test, the process-wide switches of torch that a run sets."""
    import torch

    yield
    torch.set_num_threads(_threads)
    torch.set_flush_denormal(False)
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")


@pytest.fixture(autouse=True, scope="session")
def _matplotlib_outside_the_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["MPLCONFIGDIR"] = str(tmp_path_factory.mktemp("matplotlib"))  # its font cache


@pytest.fixture
def gpt(tmp_path: Path) -> Run:
    """`gpt("train", "--help", stdin="", cwd=tmp_path, NAME="value")` runs it in a process."""

    def run(
        *arguments: str | Path,
        stdin: str = "",
        cwd: Path = tmp_path,
        timeout: float = HANG,
        **environment: str,
    ) -> Outcome:
        completed = subprocess.run(
            [sys.executable, "-m", "gpt_cli", *map(str, arguments)],
            input=stdin.encode(),
            capture_output=True,
            cwd=cwd,
            env=subprocess_env(**environment),
            timeout=timeout,
            check=False,
        )
        return Outcome(completed.returncode, completed.stdout.decode(), completed.stderr.decode())

    return run


@pytest.fixture
def gpt_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """`gpt_here("train", "--help")` runs it in this process, in `tmp_path`: seconds less than a process of its own."""
    monkeypatch.chdir(tmp_path)
    return in_process(capfd)


@pytest.fixture
def sample(capsys: pytest.CaptureFixture[str]) -> Run:
    """`sample(*arguments)` runs `gpt sample` in this process."""
    return in_process(capsys, "sample")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder `shared/data` beside the checkout, which not every machine has."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here")
    return folder


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small parameters are cut as large ones are, here and in processes that are started."""
    from gpt_cli.distributed import norms

    monkeypatch.setattr(norms, "PIECE", 64)
    monkeypatch.setattr(norms, "CUT_FROM", 64)
    monkeypatch.setenv("CUT", "64")
