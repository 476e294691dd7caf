"""A wheel and a source distribution hold all that the program needs, and nothing of the checkout is missed."""

import email
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from gpt_cli import __version__
from tests.support.command import ROOT

pytestmark = pytest.mark.system

TINY = (
    *("model.n_layer=1", "model.n_embd=16", "model.n_head=2", "model.context_length=16", "train.steps=3"),
    *("train.batch_size=2", "eval.every=null", "sample.max_new_tokens=4"),
)
USES = [
    ["train", "text.txt", "run_dir=run", *TINY, f"runtime.engine={'native' if shutil.which('cc') else 'auto'}"],
    ["sample", "--run", "run", "--prompt", "the ", "--max-new-tokens", "5"],
    ["report", "run", "-o", "report.html"],
]


def tracked() -> set[str]:
    """The files of the checkout, those not yet committed too."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    return {name for name in listed if name and (ROOT / name).is_file()}


def build(source: Path, kind: str, into: Path) -> Path:
    """What `make dist` does, in another directory: one file in `into`."""
    code = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, into], cwd=source, check=True, capture_output=True)
    (archive,) = into.iterdir()
    return archive


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkout = tmp_path_factory.mktemp("checkout")
    for name in tracked():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    return build(checkout, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source distribution alone."""
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    (source,) = unpacked.iterdir()
    return build(source, "wheel", tmp_path_factory.mktemp("wheel"))


def test_the_source_distribution_holds_every_file_of_the_checkout(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert tracked() - names == set()


def test_the_wheel_holds_every_file_of_the_package_its_licence_and_its_entry_point(wheel: Path) -> None:
    info = f"gpt_cli-{__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.startswith(info)}
        assert names == {name for name in tracked() if name.startswith("gpt_cli/")}
        assert "gpt = gpt_cli.__main__:run" in archive.read(f"{info}/entry_points.txt").decode()
        assert archive.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
        metadata = email.message_from_bytes(archive.read(f"{info}/METADATA"))
    assert (metadata["Version"], metadata["License-Expression"]) == (__version__, "MIT")


def test_the_wheel_alone_trains_samples_and_reports(wheel: Path, tmp_path: Path) -> None:
    site, home = tmp_path / "site", tmp_path / "home"
    zipfile.ZipFile(wheel).extractall(site)
    home.mkdir()
    (home / "text.txt").write_text("the mouse lived in a shoe. " * 60)
    code = (
        "import sys, gpt_cli; from gpt_cli.cli.main import main\n"
        f"assert gpt_cli.__file__.startswith({str(site)!r}), gpt_cli.__file__\n"
        f"for use in {USES!r}: assert main(use) == 0, use\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}
    completed = subprocess.run([sys.executable, "-c", code], cwd=home, env=environment, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr
    assert "compiled code" in completed.stderr or not shutil.which("cc")
    assert "<html" in (home / "report.html").read_text()


@pytest.mark.system
def test_in_a_fresh_environment_the_installed_wheel_trains_samples_and_reports(wheel: Path, tmp_path: Path) -> None:
    """Needs the network, or an index of packages, as any installation does."""
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    home = tmp_path / "home"
    home.mkdir()
    (home / "text.txt").write_text("the mouse lived in a shoe. " * 60)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    install = [programs / "pip", "install", "--quiet", "--no-compile", "--constraint", ROOT / "constraints.txt", wheel]
    for command in (install, *([programs / "gpt", *use] for use in USES)):
        completed = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True)
        assert completed.returncode == 0, (command, completed.stderr)
    assert "<html" in (home / "report.html").read_text()
