"""A run's directory: one writer, one request, and nothing that is not a run is touched."""

import errno
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpt_cli.config import Config, load_config
from gpt_cli.config.keys import fields
from gpt_cli.corpus.prepare import Corpus
from gpt_cli.corpus.store import SplitStats
from gpt_cli.errors import ExitCode, RequestError, UserError
from gpt_cli.files import DiskError, LockedError
from gpt_cli.run import checkpoint
from gpt_cli.run.directory import RunDirectory
from gpt_cli.run.find_run import find_run
from gpt_cli.run.resume import may_change
from gpt_cli.tokenizer import CharTokenizer, Tokenizer
from tests.support.faulty_disk import REASONS, FaultyDisk
from tests.support.lock import locked_elsewhere

TOKENIZER = CharTokenizer("ab\n")


def corpus(tokenizer: Tokenizer = TOKENIZER, fingerprint: str = "0" * 64) -> Corpus:
    facts = SplitStats(characters=4, bytes=4, tokens=4, documents=1, document_starts=(0,))
    tokens = np.array([0, 1, 0, 2], dtype=np.uint16)
    return Corpus(tokenizer, tokens, tokens, {"train": facts, "val": facts}, fingerprint, "a.txt")


def config(run_dir: Path, **sections: dict[str, Any]) -> Config:
    return Config.model_validate({"run_dir": str(run_dir), **sections})


def open_run(run_dir: Path, **sections: dict[str, Any]) -> RunDirectory:
    return RunDirectory.open_for_training(config(run_dir, **sections), corpus())


def save_checkpoint(run_dir: Path, step: int) -> Path:
    tensors = {"weight": torch.zeros(2)}
    return checkpoint.save(run_dir, step, tensors, tensors, {}, config(run_dir), TOKENIZER)


def tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def events(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]


def begin(run: RunDirectory) -> None:
    with run:
        run.begin(0, "cpu")


def changes(run_dir: Path) -> list[dict[str, Any]]:
    return [event for event in events(run_dir) if event["event"] == "config changed"]


# What is in it


def test_a_new_run_holds_what_it_takes_to_understand_it_later(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "new"
    with open_run(run_dir) as run:
        assert run.path == run_dir
    assert load_config(run_dir / "config.yaml") == config(run_dir)
    assert (run_dir / "tokenizer.json").read_text() == TOKENIZER.to_json()
    data = json.loads((run_dir / "data.json").read_text())
    assert (data["source"], data["fingerprint"]) == ("a.txt", "0" * 64)
    assert data["splits"]["val"] == {"characters": 4, "bytes": 4, "tokens": 4, "documents": 1}
    facts = json.loads((run_dir / "run.json").read_text())
    assert facts["command"] == sys.argv
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["created"].endswith("+00:00")


def test_opening_a_run_again_changes_none_of_its_files(tmp_path: Path) -> None:
    open_run(tmp_path / "run").close()
    before = tree(tmp_path / "run")
    open_run(tmp_path / "run").close()
    after = tree(tmp_path / "run")
    assert {**before, "lock": b""} == {**after, "lock": b""}


def test_a_run_whose_making_failed_anywhere_is_made_by_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk(tmp_path, monkeypatch)
    run_dir = tmp_path / "run"
    failures = 0
    for failure in disk.each_failure(lambda: open_run(run_dir).close(), errno.ENOSPC, lasting=True):
        assert isinstance(failure, DiskError)
        open_run(run_dir).close()
        assert load_config(run_dir / "config.yaml") == config(run_dir)
        shutil.rmtree(run_dir)
        failures += 1
    assert failures > 20
    assert not [name for name in os.listdir(run_dir) if name.startswith(".tmp-")]


# What may be opened


def test_a_directory_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    for name in ("thesis.tex", "config.yaml"):
        (folder / name).write_text("mine")
    with pytest.raises(RequestError, match="holds other files and no run"):
        open_run(folder)
    assert tree(folder) == {"thesis.tex": b"mine", "config.yaml": b"mine"}


def test_a_run_inside_of_a_run_is_refused_by_its_real_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outer = tmp_path / "outer"
    open_run(outer).close()
    (tmp_path / "link").symlink_to(outer)
    for inner in (outer / "inner", outer / "checkpoints" / "inner", tmp_path / "link" / "inner"):
        with pytest.raises(RequestError, match="lies inside of a run") as caught:
            open_run(inner)
        assert caught.value.choices == (str(tmp_path / "inner"),)
    monkeypatch.chdir(outer)
    with pytest.raises(RequestError, match=r"inner lies inside of a run, \."):
        open_run(Path("inner"))
    open_run(Path("../beside")).close()
    open_run(outer / ".." / "third").close()
    assert {path.name for path in tmp_path.iterdir()} == {"outer", "link", "beside", "third"}


def test_a_file_of_another_tool_that_is_called_like_ours_makes_no_folder_a_run(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    open_run(tmp_path / "runs" / "book").close()


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RequestError, match="is not a directory"):
        open_run(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_an_empty_directory_becomes_a_run(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    open_run(tmp_path / "empty").close()
    assert (tmp_path / "empty" / "run.json").is_file()


@pytest.mark.parametrize("error", REASONS)
def test_a_read_only_place_is_told_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    disk = FaultyDisk(tmp_path, monkeypatch)
    disk.fail(1, error)  # 0 is the look at what is there
    with pytest.raises(DiskError, match=REASONS[error]) as caught:
        open_run(tmp_path / "run")
    assert caught.value.exit_code == ExitCode.FAILED


def test_a_name_that_no_system_takes_is_a_wrong_request(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be a run_dir"):
        open_run(tmp_path / "a\0b")


@pytest.mark.parametrize("name", ["config.yaml", "lock", "metrics.jsonl", "events.jsonl"])
def test_files_of_a_run_are_not_written_through_links(tmp_path: Path, name: str) -> None:
    run_dir = tmp_path / "run"
    open_run(run_dir).close()
    (run_dir / name).rename(tmp_path / "target")
    (run_dir / name).symlink_to(tmp_path / "target")
    before = (tmp_path / "target").read_bytes()
    with pytest.raises(UserError, match="symbolic link"), open_run(run_dir, train={"steps": 5}) as run:
        run.begin(0, "cpu")
    assert (tmp_path / "target").read_bytes() == before


# One request


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        ("model", {"n_layer": 6}, "model.n_layer 4 there, 6 here"),
        ("optim", {"lr": 0.5}, "optim.lr 0.02 there, 0.5 here"),
        ("train", {"batch_size": 8}, "train.batch_size 16 there, 8 here"),
        ("data", {"val_fraction": 0.2}, "data.val_fraction 0.1 there, 0.2 here"),
    ],
)
def test_a_changed_config_is_refused_showing_both_values(
    tmp_path: Path, section: str, values: dict[str, Any], message: str
) -> None:
    run_dir = tmp_path / "run"
    open_run(run_dir).close()
    before = tree(run_dir)
    with pytest.raises(RequestError) as caught:
        open_run(run_dir, **{section: values})
    assert message in caught.value.message
    assert caught.value.exit_code == ExitCode.USAGE
    assert {**tree(run_dir), "lock": b""} == {**before, "lock": b""}


@pytest.mark.parametrize("key", [key for key in fields() if not may_change(key)])
def test_whatever_decides_the_numbers_cannot_change_in_a_run(tmp_path: Path, key: str) -> None:
    open_run(tmp_path / "run").close()
    section, _, name = key.rpartition(".")
    changed, patch = config(tmp_path / "run"), {name: "another value"}  # whether it is a valid one is not asked here
    if section:
        patch = {section: getattr(changed, section).model_copy(update=patch)}
    with pytest.raises(RequestError) as caught:
        RunDirectory.open_for_training(changed.model_copy(update=patch), corpus())
    assert caught.value.keys == (key,)
    assert f"{key} " in caught.value.message
    assert 'there, "another value" here' in caught.value.message


def test_all_changes_are_shown_at_once(tmp_path: Path) -> None:
    open_run(tmp_path / "run").close()
    with pytest.raises(RequestError, match=r"(?s)model\.n_layer.*optim\.lr"):
        open_run(tmp_path / "run", model={"n_layer": 6}, optim={"lr": 0.5}, train={"steps": 5})


def test_a_key_that_may_change_does_and_is_recorded(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    open_run(run_dir).close()
    changed: dict[str, dict[str, Any]] = {"train": {"steps": 5}, "sample": {"every": None}, "runtime": {"threads": 1}}
    begin(open_run(run_dir, **changed))
    assert load_config(run_dir / "config.yaml") == config(run_dir, **changed)
    [event] = changes(run_dir)
    assert event["keys"] == {"train.steps": [1000, 5], "sample.every": [250, None], "runtime.threads": [None, 1]}
    begin(open_run(run_dir, **changed))
    assert len(changes(run_dir)) == 1


def test_a_key_changes_only_once_training_begins(tmp_path: Path) -> None:
    open_run(tmp_path / "run").close()
    written = (tmp_path / "run" / "config.yaml").read_bytes()
    open_run(tmp_path / "run", train={"steps": 5}).close()
    assert (tmp_path / "run" / "config.yaml").read_bytes() == written
    assert not changes(tmp_path / "run")


def test_a_run_that_was_moved_goes_on_in_its_new_place(tmp_path: Path) -> None:
    open_run(tmp_path / "old").close()
    (tmp_path / "old").rename(tmp_path / "new")
    open_run(tmp_path / "new").close()
    assert load_config(tmp_path / "new" / "config.yaml").run_dir == str(tmp_path / "new")


def test_another_text_or_tokenizer_is_refused(tmp_path: Path) -> None:
    open_run(tmp_path / "run").close()
    request = config(tmp_path / "run")
    with pytest.raises(RequestError, match=r"the text has changed .* was 000000000000\.\.\., now it is ffffffffffff"):
        RunDirectory.open_for_training(request, corpus(fingerprint="f" * 64))
    with pytest.raises(RequestError, match="another tokenizer"):
        RunDirectory.open_for_training(request, corpus(CharTokenizer("abc\n")))
    open_run(tmp_path / "run").close()  # a refusal leaves no lock behind


@pytest.mark.parametrize("name", ["config.yaml", "tokenizer.json", "data.json"])
@pytest.mark.parametrize("content", [b"\xff\0", b"{" * 10_000, b"[1, 2]"], ids=["bytes", "deep", "list"])
def test_a_damaged_file_of_a_run_is_an_error_for_the_user(tmp_path: Path, name: str, content: bytes) -> None:
    open_run(tmp_path / "run").close()
    (tmp_path / "run" / name).write_bytes(content)
    with pytest.raises(UserError):
        open_run(tmp_path / "run")


# One writer


def test_two_processes_cannot_train_in_one_directory(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    open_run(run_dir).close()
    with locked_elsewhere(run_dir) as holder:
        before = tree(run_dir)
        with pytest.raises(LockedError, match=f"process {holder.pid} on"):
            open_run(run_dir)
        assert tree(run_dir) == before
        holder.kill()
    open_run(run_dir).close()


def test_a_run_is_free_again_once_it_is_left(tmp_path: Path) -> None:
    with open_run(tmp_path / "run"), pytest.raises(LockedError):
        open_run(tmp_path / "run")
    open_run(tmp_path / "run").close()


# Finding runs


def test_a_run_is_found_by_its_directory_or_by_one_of_its_checkpoints(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    open_run(run_dir).close()
    path = save_checkpoint(run_dir, 1)
    shutil.copytree(path, tmp_path / "copy")
    for named in (run_dir, path, tmp_path / "copy"):
        assert find_run(named) == named


def test_without_a_name_the_run_with_the_newest_checkpoint_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(["c", "a", "b"]):
        path = save_checkpoint(Path("runs") / name, step=10 - age)
        os.utime(path, ns=(age, age))
    open_run(Path("runs/untrained")).close()
    (tmp_path / "runs" / "notes.txt").write_text("a file")
    assert find_run(None) == Path("runs/b")


def test_no_run_is_a_wrong_request_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match="no run found under") as caught:
        find_run(None)
    assert caught.value.kind == "no runs"
    with pytest.raises(RequestError, match="there is no run at nowhere") as caught:
        find_run(Path("nowhere"))
    assert caught.value.kind == "no run"
    with pytest.raises(RequestError, match="neither a run nor a checkpoint"):
        find_run(tmp_path)
    open_run(Path("runs/mine")).close()
    with pytest.raises(RequestError) as caught:
        find_run(Path("mine"))
    assert caught.value.choices == ("runs/mine",)
