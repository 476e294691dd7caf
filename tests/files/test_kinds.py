"""A path is of one kind, for all commands alike: each that refuses it names the same kind, and its way out."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from shlex import quote

import pytest

from gpt_cli.cli.hints import WAYS_OUT
from gpt_cli.cli.main import main
from gpt_cli.files.kinds import kind_of, kind_of_names, whole_of
from tests.support.command import Outcome

Run = Callable[..., Outcome]
TINY = (
    "model.n_layer=1 model.n_head=1 model.n_embd=8 model.context_length=8 train.batch_size=1 train.steps=1"
    " sample.every=null runtime.threads=1"
)
TEXT = "the king and the queen went to the town, and the mouse lived in a shoe there.\n" * 40
CHECKPOINT = "runs/book/checkpoints/step-00000001"
KINDS = {
    "runs/book": "run",
    "runs/book/": "run",
    "stopped": "run",
    "logged": "run",
    "damaged": "damaged run",
    "rescued": "damaged run",
    CHECKPOINT: "checkpoint",
    "copied": "checkpoint",
    "runs/book@1": "checkpoint",
    "runs/book@best": "checkpoint",
    "store": "token store",
    "exported": "foreign model",
    "exported.gguf": "foreign model",
    "gguf": "foreign model",
    "weights.safetensors": "foreign model",
    "runs": "runs folder",
    "kept": "runs folder",
    "runs/book/config.yaml": "config",
    "c.yaml": "config",
    "C.YML": "config",
    "gone.yaml": "config",
    "book.txt": "text",
    "texts": "text",
    "mixed": "text",
    "x.yaml": "text",  # a folder
    "empty": "text",
    "lookalike": "text",  # texts beside files with names of ours
    "begun": "text",  # a run whose first files were being written
    "weightless": "checkpoint",
    "transformers": "foreign model",  # with the state of another trainer
    "a" + "@1" * 700: None,
    "runs/book/samples.jsonl": "text",
    "runs/book/metrics.jsonl": "part",
    "runs/book/checkpoints": "part",
    f"{CHECKPOINT}/model.safetensors": "part",
    "exported/model.safetensors": "part",
    "gone": None,
    "gone/gone": None,
    "book.txt/gone": None,
    "runs/gone@1": None,
    "runs/book@last": None,
    "*.txt": None,
    "": None,
    "a\0b": None,
    "a\0b.yaml": None,
    "\ud800": None,
    "x" * 5000: None,
}
WRONG = ["runs/book", CHECKPOINT, "runs/book@1", "store", "exported", "exported.gguf", "weights.safetensors", "runs"]
OF_TEXTS = {
    "train": ["train"],
    "tokenize": ["tokenize"],
    "score": ["score", "--run", "runs/book"],
    "eval": ["eval", "runs/book", "--text"],
    "classify": ["classify", "--run", "runs/classes"],
    "inspect": ["data", "inspect"],
}
TAKEN = {"train": ("run", "token store")}
OF_RUNS = {verb: [verb] for verb in ("sample", "eval", "info", "chat", "doctor")} | {"export": ["export", "out"]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with something of every kind."""
    place = tmp_path_factory.mktemp("kinds")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("GPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        for name in ("book.txt", "texts/a.txt", "mixed/a.txt", "c.yaml", "C.YML"):
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_text("data: {source: book.txt}\n" if name[0] in "cC" else TEXT)
        Path("marks.csv").write_text("text,label\n" + "".join(f"it is {n},{n % 2}\n" for n in range(40)))
        labelled = ["train", "marks.csv", "task.kind=classes", "run_dir=runs/classes", "model.context_length=16"]
        assert main(["train", "book.txt", *TINY.split(), "eval.every=1"]) == 0
        assert main([*labelled, *TINY.split()[:3], *TINY.split()[4:]]) == 0
        assert main(["tokenize", "book.txt", "--out", "store"]) == 0
        assert main(["export", "runs/book", "exported"]) == 0
        assert main(["export", "runs/book", "exported.gguf"]) == 0
        shutil.copy("exported.gguf", "gguf")
        shutil.copy("exported/model.safetensors", "weights.safetensors")
        shutil.copytree(CHECKPOINT, "copied")
        for name in ("damaged", "mixed/book"):
            shutil.copytree("runs/book", name)
        shutil.copytree("runs/book/checkpoints", "rescued/checkpoints")
        Path("damaged/run.json").unlink()
        for name in ("empty", "x.yaml", "stopped"):
            Path(name).mkdir()
        Path("stopped/lock").touch()
        Path("logged").mkdir()
        for name in ("run.json", "metrics.jsonl"):  # it lost the rest
            shutil.copy(f"runs/book/{name}", "logged")
        shutil.copytree("texts", "lookalike")
        for name in ("config.yaml", "data.json", "tokenizer.json", "tokens.json", "checkpoints/x/state.json"):
            Path("lookalike", name).parent.mkdir(parents=True, exist_ok=True)
            Path("lookalike", name).write_text("{}")
        Path("lookalike/tokens.json").rename("lookalike/words.json")
        Path("begun").mkdir()
        for name in ("config.yaml", "tokenizer.json", "data.json", "lock"):
            shutil.copy(f"runs/book/{name}", "begun")
        shutil.copytree(CHECKPOINT, "weightless")
        Path("weightless/model.safetensors").unlink()
        shutil.copytree("exported", "transformers")
        Path("transformers/state.json").write_text("{}")
        Path("kept").mkdir()
        shutil.copytree("runs/book", "kept/book")
        Path("kept/book.txt").write_text(TEXT)  # as standard input is kept
    return place


@pytest.fixture
def gpt(gpt_here: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(place)
    return gpt_here


@pytest.mark.usefixtures("gpt")
@pytest.mark.parametrize("path", KINDS)
def test_the_kind_of_a_path(path: str) -> None:
    assert kind_of(path) == KINDS[path]
    assert kind_of(os.path.abspath(path) if path and "\0" not in path else path) == KINDS[path]


@pytest.mark.usefixtures("gpt")
def test_the_names_in_a_folder_tell_its_kind_as_a_look_at_it_does() -> None:
    for path in ("runs/book", "stopped", "damaged", CHECKPOINT, "store", "exported"):
        assert kind_of_names(os.listdir(path)) == KINDS[path]
    assert kind_of_names(os.listdir("texts")) is None


@pytest.mark.usefixtures("gpt")
def test_a_part_has_its_whole() -> None:
    assert whole_of(Path("runs/book/metrics.jsonl")) == Path("runs/book")
    assert whole_of(Path(CHECKPOINT, "model.safetensors")) == Path(CHECKPOINT)
    assert whole_of(Path("weights.safetensors")) is None


@pytest.mark.parametrize("path", WRONG)
def test_all_commands_that_refuse_a_path_name_its_kind(gpt: Run, path: str) -> None:
    kind = KINDS[path]
    commands = {verb: [*words, path] for verb, words in OF_TEXTS.items() if kind not in TAKEN.get(verb, ())}
    if kind not in ("run", "checkpoint"):
        commands |= {verb: [words[0], path, *words[1:]] for verb, words in OF_RUNS.items()}
    for command in commands.values():
        outcome = gpt(*command)
        assert outcome.rc == 2, (command, outcome)
        hint = WAYS_OUT[kind].format(path=quote(path))  # type: ignore[index]
        assert outcome.stderr.endswith(f"\nhint: {hint}\n"), (command, outcome)


def test_what_is_a_part_is_refused_with_the_way_out_of_its_whole(gpt: Run) -> None:
    for words in OF_TEXTS.values():
        outcome = gpt(*words, "runs/book/metrics.jsonl")
        assert outcome.rc == 2, (words, outcome)
        assert outcome.stderr.endswith("\nhint: gpt train runs/book resumes it\n"), (words, outcome)
    for words in OF_RUNS.values():
        outcome = gpt(words[0], "runs/book/metrics.jsonl", *words[1:])
        assert outcome.rc == 2, (words, outcome)
        assert outcome.stderr.endswith("\nhint: did you mean runs/book?\n"), (words, outcome)


def test_a_text_in_the_place_of_a_run_is_refused_as_a_text(gpt: Run) -> None:
    for words in OF_RUNS.values():
        outcome = gpt(words[0], "book.txt", *words[1:])
        assert outcome.rc == 2, (words, outcome)
        assert "book.txt" in outcome.stderr.partition("\nhint: ")[2], (words, outcome)


@pytest.mark.parametrize("path", ["damaged", "rescued"])
def test_a_damaged_run_is_no_text_and_no_run(gpt: Run, path: str) -> None:
    for verb, words in OF_TEXTS.items():
        outcome = gpt(*words, path)
        assert outcome.rc == (1 if verb == "train" else 2), (words, outcome)
    for words in OF_RUNS.values():
        outcome = gpt(words[0], path, *words[1:])
        assert outcome.rc == 1, (words, outcome)
        assert outcome.stderr.endswith("/checkpoints/step-00000001?\n"), (words, outcome)
