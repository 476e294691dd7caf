"""A run that overfitted says so, and `RUN@best` is its best checkpoint wherever a checkpoint has a name."""

import asyncio
import hashlib
import io
import json
import re
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest
from safetensors.numpy import load_file

import gpt_cli
from gpt_cli.cli.main import main
from gpt_cli.cli.options.complete import complete_checkpoint
from gpt_cli.errors import RequestError
from gpt_cli.run.checkpoint import checkpoint_step, list_checkpoints, load, save
from gpt_cli.run.find_run import find_run
from gpt_cli.serve.api_errors import ApiError
from gpt_cli.serve.model_registry import EngineOptions, ModelRegistry
from tests.support.command import Run, in_process
from tests.support.live_server import make_run, serving

SMALL = (
    *("model.n_layer=1", "model.n_head=2", "model.n_embd=64", "model.context_length=32", "train.batch_size=16"),
    *("model.dropout=0", "optim.weight_decay=0", "eval.every=25", "checkpoint.every=null", "checkpoint.keep=1"),
    *("sample.every=null", "runtime.threads=1"),
)
NOTE = "the newest checkpoint has validation loss "


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs on one text: one that overfitted, and one that ended before it did."""
    folder = tmp_path_factory.mktemp("overfitting")
    (folder / "text.txt").write_text("\n".join(topics[name] for name in sorted(topics))[:4000])
    for name, steps in (("over", 300), ("short", 50)):
        keys = (f"train.steps={steps}", f"run_dir={folder / name}")
        assert main(["train", str(folder / "text.txt"), *SMALL, *keys]) == 0
    return folder


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Run:
    return in_process(capfd)


def lowest_loss(run: Path) -> Path:
    """The checkpoint of the step with the lowest validation loss in the metrics of a run."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    step = min((line["val_loss"], line["step"]) for line in lines if "val_loss" in line)[1]
    return run / f"checkpoints/step-{step:08d}"


def sha256(checkpoint: Path) -> str:
    return hashlib.sha256((checkpoint / "model.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize("name", ["over", "short"])
def test_best_names_the_weights_of_the_lowest_validation_loss_everywhere(
    runs: Path, name: str, cli: Run, tmp_path: Path
) -> None:
    run, best = runs / name, lowest_loss(runs / name)
    weights = load_file(best / "model.safetensors")
    assert (best == list_checkpoints(run)[0]) is (name == "short")
    of_python = gpt_cli.load(f"{run}@best").model.state_dict()
    assert all(np.array_equal(of_python[key].numpy(), array) for key, array in weights.items())
    for named in (f"{run}@best", f"{run}@{int(best.name.removeprefix('step-'))}"):
        flags = ("--seed", 1, "--max-new-tokens", 20)
        assert cli("sample", named, *flags) == cli("sample", best, *flags)
        assert cli("eval", named, "--json") == cli("eval", best, "--json")
        assert cli("score", runs / "text.txt", named, "--json") == cli("score", runs / "text.txt", best, "--json")
        assert cli("info", named, "--json") == cli("info", best, "--json")
    assert cli("export", f"{run}@best", tmp_path / "hf").rc == 0
    embedding = load_file(tmp_path / "hf/model.safetensors")["model.embed_tokens.weight"]
    assert any(np.array_equal(array, embedding) for array in weights.values())


def test_a_server_knows_the_best_checkpoint_by_name_and_notes_a_worse_one_at_its_start(runs: Path) -> None:
    notes: list[str] = []
    registry = ModelRegistry([runs / "over", runs / "short"], EngineOptions(), notes.append)
    asyncio.run(registry.open_first())
    assert len(notes) == 1
    assert notes[0].startswith(NOTE)
    for name in ("over", "short"):
        served = asyncio.run(registry.get(f"{name}@best"))
        assert served.weights_sha256 == sha256(lowest_loss(runs / name))
    with pytest.raises(ApiError, match="over has no checkpoint of step 7"):
        asyncio.run(registry.get("over@7"))
    asyncio.run(registry.get("short"))
    assert len(notes) == 1
    best = ModelRegistry([runs / "over@best"], EngineOptions(), pytest.fail)
    assert asyncio.run(best.open_first()).weights_sha256 == sha256(lowest_loss(runs / "over"))


@pytest.mark.system
def test_requests_of_a_server_name_the_best_checkpoint(runs: Path) -> None:
    with serving(runs / "over") as client:
        status, answer = client.ask("/v1/completions", model="over@best", prompt="The", max_tokens=8, seed=1)
    assert status == 200
    assert answer["system_fingerprint"][:12] == sha256(lowest_loss(runs / "over"))[:12]


def test_the_newest_checkpoint_is_taken_with_a_note_where_it_overfitted_and_a_named_one_without(
    runs: Path, cli: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(runs)
    for verb, rest in {
        "sample": ("--max-new-tokens", 1),
        "eval": (),
        "score": (),
        "chat": ("--max-new-tokens", 1),
        "export": (tmp_path / "out",),
    }.items():
        first = ("text.txt",) if verb == "score" else ()
        monkeypatch.setattr("sys.stdin", io.StringIO())
        rc, _, newest = cli(verb, *first, "over", *rest)
        assert rc == 0, verb
        assert re.search(rf"^{NOTE}[\d.]+; over@best \(step \d+\) has [\d.]+$", newest, flags=re.MULTILINE), verb
        for name in ("over@best", "over@300", list_checkpoints(Path("over"))[0], "short"):
            rest = tuple(tmp_path / f"out-{name}".replace("/", "-") if verb == "export" else one for one in rest)
            rc, _, stderr = cli(verb, *first, name, *rest)
            assert (rc, NOTE in stderr) == (0, False), f"{verb} {name}: {stderr}"


def test_a_shell_is_offered_best_and_the_steps_there_are_after_the_at_of_a_run(runs: Path, tmp_path: Path) -> None:
    over = runs / "over"
    steps = [str(checkpoint_step(path)) for path in list_checkpoints(over)]
    assert len(steps) == 2
    assert complete_checkpoint(f"{over}@") == [f"{over}@{which}" for which in ("best", *steps)]
    assert complete_checkpoint(f"{over}@30") == [f"{over}@300"]
    assert complete_checkpoint(f"{over}@b") == [f"{over}@best"]
    for word in ("", f"{runs}/ov", str(over), f"{over}@x", f"{tmp_path}@", "@"):
        assert complete_checkpoint(word) == []


@pytest.mark.parametrize(("newest", "is_noted"), [(1.0, False), (1.0199, False), (1.0201, True), (None, False)])
def test_a_newest_checkpoint_that_is_no_more_than_two_percent_worse_is_taken_without_a_note(
    tmp_path: Path, cli: Run, newest: float | None, is_noted: bool
) -> None:
    run = make_run(tmp_path / "run")
    saved = load(list_checkpoints(run)[0])
    for step, loss in ((1, 3.0), (2, 1.0), (3, newest)):
        save(run, step, saved.model_tensors, {}, {"val_loss": loss}, saved.config, saved.tokenizer)
    assert (NOTE in cli("sample", run, "--max-new-tokens", 1).stderr) is is_noted


def test_a_suggestion_names_a_run_or_a_checkpoint_that_is_there(
    runs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "runs").symlink_to(runs)
    monkeypatch.chdir(tmp_path)
    for name, there in {"over@300": "over@300", "over@best": "over@best", "over@7": "over", "ovr": "over"}.items():
        with pytest.raises(RequestError) as caught:
            find_run(name)
        assert caught.value.choices == (f"runs/{there}",)


def test_a_run_without_a_validation_loss_or_of_other_steps_is_one_error(tmp_path: Path, cli: Run) -> None:
    run = make_run(tmp_path / "run")
    for name, message in {"best": "with a validation loss", "7": "of step 7"}.items():
        rc, _, stderr = cli("sample", f"{run}@{name}")
        assert (rc, stderr.splitlines()[0]) == (2, f"error: {run} has no checkpoint {message}")
        with pytest.raises(RequestError, match=message):
            gpt_cli.load(f"{run}@{name}")


def test_the_end_of_training_and_the_report_name_overfitting_and_only_that(
    runs: Path, cli: Run, tmp_path: Path
) -> None:
    for name, overfits in {"over": True, "short": False}.items():
        end = cli("train", runs / name).stderr
        assert ("overfitting: validation loss rose from" in end) is overfits
        assert (f"gpt sample --run {runs / name}@best has the best weights" in end) is overfits
        assert cli("report", runs / name, "-o", tmp_path / f"{name}.html", "--no-baselines").rc == 0
        page = (tmp_path / f"{name}.html").read_text()
        assert ("Overfitting: validation loss rose from" in page) is overfits
