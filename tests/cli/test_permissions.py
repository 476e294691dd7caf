"""An ordinary user: what may not be read or written is told in one error with its way out, or is done without."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpt_cli.cli.main import main
from gpt_cli.files.os_errors import reason_of

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
OWNER = f"belongs to {Path(__file__).owner()}"
SKIPPED = 77  # as tests of automake say it
ORDINARY = f"""
import ctypes, os, sys
if os.geteuid() == 0:
    call = ctypes.CDLL(None).prctl
    for right in (1, 2):  # to override permissions, and to read whatever they say
        if call(23, right, 0, 0, 0) and call(24, right, 0, 0, 0):  # it has the right, and cannot lay it down
            sys.exit({SKIPPED})
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
def work_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Texts and runs of which some are closed, and folders that may not be written to."""
    tried = subprocess.run([sys.executable, "-c", ORDINARY, "-c", ""], capture_output=True, text=True, check=False)
    if tried.returncode == SKIPPED:
        pytest.skip("root without CAP_SETPCAP cannot lay down its rights")
    assert tried.returncode == 0, tried.stderr
    work_dir = tmp_path_factory.mktemp("ordinary")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work_dir)
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
        yield work_dir
        for folder in ("home", "nox", "nor", "runs/closed", "fixed", *Path("fixed").rglob("*/")):
            Path(folder).chmod(0o700)


def run(work_dir: Path, rows: list[tuple[str, dict[str, str]]], folder: str = ".") -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of each command, without the rights of root."""
    requests = json.dumps([(command.replace("TINY", " ".join(TINY)).split(), variables) for command, variables in rows])
    completed = subprocess.run(
        [sys.executable, "-c", ORDINARY, "-c", ROWS],
        input=requests,
        capture_output=True,
        text=True,
        cwd=work_dir / folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
        timeout=300,
    )
    assert completed.returncode == 0, completed.stderr
    return [tuple(row) for row in json.loads(completed.stdout)]


def check(work_dir: Path, rows: dict[str, tuple[int, str]], folder: str = ".", **variables: str) -> None:
    """Each command ends with its code and says its words, without a traceback and with at most one error."""
    failures = []
    for command, (code, out, err) in zip(rows, run(work_dir, [(row, variables) for row in rows], folder), strict=True):
        output = " ".join((out + err).replace(str(work_dir), "PLACE").replace(OWNER, "belongs to OWNER").split())
        expected_code, words = rows[command]
        faults = [f"exit code {code}, not {expected_code}"] if code != expected_code else []
        faults += [f"does not say {word!r}" for word in words.split(" | ") if word not in output]
        if "Traceback" in output or "a bug in gpt" in output or err.count("error: ") != (code != 0):
            faults.append("not one error")
        if faults:
            failures.append(f"$ gpt {command}\n  {'; '.join(faults)}\n  {output[-600:]}")
    assert not failures, "\n\n".join(failures)


def test_what_may_not_be_read_is_one_error_with_its_owner(work_dir):
    check(
        work_dir,
        {
            "train secret.txt TINY": (1, "cannot read secret.txt: permission denied (secret.txt belongs to OWNER)"),
            "train nox TINY": (1, "permission denied (nox belongs to OWNER)"),
            "train nox/a.txt TINY": (1, "nox/a.txt: permission denied (nox belongs to OWNER)"),
            "train nor TINY": (1, "nor: permission denied (nor belongs to OWNER)"),
            "train half TINY": (1, "cannot read half/2.txt: permission denied (half/2.txt belongs to OWNER)"),
            "score secret.txt --run runs/open": (1, "permission denied (secret.txt belongs to OWNER)"),
            "sample runs/open --prompt-file secret.txt": (2, "'secret.txt' is not readable"),
            "sample runs/open --prompt-file=secret.txt": (2, "'secret.txt' is not readable"),
            "info secret.yaml": (2, "'secret.yaml' is not readable"),
            "train secret.yaml": (2, "cannot read the config file secret.yaml: permission denied"),
            "sample runs/closed": (2, "'runs/closed' is not readable"),
            "train runs/closed": (1, "permission denied (runs/closed belongs to OWNER)"),
            "sample runs/deaf": (
                1,
                "cannot read the config file runs/deaf/config.yaml: permission denied (runs/deaf/",
            ),
            "sample runs/weights": (1, "model.safetensors: permission denied (runs/weights/checkpoints/step-00000001/"),
        },
    )


def test_a_run_that_may_not_be_read_does_not_hide_the_others(work_dir):
    (outcome,) = run(work_dir, [("runs --json", {})])
    states = {Path(line["path"]).name: (line["state"], line["closed"]) for line in json.loads(outcome[1])["runs"]}
    assert states["open"] == ("complete", False)
    assert states["closed"] == ("cannot be read: permission denied", True)
    assert states["deaf"] == (
        f"cannot read the config file runs/deaf/config.yaml: permission denied (runs/deaf/config.yaml {OWNER})",
        True,
    )
    (outcome,) = run(work_dir, [("runs", {})])
    assert "damaged" not in outcome[1]
    assert sum(line.endswith(" closed") for line in outcome[1].splitlines()) == 3
    check(work_dir, {"runs --dir nox": (0, "there are no runs in nox")})


def test_a_closed_folder_of_which_nothing_says_that_it_is_a_run_is_called_closed_or_left_out(work_dir):
    """Nothing is seen of `home`; `nox` names what it holds, and `nor` tells what is asked for: neither is a run."""
    (outcome,) = run(work_dir, [("runs --dir . --json", {})])
    listed = json.loads(outcome[1])["runs"]
    assert [(Path(line["path"]).name, line["state"], line["closed"]) for line in listed] == [
        ("home", "cannot be read: permission denied", True)
    ]


def test_a_run_that_may_not_be_written_to_is_read_as_any_other_and_a_copy_of_it_can_be_trained(work_dir):
    cannot = (1, "cannot write run/lock: permission denied (run belongs to OWNER) hint: run_dir=runs/NAME")
    check(
        work_dir,
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
    shell = f"cp -R {work_dir / 'fixed' / 'run'} COPY; chmod -R u+w COPY"
    subprocess.run([sys.executable, "-c", ORDINARY, "-c", f"import os; os.system({shell!r})"], cwd=work_dir, check=True)
    check(work_dir, {"train COPY train.steps=2": (0, "step 2 is saved")})


def test_a_folder_that_may_not_be_written_to_is_one_error_before_the_work(work_dir):
    denied = "permission denied (PLACE/fixed belongs to OWNER)"
    check(
        work_dir,
        {
            "train book.txt TINY": (1, f"cannot create runs/book: {denied}"),
            "tokenize book.txt --out store": (1, f"cannot create store: {denied}"),
            "sweep run/config.yaml optim.lr=0.1,0.2": (1, f"cannot create sweeps/run: {denied}"),
            "export run out": (1, f"cannot create out: {denied}"),
            "export run out.gguf": (1, f"cannot write out.gguf: {denied}"),
            "report run --no-baselines": (1, f"cannot write report.html: {denied}"),
            "plot run": (1, f"cannot write loss.png: {denied}"),
            "draw mask": (1, f"cannot write mask.png: {denied}"),
            "score book.txt --run run --html s.html": (1, f"cannot write s.html: {denied}"),
            "config init": (1, f"cannot write config.yaml: {denied}"),
        },
        folder="fixed",
    )


def test_a_place_in_a_closed_folder_is_not_opened_for_writing_but_another_is_proposed(work_dir):
    denied = "permission denied (home belongs to OWNER)"
    check(
        work_dir,
        {
            "train book.txt TINY run_dir=home/run": (1, f"cannot write home/run: {denied}"),
            "train runs/open/config.yaml run_dir=home/run": (1, f"cannot write home/run: {denied}"),
            "sweep runs/open/config.yaml optim.lr=0.1,0.2 --out home/s": (1, f"cannot create home/s: {denied}"),
            "config init -o home/x.yaml": (1, f"cannot write home/x.yaml: {denied}"),
            "config init book.txt --force -o home/x.yaml": (1, f"cannot write home/x.yaml: {denied}"),
            "tokenize book.txt --out home/store": (1, f"cannot create home/store: {denied}"),
            "export runs/open home/out": (1, f"cannot create home/out: {denied}"),
            "export runs/open home/out.gguf": (1, f"cannot write home/out.gguf: {denied}"),
            "report runs/open --no-baselines -o home/r.html": (1, f"cannot write home/r.html: {denied}"),
            "score book.txt --run runs/open --html home/s.html": (1, f"cannot write home/s.html: {denied}"),
        },
    )


def test_what_is_closed_is_named_with_its_owner(tmp_path, monkeypatch):
    file = tmp_path / "of us" / "a.txt"
    file.parent.mkdir()
    file.write_text(BOOK)
    closed: set[Path] = set()
    owners = {file: "ann", file.parent: "bob"}
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) not in closed)
    monkeypatch.setattr(Path, "owner", lambda path: owners[path])
    denied = PermissionError(errno.EACCES, "Permission denied")
    for closed_path, owner in ((file, "ann"), (file.parent, "bob")):
        closed.clear()
        closed.add(closed_path)
        assert reason_of(denied, file) == f"permission denied ({closed_path} belongs to {owner})"
    owners.pop(file.parent)  # no name for this number
    assert reason_of(denied, file) == f"permission denied ({file.parent} belongs to user {os.stat(file).st_uid})"


@pytest.mark.parametrize("cache", ["cache", "home/.cache/gpt"])
def test_without_a_cache_that_can_be_used_everything_works_and_says_how_to_have_one(work_dir, cache):
    name = Path(cache).parts[0]
    check(
        work_dir,
        {
            f"train book.txt TINY runtime.engine=torch run_dir=runs/of-{name}": (
                0,
                "the tokens are not cached | GPT_CACHE names another folder | step 1 is saved",
            ),
            f"sample runs/of-{name} --max-new-tokens 2 --engine torch": (0, "step 1, seed"),
            f"eval runs/of-{name}": (0, "the tokens are not cached | GPT_CACHE names another folder"),
            "data list": (0, "tiny-shakespeare"),
        },
        GPT_CACHE=str(work_dir / cache),
    )


def test_a_download_into_a_cache_that_cannot_be_used_says_how_to_have_another(work_dir):
    rows = {"data get tiny-shakespeare": (1, "permission denied | OWNER) (GPT_CACHE names another folder)")}
    check(work_dir, rows, GPT_CACHE=str(work_dir / "cache"))
    check(work_dir, rows, GPT_CACHE=str(work_dir / "home/.cache/gpt"))
