"""A run on a data set of the Hugging Face Hub keeps its commit: it resumes and evaluates without the network."""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpt_cli.config import load_config
from tests.support.command import Outcome, Run, as_json
from tests.support.hub import Hub, local_hub

QUICK = (
    *("model.n_layer=1", "model.n_head=2", "model.n_embd=16", "model.context_length=16", "train.batch_size=2"),
    *("sample.every=null", "checkpoint.every=2", "runtime.device=cpu", "runtime.threads=1"),
)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.chdir(tmp_path)
    with local_hub(tmp_path / "huggingface", monkeypatch) as hub:
        yield hub


def commit(hub: Hub, seed: int, repo: str = "someone/stories") -> str:
    words = random.Random(seed).choices(["it", "was", "the", "best", "of", "times", "worst"], k=2000)
    records = [json.dumps({"text": " ".join(words[at : at + 40])}) for at in range(0, 2000, 40)]
    return hub.commit(repo, {"train.jsonl": "\n".join(records), "constrained_test.jsonl": json.dumps({"text": "?"})})


def train(gpt_here: Run, steps: int, *arguments: str) -> str:
    """Train, and return the digest of the weights."""
    return str(as_json(gpt_here("train", *arguments, f"train.steps={steps}", *QUICK, "--json"))["weights_sha256"])


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def source(run: str = "runs/stories") -> object:
    return load_config(Path(run, "config.yaml")).data.source


def test_a_run_resumes_on_its_commit_without_the_network_after_main_has_moved_bit_for_bit(hub, gpt_here, monkeypatch):
    sha = commit(hub, 0)
    whole = train(gpt_here, 4, "hf:someone/stories", "run_dir=runs/whole")
    train(gpt_here, 2, "hf:someone/stories")
    assert source() == source("runs/whole") == f"hf:someone/stories@{sha}"
    commit(hub, 1)
    asked = len(hub.requests)
    assert train(gpt_here, 4, "hf:someone/stories") == whole  # the same command line
    assert len(hub.requests) == asked
    offline(monkeypatch)
    shutil.rmtree("runs/whole/checkpoints/step-00000004")
    assert train(gpt_here, 4, "runs/whole") == whole
    outcome = gpt_here("eval", "runs/stories", "--json")
    assert outcome.rc == 0, outcome.stderr
    assert gpt_here("report", "runs/stories", "-o", "report.html").rc == 0
    assert train(gpt_here, 6, "runs/stories")


def test_another_commit_is_another_text(hub, gpt_here):
    old = commit(hub, 0)
    train(gpt_here, 1, "hf:someone/stories")
    new = commit(hub, 1)
    for arguments in (
        [f"hf:someone/stories@{new}", "run_dir=runs/stories"],
        ["runs/stories", f"data.source=hf:someone/stories@{new}"],
    ):
        outcome = gpt_here("train", *arguments, *QUICK)
        assert outcome.rc == 2
        assert old in outcome.stderr
    assert train(gpt_here, 2, f"hf:someone/stories@{old}", "run_dir=runs/stories")


def test_the_sources_of_a_config_file_are_pinned_in_its_run_and_not_in_the_file(hub, gpt_here, monkeypatch):
    sha, other = commit(hub, 0), commit(hub, 1, "someone/tales")
    text = "data: {source: [hf:someone/stories, hf:someone/tales], val_source: hf:someone/stories}\nrun_dir: runs/c\n"
    Path("c.yaml").write_text(text)
    train(gpt_here, 1, "c.yaml")
    data = load_config(Path("runs/c/config.yaml")).data
    assert data.source == [f"hf:someone/stories@{sha}", f"hf:someone/tales@{other}"]
    assert data.val_source == f"hf:someone/stories@{sha}"
    assert Path("c.yaml").read_text() == text
    commit(hub, 2)
    offline(monkeypatch)
    train(gpt_here, 2, "c.yaml")


def test_a_validation_text_is_pinned_too(hub, gpt_here):
    sha, other = commit(hub, 0), commit(hub, 1, "someone/tales")
    arguments = ["hf:someone/stories", "data.val_source=hf:someone/tales"]
    train(gpt_here, 1, *arguments)
    commit(hub, 2)
    commit(hub, 3, "someone/tales")
    train(gpt_here, 2, *arguments)
    data = load_config(Path("runs/stories/config.yaml")).data
    assert (data.source, data.val_source) == (f"hf:someone/stories@{sha}", f"hf:someone/tales@{other}")


def test_a_run_begun_before_sources_were_pinned_resumes_as_it_is(hub, gpt_here):
    commit(hub, 0)
    train(gpt_here, 1, "hf:someone/stories")
    for file in Path("runs/stories").rglob("*.yaml"):
        file.write_text(file.read_text().replace(str(source()), "hf:someone/stories"))
    shutil.rmtree("runs/stories/checkpoints")
    train(gpt_here, 2, "hf:someone/stories")
    assert source() == "hf:someone/stories"


def test_a_fitted_config_and_tokens_are_of_a_commit(hub, gpt_here):
    sha = commit(hub, 0)
    outcome: Outcome = gpt_here("config", "init", "hf:someone/stories", "data.val_source=hf:someone/stories")
    assert outcome.rc == 0, outcome.stderr
    data = load_config(Path("stories.yaml")).data
    assert data.source == data.val_source == f"hf:someone/stories@{sha}"
    assert gpt_here("tokenize", "hf:someone/stories").rc == 0
    assert gpt_here("data", "inspect", "hf:someone/stories").rc == 0


def test_a_sweep_goes_on_with_the_commit_that_it_began_with(hub, gpt_here):
    sha = commit(hub, 0)
    Path("c.yaml").write_text("data: {source: hf:someone/stories}\n")
    sweep = ("sweep", "c.yaml", "optim.lr=0.01,0.02", *QUICK, "train.steps=1", "--seeds", "1", "--jobs", "1")
    assert gpt_here(*sweep, "--max-runs", "1").rc in (0, 1)
    commit(hub, 1)
    outcome = gpt_here(*sweep)
    assert outcome.rc == 0, outcome.stderr
    runs = [file.parent for file in Path("sweeps/c").glob("*/run.json")]
    assert len(runs) == 2
    assert {source(str(run)) for run in runs} == {f"hf:someone/stories@{sha}"}


@pytest.mark.parametrize(
    ("selection", "name"),
    [("", "stories"), ("/en.noblock", "stories-en-noblock"), ("@v1/train-*", "train"), ("/train.jsonl", "train")],
)
def test_a_run_is_named_after_the_data_set_and_its_configuration(selection, name):
    from gpt_cli.cli.options.run_name import run_name

    assert run_name(f"hf:someone/stories{selection}") == name
