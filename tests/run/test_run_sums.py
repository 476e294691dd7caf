"""What is written in a run is summed: a flipped bit is told by every command that reads it, and is not used."""

import json
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpt_cli.config import load_config
from gpt_cli.corpus.readers import ReaderOptions
from gpt_cli.corpus.sources import find_files
from gpt_cli.errors import RequestError, UserError
from gpt_cli.files import DamagedError, check_listed, read_sums, replace_listed
from gpt_cli.run.checkpoint import list_checkpoints, load
from gpt_cli.run.find_run import find_run
from tests.support.command import Outcome
from tests.support.faulty_disk import FaultyDisk

pytestmark = pytest.mark.robust

CONFIG = """
run_dir: runs/one
data: {source: text.txt}
model: {n_layer: 1, n_head: 2, n_embd: 8, context_length: 8}
train: {steps: 4, batch_size: 2}
eval: {every: 2}
checkpoint: {every: 2, keep: 2}
sample: {every: 2, max_new_tokens: 3}
runtime: {device: cpu, threads: 1, engine: torch}
"""
ONCE = ["config.yaml", "tokenizer.json", "data.json", "run.json", "SHA256SUMS"]
SAVED = ["model.safetensors", "optimizer.safetensors", "state.json", "config.yaml", "tokenizer.json", "SHA256SUMS"]
LOGS = ["metrics", "samples", "events"]
READERS = {  # of a run, and of its newest checkpoint
    "info": ["info", "runs/one"],
    "sample": ["sample", "--run", "runs/one", "--max-new-tokens", "2", "--seed", "1", "--engine", "torch"],
    "eval": ["eval", "--run", "runs/one"],
    "score": ["score", "text.txt", "--run", "runs/one", "--json", "--engine", "torch"],
    "export": ["export", "runs/one", "hf", "--to", "hf"],
    "report": ["report", "runs/one", "-o", "report.html"],
    "doctor": ["doctor", "runs/one"],
    "train": ["train", "runs/one", "train.steps=5"],
}
FEW = [READERS[name] for name in ("info", "sample", "doctor", "train")]
ONLY_RUN = {"plot": ["plot", "runs/one", "-o", "loss.png"], "config": ["config", "show", "runs/one/config.yaml"]}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run in runs/one, which has two checkpoints."""
    from gpt_cli.cli.main import main

    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("GPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        (folder / "text.txt").write_text("It was the best of times, it was the worst of times.\n" * 40)
        (folder / "one.yaml").write_text(CONFIG)
        assert main(["train", "--config", "one.yaml"]) == 0
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path


def flip(path: Path, dice: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    path.write_bytes(data)


def is_told(outcome: Outcome, path: Path) -> bool:
    """True if it failed, or went on with an older checkpoint, and said what is damaged."""
    output = outcome.stdout + outcome.stderr
    named = "damaged" in output or "does not match its SHA-256" in output
    return named and outcome.rc in (0, 1) and "Traceback" not in output and (outcome.rc == 1 or "skipped" in output)


def test_a_run_is_whole_by_its_own_sums(folder: Path) -> None:
    run = folder / "runs" / "one"
    assert sorted(read_sums(run)) == sorted(set(ONCE) - {"SHA256SUMS"})
    check_listed(run)
    if shutil.which("sha256sum"):
        assert subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=run, check=False).returncode == 0


def test_a_thousand_flips_of_a_thousand_are_noticed(
    folder: Path, record_property: Callable[[str, object], None]
) -> None:
    run, dice = folder / "runs" / "one", random.Random(18)
    newest = list_checkpoints(run)[0]
    paths = [run / name for name in ONCE] + [newest / name for name in SAVED]
    for number in range(1_000):
        path = paths[number % len(paths)]
        data = path.read_bytes()
        flip(path, dice)
        with pytest.raises(DamagedError):
            find_run(run) if path.parent == run else load(newest)
        path.write_bytes(data)
    record_property("faults", 1_000)
    find_run(run)
    load(newest)


@pytest.mark.parametrize("name", ONCE)
def test_every_command_that_reads_a_run_tells_a_flip_in_what_is_written_once(
    folder: Path, gpt_here: Callable[..., Outcome], name: str, record_property: Callable[[str, object], None]
) -> None:
    flip(folder / "runs" / "one" / name, random.Random(name))
    readers = READERS | (ONLY_RUN if name == "config.yaml" else {"plot": ONLY_RUN["plot"]})
    record_property("faults", len(readers))
    for command in readers.values():
        outcome = gpt_here(*command)
        assert outcome.rc == 1, (command, outcome)
        assert is_told(outcome, folder), (command, outcome)


def test_every_command_that_reads_a_checkpoint_tells_a_flip_in_it(
    folder: Path, gpt_here: Callable[..., Outcome], record_property: Callable[[str, object], None]
) -> None:
    for name in ("model.safetensors", "state.json"):
        flip(list_checkpoints(folder / "runs" / "one")[0] / name, random.Random(name))
    record_property("faults", len(FEW))
    for command in FEW:
        outcome = gpt_here(*command)
        assert is_told(outcome, folder), (command, outcome)


@pytest.mark.parametrize("name", LOGS)
def test_every_command_that_reads_a_log_tells_a_flip_in_it(
    folder: Path, gpt_here: Callable[..., Outcome], name: str, record_property: Callable[[str, object], None]
) -> None:
    flip(folder / "runs" / "one" / f"{name}.jsonl", random.Random(name))
    readers = [READERS[command] for command in ("report", "doctor", "train")]
    readers += [ONLY_RUN["plot"], READERS["export"]] if name == "metrics" else []
    record_property("faults", len(readers))
    for command in readers:
        outcome = gpt_here(*command)
        assert outcome.rc == 1, (command, outcome)
        assert is_told(outcome, folder), (command, outcome)


def test_a_damaged_run_is_listed_as_such_and_can_be_removed(folder: Path, gpt_here: Callable[..., Outcome]) -> None:
    flip(folder / "runs" / "one" / "data.json", random.Random(2))
    listed = gpt_here("runs")
    assert listed.rc == 0
    assert "does not match its SHA-256" in " ".join(listed.stdout.split())
    assert gpt_here("runs", "rm", "runs/one", "--yes").rc == 0


@pytest.mark.slow
def test_a_thousand_flips_are_told_by_the_commands_that_read_them(
    trained: Path, tmp_path: Path, gpt_here: Callable[..., Outcome], record_property: Callable[[str, object], None]
) -> None:
    dice = random.Random(19)
    silent = []
    for number in range(1_000):
        for entry in tmp_path.iterdir():  # it is the current folder, and stays
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
        run = tmp_path / "runs" / "one"
        logs = [run / f"{name}.jsonl" for name in LOGS]
        path = dice.choice([run / name for name in ONCE] + [list_checkpoints(run)[0] / name for name in SAVED] + logs)
        readers = READERS | (ONLY_RUN if path.parent == run and path.name == "config.yaml" else {})
        if path in logs:
            readers = {command: READERS[command] for command in ("report", "doctor", "train")}
        if path.name == "optimizer.safetensors":
            readers = {command[0]: command for command in FEW}
        flip(path, dice)
        name, command = dice.choice(sorted(readers.items()))
        if not is_told(outcome := gpt_here(*command), tmp_path):
            silent.append(f"{number}: {path.relative_to(tmp_path)}, {name}: {outcome}")
    record_property("faults", 1_000)
    assert not silent, "\n".join(silent)


# What is meant to change


def test_an_edit_is_kept_once_its_line_is_removed(folder: Path, gpt_here: Callable[..., Outcome]) -> None:
    run = folder / "runs" / "one"
    written = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(written.replace("max_new_tokens: 3", "max_new_tokens: 7"))
    refused = gpt_here("sample", "--run", "runs/one", "--seed", "1")
    assert refused.rc == 1
    assert "hint: gpt doctor runs/one\n" in refused.stderr
    lines = (run / "SHA256SUMS").read_text().splitlines(keepends=True)
    (run / "SHA256SUMS").write_text("".join(line for line in lines if "config.yaml" not in line))
    completed = gpt_here("sample", "--run", "runs/one", "--engine", "torch", "--json")
    assert len(json.loads(completed.stdout)["samples"][0]["tokens"]) == 7
    flip(run / "run.json", random.Random(1))
    assert gpt_here("sample", "--run", "runs/one").rc == 1


@pytest.mark.parametrize(
    ("key", "there", "here"),
    [
        ("data.val_fraction", "0.1", "0.5"),
        ("seed", "1337", "6"),
        ("optim.name", "muon", "adamw"),
        ("model.dropout", "0.0", "0.5"),
    ],
)
def test_an_edit_of_a_key_that_may_not_change_is_told_by_train_and_doctor(
    folder: Path, gpt_here: Callable[..., Outcome], key: str, there: str, here: str
) -> None:
    run = folder / "runs" / "one"
    lines = (run / "SHA256SUMS").read_text().splitlines(keepends=True)
    (run / "SHA256SUMS").write_text("".join(line for line in lines if "config.yaml" not in line))
    name = key.rpartition(".")[2]
    written = (run / "config.yaml").read_text()
    edited = re.sub(rf"(?m)^(\s*){name}: {there}$", rf"\g<1>{name}: {here}", written, count=1)
    (run / "config.yaml").write_text(edited)
    told = f"{key}: {there} in the checkpoint of step"
    for command in (("train", "runs/one"), ("train", "runs/one", "train.steps=99")):
        refused = gpt_here(*command)
        assert refused.rc == 2
        assert told in refused.stderr
        assert (run / "config.yaml").read_text() == edited
    doctor = gpt_here("doctor", "runs/one")
    assert doctor.rc == 1
    assert told in " ".join(doctor.stdout.split())
    assert "does not list config.yaml" in " ".join(doctor.stdout.split())
    differs = re.search("error: (.*) differs from (.*), with which", refused.stderr)
    assert differs is not None
    shutil.copyfile(differs[2], differs[1])
    assert gpt_here("train", "runs/one", "train.steps=9").rc == 0


def test_a_run_of_an_older_gpt_has_no_sums_and_is_read_as_before(
    folder: Path, gpt_here: Callable[..., Outcome]
) -> None:
    (folder / "runs" / "one" / "SHA256SUMS").unlink()
    for command in FEW:
        outcome = gpt_here(*command)
        assert outcome.rc == 0, (command, outcome)


def test_a_run_that_lost_its_record_is_damaged_and_its_checkpoint_can_be_used(
    folder: Path, gpt_here: Callable[..., Outcome]
) -> None:
    (folder / "runs" / "one" / "run.json").unlink()
    for verb in ("sample", "doctor", "eval", "info"):
        outcome = gpt_here(verb, "runs/one")
        assert outcome.rc == 1, (verb, outcome)
        assert "runs/one is damaged: run.json is missing" in outcome.stderr
    checkpoint = outcome.stderr.partition("hint: did you mean ")[2].rstrip("?\n")
    assert gpt_here("sample", checkpoint, "--max-new-tokens", "2").rc == 0
    (folder / "runs" / "one").rename(folder / "lost")
    assert gpt_here("train", "lost").rc != 0
    with pytest.raises(RequestError, match="is a damaged run, not text"):
        find_files(str(folder / "lost"), ReaderOptions(), pytest.fail)
    shutil.rmtree(folder / "lost" / "checkpoints")
    assert "run.json is missing" in gpt_here("sample", "lost").stderr


def test_a_run_may_be_moved_and_copied(folder: Path, gpt_here: Callable[..., Outcome]) -> None:
    (folder / "runs" / "one").rename(folder / "runs" / "two")
    assert gpt_here("sample", "--run", "runs/two", "--max-new-tokens", "2", "--engine", "torch").rc == 0
    assert gpt_here("train", "runs/two", "train.steps=5").rc == 0


def test_a_changed_config_is_summed_anew(folder: Path, gpt_here: Callable[..., Outcome]) -> None:
    assert gpt_here("train", "runs/one", "train.steps=6").rc == 0
    check_listed(folder / "runs" / "one")
    assert load_config(folder / "runs" / "one" / "config.yaml").train.steps == 6


def test_a_replacement_that_fails_anywhere_leaves_what_verifies(
    folder: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    run = folder / "runs" / "one"
    original = (run / "config.yaml").read_bytes()
    disk = FaultyDisk(folder, monkeypatch)
    failures = 0
    for _ in disk.each_failure(lambda: replace_listed(run, "config.yaml", b"run_dir: elsewhere\n"), 28):
        failures += 1
        check_listed(run)
        assert (run / "config.yaml").read_bytes() in (original, b"run_dir: elsewhere\n")
    record_property("faults", failures)
    assert failures > 6
    check_listed(run)
    assert (run / "config.yaml").read_bytes() == b"run_dir: elsewhere\n"
    assert (run / "SHA256SUMS").read_text().count("config.yaml") == 1


def test_what_is_read_while_it_is_replaced_is_not_called_damaged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = folder / "runs" / "one"
    from gpt_cli.files import sums

    real, times = sums._sum_of, []

    def and_replace_it_before(path: Path, follow: bool) -> str:
        if path.name == "config.yaml" and len(times) < 2:
            times.append(1)
            replace_listed(run, "config.yaml", b"run_dir: %d\n" % len(times))
        return real(path, follow)

    monkeypatch.setattr(sums, "_sum_of", and_replace_it_before)
    check_listed(run)
    assert len(times) == 2


def test_a_file_that_is_gone_is_told(folder: Path) -> None:
    (folder / "runs" / "one" / "data.json").unlink()
    with pytest.raises(UserError, match=r"data\.json is missing"):
        find_run(folder / "runs" / "one")


def test_a_run_whose_checkpoints_are_gone_is_not_called_a_new_one(
    folder: Path, gpt_here: Callable[..., Outcome]
) -> None:
    shutil.rmtree(folder / "runs" / "one" / "checkpoints")
    examined = gpt_here("doctor", "runs/one")
    assert examined.rc == 1
    assert "there is no checkpoint: the training of 4 steps is" in " ".join(examined.stdout.split())
    assert "in every intact checkpoint" not in examined.stdout
    assert "runs/one has no checkpoint: the training of 4 steps is lost" in gpt_here("sample", "runs/one").stderr
    assert "lost" in gpt_here("runs").stdout


def test_a_config_that_was_changed_since_the_checkpoint_may_be_put_back(
    folder: Path, gpt_here: Callable[..., Outcome]
) -> None:
    run = folder / "runs" / "one"
    assert gpt_here("train", "runs/one", "eval.every=3").rc == 0  # complete: no new checkpoint
    for spoil in (lambda: (run / "config.yaml").write_text("spoilt"), (run / "config.yaml").unlink):
        assert gpt_here("train", "runs/one", "eval.every=2").rc == 0
        spoil()
        for verb in ("train", "sample"):
            assert gpt_here(verb, "runs/one").rc == 1
        shutil.copy(run / "checkpoints" / "step-00000004" / "config.yaml", run)
        assert gpt_here("sample", "runs/one", "--max-new-tokens", "1").rc == 0


def test_a_damaged_file_is_told_alike_by_training_and_with_a_way_out(
    folder: Path, gpt_here: Callable[..., Outcome]
) -> None:
    run = folder / "runs" / "one"
    for name, words in (
        ("data.json", "does not match its SHA-256"),
        ("tokenizer.json", "does not match its SHA-256"),
        ("SHA256SUMS", "SHA256SUMS has a malformed line"),
    ):
        whole = (run / name).read_bytes()
        (run / name).write_bytes(whole[:60])
        for verb in ("train", "sample"):
            stderr = gpt_here(verb, "runs/one").stderr
            assert words in stderr, (name, verb)
            assert stderr.endswith("hint: gpt doctor runs/one\n"), (name, verb)
        (run / name).write_bytes(whole)
