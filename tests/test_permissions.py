"""An ordinary user: what may not be read or written is told in one error with its way out, or is done without."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpt_cli.cli.main import main

pytestmark = [
    pytest.mark.robust,
    pytest.mark.skipif(sys.platform != "linux", reason="root lays down its rights by a call of Linux"),
]

TINY = [
    "model.n_layer=1",
    "model.n_head=1",
    "model.n_embd=8",
    "model.context_length=8",
    "train.batch_size=1",
    "train.steps=1",
    "sample.every=null",
    "runtime.threads=1",
]
BOOK = "the king and the queen went to the town, and the mouse lived in a shoe there.\n" * 40
ORDINARY = """
import ctypes, os, sys
if os.geteuid() == 0:
    for right in (1, 2):  # to override permissions, and to read whatever they say
        assert ctypes.CDLL(None).prctl(24, right, 0, 0, 0) == 0
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
ROWS = """
import contextlib, io, json, os, sys
from gpt_cli.cli.main import main

class Stream(io.TextIOWrapper):
    def __init__(self):
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

ended = []
for command, variables in json.load(sys.stdin):
    os.environ.update(variables)
    streams = Stream(), Stream()
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        code = main(command)
    ended.append([code, *(stream.buffer.getvalue().decode() for stream in streams)])
print(json.dumps(ended))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Texts and runs of which some are closed, and folders that may not be written to."""
    place = tmp_path_factory.mktemp("ordinary")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("GPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        for name in ("book.txt", "secret.txt", "nox/a.txt", "nor/a.txt", "half/1.txt", "half/2.txt", "fixed/book.txt"):
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_text(BOOK)
        assert main(["train", "book.txt", *TINY, "run_dir=runs/open"]) == 0
        for run in ("closed", "deaf", "weights"):
            shutil.copytree("runs/open", f"runs/{run}")
        shutil.copytree("runs/open", "fixed/run")
        shutil.copy("runs/open/config.yaml", "secret.yaml")
        closed = ["secret.txt", "secret.yaml", "half/2.txt", "runs/closed", "runs/deaf/config.yaml"]
        closed += [*Path("runs/weights").rglob("model.safetensors")]
        for path in (*map(Path, closed),):
            path.chmod(0)
        Path("nox").chmod(0o600)
        Path("nor").chmod(0o300)
        for folder, _, files in os.walk("fixed", topdown=False):
            for file in files:
                Path(folder, file).chmod(0o444)
            Path(folder).chmod(0o555)
        Path("cache").mkdir(mode=0o555)
        Path("home/.cache/gpt").mkdir(parents=True)
        Path("home").chmod(0)
        yield place
        for folder in ("home", "nox", "nor", "runs/closed", "fixed", *Path("fixed").rglob("*/")):
            Path(folder).chmod(0o700)


def run(place: Path, rows: list[tuple[str, dict[str, str]]], folder: str = ".") -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of each command, without the rights of root."""
    given = json.dumps([(command.replace("TINY", " ".join(TINY)).split(), variables) for command, variables in rows])
    done = subprocess.run(
        [sys.executable, "-c", ORDINARY, "-c", ROWS],
        input=given,
        capture_output=True,
        text=True,
        cwd=place / folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(row) for row in json.loads(done.stdout)]


def check(place: Path, rows: dict[str, tuple[int, str]], folder: str = ".", **variables: str) -> None:
    """Each command ends with its code and says its words, without a traceback and with at most one error."""
    wrong = []
    for command, (code, out, err) in zip(rows, run(place, [(row, variables) for row in rows], folder), strict=True):
        said = " ".join((out + err).replace(str(place), "PLACE").split())
        wanted, words = rows[command]
        faults = [f"exit code {code}, not {wanted}"] if code != wanted else []
        faults += [f"does not say {word!r}" for word in words.split(" | ") if word not in said]
        if "Traceback" in said or "a bug in gpt" in said or err.count("error: ") != (code != 0):
            faults.append("not one error")
        if faults:
            wrong.append(f"$ gpt {command}\n  {'; '.join(faults)}\n  {said[-600:]}")
    assert not wrong, "\n\n".join(wrong)


def test_what_may_not_be_read_is_one_error_with_the_command_that_opens_it(place):
    check(
        place,
        {
            "train secret.txt TINY": (1, "cannot read secret.txt: permission denied hint: its owner may open it:"),
            "train secret.txt TINY ": (1, "chmod +r secret.txt"),
            "train nox TINY": (1, "nox | permission denied | chmod +rx PLACE/nox"),
            "train nox/a.txt TINY": (1, "chmod +rx PLACE/nox"),
            "train nor TINY": (1, "chmod +rx nor"),
            "train half TINY": (1, "cannot read half/2.txt: permission denied | chmod +r half/2.txt"),
            "score secret.txt --run runs/open": (1, "chmod +r secret.txt"),
            "sample runs/open --prompt-file secret.txt": (2, "cannot read secret.txt: permission denied | chmod +r"),
            "sample runs/open --prompt-file=secret.txt": (2, "chmod +r secret.txt"),
            "info secret.yaml": (2, "cannot read secret.yaml: permission denied | chmod +r secret.yaml"),
            "train secret.yaml": (2, "cannot read the config file secret.yaml: permission denied"),
            "sample runs/closed": (2, "cannot read runs/closed: permission denied | chmod +rx runs/closed"),
            "train runs/closed": (1, "permission denied | chmod +rx PLACE/runs/closed"),
            "sample runs/deaf": (1, "cannot read runs/deaf/config.yaml: permission denied | chmod +r runs/deaf/"),
            "sample runs/weights": (1, "model.safetensors: permission denied | chmod +r runs/weights/checkpoints/"),
        },
    )


def test_a_run_that_may_not_be_read_does_not_hide_the_others(place):
    check(place, {"runs": (0, "open | closed | cannot be read: permission denied | deaf | permission denied")})
    check(place, {"runs --dir nox": (0, "there are no runs in nox")})


def test_a_run_that_may_not_be_written_to_is_read_as_any_other_and_a_copy_of_it_can_be_trained(place):
    copied = "a copy of it can be trained: cp -R run COPY; chmod -R u+w COPY; gpt train COPY"
    cannot = (1, f"cannot write run/lock: permission denied | {copied}")
    check(
        place,
        {
            "sample run --max-new-tokens 2": (0, "run, step 1"),
            "eval run": (0, "loss"),
            "score book.txt --run run --json": (0, "bpb"),
            "doctor run": (0, "step-00000001 ok"),
            "info run": (0, "parameters"),
            "diff run run": (0, "the runs do not differ"),
            "attention run --prompt the --ascii": (0, "head"),
            "runs --dir .": (0, "complete"),
            "train run train.steps=2": cannot,
            "runs rm run --yes": (1, "cannot move run: permission denied"),
        },
        folder="fixed",
    )
    shell = copied.partition(": ")[2].rpartition("; ")[0].replace("run COPY", f"{place / 'fixed' / 'run'} COPY")
    subprocess.run([sys.executable, "-c", ORDINARY, "-c", f"import os; os.system({shell!r})"], cwd=place, check=True)
    check(place, {"train COPY train.steps=2": (0, "step 2 is saved")})


def test_a_folder_that_may_not_be_written_to_is_one_error_before_the_work(place):
    choose = "permission denied hint: choose"
    check(
        place,
        {
            "train book.txt TINY": (1, f"cannot create runs/book: {choose} a directory you may write to"),
            "tokenize book.txt --out store": (1, f"cannot create store: {choose}"),
            "sweep run/config.yaml optim.lr=0.1,0.2": (1, f"cannot create sweeps/run: {choose}"),
            "export run out": (1, f"cannot create out: {choose}"),
            "export run out.gguf": (1, f"cannot write out.gguf: {choose}"),
            "report run --no-baselines": (1, f"cannot write report.html: {choose}"),
            "plot run": (2, f"loss.png cannot be written: {choose} another file with -o"),
            "draw mask": (2, f"mask.png cannot be written: {choose} another file with -o"),
            "score book.txt --run run --html s.html": (1, f"cannot write s.html: {choose}"),
            "config init": (1, f"cannot write config.yaml: {choose}"),
        },
        folder="fixed",
    )


@pytest.mark.parametrize("cache", ["cache", "home/.cache/gpt"])
def test_without_a_cache_that_can_be_used_everything_works_and_says_how_to_have_one(place, cache):
    name = Path(cache).parts[0]
    check(
        place,
        {
            f"train book.txt TINY runtime.engine=torch run_dir=runs/of-{name}": (
                0,
                "the tokens are not cached | GPT_CACHE names another folder | step 1 is saved",
            ),
            f"sample runs/of-{name} --max-new-tokens 2 --engine torch": (0, "step 1, seed"),
            f"eval runs/of-{name}": (0, "the tokens are not cached | GPT_CACHE names another folder"),
            "data list": (0, "tiny-shakespeare"),
        },
        GPT_CACHE=str(place / cache),
    )


def test_a_download_into_a_cache_that_cannot_be_used_says_how_to_have_another(place):
    rows = {"data get tiny-shakespeare": (1, "permission denied hint: GPT_CACHE names another folder")}
    check(place, rows, GPT_CACHE=str(place / "cache"))
    check(place, rows, GPT_CACHE=str(place / "home/.cache/gpt"))
