"""Every hint is followed to the letter, and what it was for is gone: `tests/cli/hints.txt` has the commands."""

import fnmatch
import io
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpt_cli.cli.main import main
from gpt_cli.cli.usage import COMMANDS
from gpt_cli.config.foreign_keys import FOREIGN_KEYS, NEEDS_CONVERSION, assignment
from gpt_cli.config.keys import fields, suggest
from gpt_cli.config.load import parse_overrides
from tests.support.command import ROOT

pytestmark = pytest.mark.robust

ROWS = re.findall(
    r"^\$ gpt (.*)\nerror: (.*)\nhint: ?(.*)\n\$ gpt (.*)$",
    (ROOT / "tests/cli/hints.txt").read_text(encoding="utf-8"),
    flags=re.MULTILINE,
)
TINY = (
    "model.n_layer=1 model.n_head=1 model.n_embd=8 model.context_length=8 train.batch_size=1 train.steps=1"
    " sample.every=null runtime.threads=1"
)
BOOK = "the king and the queen went to the town, and thé mouse lived in a shoe there.\n" * 40


@pytest.fixture(scope="module")
def work_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with texts, a config and two runs, one of which is the newest."""
    work_dir = tmp_path_factory.mktemp("hints")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work_dir)
        patch.setenv("GPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        for name in ("book.txt", "a.txt"):
            Path(name).write_text(BOOK)
        Path("latin1.txt").write_bytes(BOOK.encode("latin-1"))
        Path("utf16.txt").write_text(BOOK, encoding="utf-16")
        Path("prompts.txt").write_text("the\nqueen\n")
        lines = BOOK.splitlines()
        Path("bodies.csv").write_text("body,label\n" + "".join(f'"{line}",x\n' for line in lines))
        Path("notes.jsonl").write_text("".join(f'{{"id": 3, "body": "{line}"}}\n' for line in lines))
        Path("mine.yaml").write_text(
            "data: {source: book.txt}\nmodel: {n_layer: 1, n_head: 1, n_embd: 12, context_length: 8}\n"
        )
        Path("configs").mkdir()
        shutil.copy("mine.yaml", "configs")
        assert main(["tokenize", "book.txt", "--out", "store"]) == 0
        for run, kind in (("bytes", "byte"), ("book", "char")):
            steps = ["train.steps=2", "checkpoint.every=1", f"tokenizer.kind={kind}", f"run_dir=runs/{run}"]
            assert main(["train", "book.txt", *TINY.split(), *steps]) == 0
        shutil.copytree("runs/book", "runs/my book")
        for run in ("my new", "my other", "my third"):
            shutil.copytree("runs/bytes", f"runs/{run}")
            shutil.rmtree(f"runs/{run}/checkpoints")
            for log in ("metrics.jsonl", "events.jsonl"):
                Path(f"runs/{run}", log).unlink()
        shutil.copytree("store", "my store")
        for exported in ("my model", "my model.gguf"):
            assert main(["export", "runs/book", exported]) == 0
        yield work_dir


@pytest.fixture(autouse=True)
def _in_place(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work_dir)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))


def arguments(command: str) -> list[str]:
    return shlex.split(command.replace("TINY", TINY))


def matches(text: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(text, pattern.replace("[", "[[]"))


@pytest.mark.parametrize(("command", "error", "hint", "following"), ROWS, ids=[row[0] for row in ROWS])
def test_who_follows_a_hint_gets_on(command, error, hint, following, capsys):
    newest = Path("runs/book/checkpoints/step-00000002")
    newest.touch()
    assert main(arguments(command)) in (1, 2)
    output = capsys.readouterr().err
    assert matches(output[output.index("error: ") :].partition("\n")[0].removeprefix("error: "), error)
    assert "Traceback" not in output
    printed_hint = next((line.removeprefix("hint: ") for line in output.splitlines() if line.startswith("hint: ")), "")
    assert matches(printed_hint, hint), printed_hint
    newest.touch()
    assert main(arguments(following)) == 0, capsys.readouterr().err


def test_what_other_trainers_call_a_key_leads_to_one_that_there_is():
    for name, key in FOREIGN_KEYS.items():
        assert key in fields()
        assert suggest((name,), 1) == f"did you mean {assignment(name, key, '1') if name in NEEDS_CONVERSION else key}?"


VALUES = {
    **{"report_to": "none", "wandb_log": "True", "bf16": "True", "fp16": "true", "amp": "True", "dtype": "float16"},
    **{"mixed_precision": "bf16-mixed", "warmup_ratio": "0.1", "min_lr": "1e-4"},
    **{"optimizer": "adamw", "gpu": "cuda", "cuda": "cuda", "cpu": "cpu", "gradient_checkpointing": "true"},
    **{"time": "10m", "max_time": "1h", "time_limit": "90s", "minutes": "5m", "hours": "2h"},
    **dict.fromkeys(("lr_scheduler_type", "scheduler", "lr_scheduler", "lr_schedule"), "cosine"),
    **dict.fromkeys(("val_split", "validation_split", "val_ratio", "val_size"), "0.1"),
    **dict.fromkeys(("beta1", "beta2", "adam_beta1", "adam_beta2"), "0.8"),
    **dict.fromkeys(("vocab_size", "vocab"), "512"),
    **dict.fromkeys(("tokenizer", "tokenizer_type"), "BPE"),
    **dict.fromkeys(("optim_kind", "optim_type"), "adamw"),
}


@pytest.mark.parametrize("name", sorted(FOREIGN_KEYS))
def test_a_value_of_another_trainer_becomes_one_that_our_key_takes(name):
    override, _, _ = assignment(name, FOREIGN_KEYS[name], VALUES.get(name, "2")).partition(" (")
    extra = ["tokenizer.kind=bpe"] if "vocab" in name else []
    assert FOREIGN_KEYS[name] in parse_overrides([*shlex.split(override), *extra])


def test_what_other_tools_call_a_command_leads_to_one_that_there_is(capsys):
    for name, command in COMMANDS.items():
        verb = [word for word in command.split()[1:] if re.fullmatch(r"[a-z]+", word)]
        assert main([*verb, "--help"] if not command.endswith(("--help", "--version")) else command.split()[1:]) == 0
        assert main([name]) == 2, name
        assert f"hint: {command}\n" in capsys.readouterr().err, name


def test_the_keys_of_the_help_are_keys(capsys):
    assert main(["train", "--help"]) == 0
    output = re.findall(r"^  ([a-z_]+(?:\.[a-z_]+)?)=", capsys.readouterr().out, flags=re.MULTILINE)
    assert len(output) == 10
    assert set(output) <= fields().keys()
