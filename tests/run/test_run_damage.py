"""Damage in a run: checkpoints are summed, and no number is made from a file of the run that is not."""

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpt_cli.config import load_config
from gpt_cli.corpus.readers import ReaderOptions
from gpt_cli.corpus.sources import find_files
from gpt_cli.errors import RequestError
from gpt_cli.files import DamagedError
from gpt_cli.run.checkpoint import list_checkpoints, load
from tests.support.command import Outcome

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
ONCE = ["config.yaml", "tokenizer.json", "data.json", "run.json"]
SAVED = ["model.safetensors", "optimizer.safetensors", "state.json", "config.yaml", "tokenizer.json", "SHA256SUMS"]
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


def test_a_thousand_flips_of_a_thousand_are_noticed(
    folder: Path, record_property: Callable[[str, object], None]
) -> None:
    dice, newest = random.Random(18), list_checkpoints(folder / "runs" / "one")[0]
    paths = [newest / name for name in SAVED]
    for number in range(1_000):
        path = paths[number % len(paths)]
        data = path.read_bytes()
        flip(path, dice)
        with pytest.raises(DamagedError):
            load(newest)
        path.write_bytes(data)
    record_property("faults", 1_000)
    load(newest)


@pytest.mark.parametrize("name", ONCE)
def test_a_flip_in_what_a_run_wrote_once_changes_no_number(
    folder: Path, gpt_here: Callable[..., Outcome], name: str, record_property: Callable[[str, object], None]
) -> None:
    run, dice = folder / "runs" / "one", random.Random(name)
    shutil.copytree(run, folder / "sound")
    resume, loss = ("train", "runs/one", "train.steps=6"), ("eval", "--run", "runs/one", "--json")
    expected_loss = json.loads(gpt_here(*loss).stdout)["loss"]
    assert gpt_here(*resume).rc == 0
    expected = load(list_checkpoints(run)[0]).model_arrays
    flips, refused = 12, 0
    for _ in range(flips):
        shutil.rmtree(run)
        shutil.copytree(folder / "sound", run)
        flip(run / name, dice)
        outcomes = gpt_here(*loss), gpt_here(*resume)
        for outcome in outcomes:
            assert outcome.rc in (0, 1, 2)
            assert "Traceback" not in outcome.stderr
        refused += sum(outcome.rc > 0 for outcome in outcomes)
        if outcomes[0].rc == 0:
            assert json.loads(outcomes[0].stdout)["loss"] == pytest.approx(expected_loss, rel=1e-5)
        if outcomes[1].rc == 0:
            actual = load(list_checkpoints(run)[0]).model_arrays
            assert all(np.allclose(actual[key], expected[key], rtol=1e-5, atol=1e-7) for key in expected)
    record_property("faults", flips)
    assert refused < 2 * flips
    if name in ("tokenizer.json", "run.json"):  # nothing is read from them where there is a checkpoint
        assert refused == 0


def test_every_command_that_reads_a_checkpoint_tells_a_flip_in_it(
    folder: Path, gpt_here: Callable[..., Outcome], record_property: Callable[[str, object], None]
) -> None:
    for name in ("model.safetensors", "state.json"):
        flip(list_checkpoints(folder / "runs" / "one")[0] / name, random.Random(name))
    record_property("faults", len(FEW))
    for command in FEW:
        outcome = gpt_here(*command)
        assert is_told(outcome, folder), (command, outcome)


def test_a_damaged_run_is_listed_as_such_and_can_be_removed(folder: Path, gpt_here: Callable[..., Outcome]) -> None:
    (folder / "runs" / "one" / "config.yaml").unlink()
    listed = gpt_here("runs")
    assert listed.rc == 0
    assert "config.yaml is missing" in " ".join(listed.stdout.split())
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
        path = dice.choice([list_checkpoints(run)[0] / name for name in SAVED])
        readers = READERS
        if path.name == "optimizer.safetensors":
            readers = {command[0]: command for command in FEW}
        flip(path, dice)
        name, command = dice.choice(sorted(readers.items()))
        if not is_told(outcome := gpt_here(*command), tmp_path):
            silent.append(f"{number}: {path.relative_to(tmp_path)}, {name}: {outcome}")
    record_property("faults", 1_000)
    assert not silent, "\n".join(silent)


# What is meant to change


def test_an_edit_of_a_key_that_may_change_is_used(folder: Path, gpt_here: Callable[..., Outcome]) -> None:
    config = folder / "runs" / "one" / "config.yaml"
    config.write_text(config.read_text().replace("max_new_tokens: 3", "max_new_tokens: 7"))
    completed = gpt_here("sample", "--run", "runs/one", "--engine", "torch", "--json")
    assert len(json.loads(completed.stdout)["samples"][0]["tokens"]) == 7


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
    name = key.rpartition(".")[2]
    written = (run / "config.yaml").read_text()
    edited = re.sub(rf"(?m)^(\s*){name}: {there}$", rf"\g<1>{name}: {here}", written, count=1)
    (run / "config.yaml").write_text(edited)
    told = f"{key}: {there} in the checkpoint of step"
    others = [
        ("diff", "runs/one", "runs/one"),
        ("report", "runs/one", "-o", "r.html"),
        ("train", "runs/one", "--dry-run"),
    ]
    for command in (("train", "runs/one"), *others, ("train", "runs/one", "train.steps=99")):
        refused = gpt_here(*command)
        assert refused.rc == 2
        assert told in refused.stderr
        assert (run / "config.yaml").read_text() == edited
    doctor = gpt_here("doctor", "runs/one")
    assert doctor.rc == 1
    assert told in " ".join(doctor.stdout.split())
    differs = re.search("error: (.*) differs from (.*), with which", refused.stderr)
    assert differs is not None
    shutil.copyfile(differs[2], differs[1])
    assert gpt_here("train", "runs/one", "train.steps=9").rc == 0


def test_the_sums_of_an_older_run_mean_nothing_and_are_removed_when_it_is_resumed(
    folder: Path, gpt_here: Callable[..., Outcome]
) -> None:
    sums = folder / "runs" / "one" / "SHA256SUMS"
    sums.write_text(f"{'0' * 64}  config.yaml\n")
    for command in FEW:
        assert sums.exists()
        outcome = gpt_here(*command)
        assert outcome.rc == 0, (command, outcome)
    assert command[0] == "train"
    assert not sums.exists()


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


def test_the_best_loss_so_far_is_that_of_the_checkpoint_and_not_of_the_log(
    folder: Path, gpt_here: Callable[..., Outcome]
) -> None:
    log = folder / "runs" / "one" / "metrics.jsonl"
    edited = re.sub(r'"val_loss": [0-9.]+', '"val_loss": 0.01', log.read_text(), count=1)
    assert edited != log.read_text()
    log.write_text(edited)
    resumed = gpt_here("train", "runs/one", "train.steps=12", "--json")
    assert resumed.rc == 0
    assert json.loads(resumed.stdout)["best_val_loss"] > 1  # and patience counts from there


def test_a_changed_config_is_written(folder: Path, gpt_here: Callable[..., Outcome]) -> None:
    assert gpt_here("train", "runs/one", "train.steps=6").rc == 0
    assert load_config(folder / "runs" / "one" / "config.yaml").train.steps == 6


@pytest.mark.parametrize("name", ["data.json", "tokenizer.json"])
def test_a_file_that_is_gone_is_told(folder: Path, gpt_here: Callable[..., Outcome], name: str) -> None:
    (folder / "runs" / "one" / name).unlink()
    examined = gpt_here("doctor", "runs/one")
    assert examined.rc == 1
    assert f"{name}: no such file" in " ".join(examined.stdout.split())
    assert gpt_here("train", "runs/one", "train.steps=6").rc == 0  # the checkpoint has what it needs


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
        assert gpt_here("train", "runs/one").rc in (1, 2)
        shutil.copy(run / "checkpoints" / "step-00000004" / "config.yaml", run)
        assert gpt_here("sample", "runs/one", "--max-new-tokens", "1").rc == 0
