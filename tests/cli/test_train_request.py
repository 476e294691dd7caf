"""What `gpt train` is asked for is what it trains: a text in any encoding, a config, a run, standard input, a base."""

import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpt_cli.cli.main import main
from gpt_cli.cli.options.train_request import resolve
from gpt_cli.config import Config, dump_config, load_config
from gpt_cli.config.keys import replace_keys
from gpt_cli.errors import RequestError
from gpt_cli.search import auto_config, time_budget
from tests.support.command import ROOT, subprocess_env
from tests.support.waiting import HANG

LINE = "Der müde Bär überquert die Straße, während es schneit und es über Nacht kälter wird.\n"
TEXT = LINE * 100
TINY_MODEL = ["model.n_layer=1", "model.n_head=2", "model.n_embd=16", "model.context_length=16", "train.batch_size=2"]
QUICK_RUN = [*TINY_MODEL, "train.steps=2", "sample.every=null", "runtime.device=cpu", "runtime.threads=1"]


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.txt").write_text(TEXT)
    Path("latin1.txt").write_bytes(TEXT.encode("latin-1"))
    Path("utf16.txt").write_text(TEXT, encoding="utf-16")
    rows = "".join(f'"{LINE.strip()}",kurz {n % 7}\n' for n in range(100))
    Path("table.csv").write_text(f"text,label\n{rows}")
    for name in ("bodies.csv", "others.csv"):
        Path(name).write_text(f"body,label\n{rows}")


def requested_config(*arguments: str) -> Config:
    return resolve(arguments, stdin="discard").config


def notes(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[Config, str]:
    config = requested_config(*arguments)
    return config, " ".join(capsys.readouterr().err.split())


SOURCE_OVERRIDES = {
    "latin1.txt": (["data.encoding=latin-1"], len(TEXT)),
    "utf16.txt": (["data.encoding=utf-16"], len(TEXT)),
    "bodies.csv": (["data.text_key=body"], 100 * len(LINE) - 1),
    "table.csv": (["data.text_key=label"], 100 * len("kurz 0")),
}


@pytest.mark.parametrize("source", SOURCE_OVERRIDES)
def test_a_text_is_fitted_as_it_is_read(source, capsys):
    overrides, characters = SOURCE_OVERRIDES[source]
    config, stderr = notes(capsys, source, *overrides)
    key, _, value = overrides[0].removeprefix("data.").partition("=")
    assert getattr(config.data, key) == value
    count = stderr.partition(" characters")[0].rpartition(" ")[2]
    assert int(count.replace(",", "")) == pytest.approx(characters, abs=100)


def test_a_text_in_any_encoding_is_trained_scored_evaluated_and_made_a_config(gpt_here):
    assert gpt_here("train", "latin1.txt", "data.encoding=latin-1", *QUICK_RUN).rc == 0
    for verb in (["score"], ["eval", "--text"]):
        outcome = gpt_here(*verb, "latin1.txt")
        assert outcome.rc == 1
        assert "--encoding latin-1" in outcome.stderr
        assert gpt_here(*verb, "latin1.txt", "--encoding", "latin-1", "--json").rc == 0
        table_outcome = gpt_here(*verb, "bodies.csv")
        assert "--text-key" in table_outcome.stderr
        assert gpt_here(*verb, "bodies.csv", "--text-key", "body", "--json").rc == 0
    init_outcome = gpt_here("config", "init", "latin1.txt", "data.encoding=latin-1", "-o", "mine.yaml")
    assert init_outcome.rc == 0, init_outcome.stderr
    assert load_config(Path("mine.yaml")).data.encoding == "latin-1"


def test_a_config_in_place_of_the_text_is_a_config():
    shutil.copytree(ROOT / "configs", "configs")
    assert requested_config("configs/quickstart.yaml", "train.steps=7") == load_config(
        Path("configs/quickstart.yaml"), ["train.steps=7"]
    )
    with pytest.raises(RequestError, match="folder of configs") as excinfo:
        requested_config("configs")
    assert excinfo.value.kind == "config"
    assert requested_config(str(excinfo.value.path)).run_dir == "runs/classify"
    with pytest.raises(RequestError, match=r"no config file configs/quikstart\.yaml"):
        requested_config("configs/quikstart.yaml")


def test_a_folder_of_texts_among_which_are_configs_is_a_text():
    Path("project").mkdir()
    Path("project/notes.md").write_text(TEXT)
    Path("project/settings.yaml").write_text("a: 1\n")
    assert requested_config("project").data.source == "project"


def test_a_key_of_a_file_without_effect_is_told_once(gpt_here):
    Path("c.yaml").write_text("data: {source: s.txt}\noptim: {name: adamw, momentum: 0.9}\nrun_dir: runs/c\n")
    told = "optim.momentum has no effect here: it needs optim.name=muon"
    assert told in gpt_here("train", "c.yaml", *QUICK_RUN).stderr
    for arguments in (["c.yaml", *QUICK_RUN], ["runs/c"], ["runs/c", "run_dir=runs/d"]):
        assert "no effect" not in gpt_here("train", *arguments, "--dry-run").stderr


def test_what_a_recipe_sets_is_not_told_as_a_key_of_the_file(capsys):
    Path("c.yaml").write_text("recipe: speed\ndata: {source: s.txt}\n")
    assert "no effect" not in notes(capsys, "c.yaml", "optim.name=adamw", "schedule.kind=cosine")[1]


def test_no_key_of_the_configs_is_without_effect(capsys):
    for config in sorted((ROOT / "configs").rglob("*.yaml")):
        assert "no effect" not in notes(capsys, str(config), "data.source=s.txt")[1]


def test_a_run_resumes_by_its_name_and_so_does_its_config(gpt_here):
    assert gpt_here("train", "s.txt", *QUICK_RUN).rc == 0
    for number, run_path in enumerate(("runs/s", "runs/s/", "runs/s/config.yaml"), start=3):
        outcome = gpt_here("train", run_path, f"train.steps={number}", "--json")
        assert outcome.rc == 0, outcome.stderr
        assert (json.loads(outcome.stdout)["run_dir"], json.loads(outcome.stdout)["steps"]) == ("runs/s", number)
    with pytest.raises(RequestError, match="is a checkpoint") as excinfo:
        requested_config("runs/s/checkpoints/step-00000005")
    assert (excinfo.value.kind, excinfo.value.path) == ("checkpoint", "runs/s/checkpoints/step-00000005")
    shutil.copytree("runs/s/checkpoints/step-00000005", "alone")
    with pytest.raises(RequestError, match="is a checkpoint") as excinfo:
        requested_config("alone")
    assert (excinfo.value.kind, excinfo.value.path) == ("checkpoint", "alone")


OPENED: list[str] = []


@pytest.fixture(scope="module")
def opened() -> list[str]:
    """The configs that are opened for reading; the hook stays, as hooks of the interpreter do."""
    sys.addaudithook(_record)
    return OPENED


def _record(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and str(arguments[0]).endswith("config.yaml") and arguments[1] in ("r", "rb"):
        OPENED.append(str(arguments[0]))


@pytest.mark.parametrize("named", ["runs/s", "s.txt"])
def test_a_resumed_run_opens_its_config_once(gpt_here, opened, named):
    assert gpt_here("train", "s.txt", *QUICK_RUN).rc == 0
    os.utime("runs/s/config.yaml", (1e9, 1e9))  # one that was written just now may still change
    opened.clear()
    assert gpt_here("train", named, "train.steps=3").rc == 0
    assert opened.count("runs/s/config.yaml") == 1


def test_a_copied_run_goes_on_in_the_copy_and_leaves_the_original_alone(gpt_here):
    assert gpt_here("train", "s.txt", *QUICK_RUN).rc == 0
    shutil.copytree("runs/s", "elsewhere/copied")
    original_files = {path: path.read_bytes() for path in Path("runs/s").rglob("*") if path.is_file()}
    for number, run_args in ((4, ["elsewhere/copied"]), (5, ["--config", "elsewhere/copied/config.yaml"])):
        outcome = gpt_here("train", *run_args, f"train.steps={number}", "--json")
        assert outcome.rc == 0, outcome.stderr
        assert json.loads(outcome.stdout)["run_dir"] == "elsewhere/copied"
        assert json.loads(outcome.stdout)["steps"] == number
    assert {path: path.read_bytes() for path in Path("runs/s").rglob("*") if path.is_file()} == original_files
    assert requested_config("elsewhere/copied", "run_dir=runs/new").run_dir == "runs/new"


def set_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_standard_input_is_kept_beside_the_run_which_resumes_from_there(gpt_here, monkeypatch):
    set_stdin(monkeypatch, TEXT.encode("latin-1"))
    first_outcome = gpt_here("train", "-", "data.encoding=latin-1", *QUICK_RUN)
    assert first_outcome.rc == 0, first_outcome.stderr
    assert "gpt train runs/standard-input" in first_outcome.stderr
    assert Path("runs/standard-input.txt").read_bytes() == TEXT.encode("latin-1")
    assert gpt_here("train", "runs/standard-input", "train.steps=3").rc == 0
    set_stdin(monkeypatch, TEXT.encode("latin-1"))  # the same command again
    assert gpt_here("train", "-", "data.encoding=latin-1", *QUICK_RUN, "train.steps=4").rc == 0
    set_stdin(monkeypatch, b"another text")
    conflict_outcome = gpt_here("train", "-", *QUICK_RUN)
    assert conflict_outcome.rc == 2
    assert "run_dir=runs/NAME" in conflict_outcome.stderr
    assert Path("runs/standard-input.txt").read_bytes() == TEXT.encode("latin-1")
    set_stdin(monkeypatch, TEXT.encode())
    assert gpt_here("train", "-", *QUICK_RUN, "run_dir=runs/NAME").rc == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == [
        "NAME", "NAME.txt", "standard-input", "standard-input.txt",
    ]  # fmt: skip


def test_a_pipe_which_can_be_read_once_is_refused_before_it_is_read(gpt_here):
    os.mkfifo("pipe")
    outcome = gpt_here("train", "pipe", *QUICK_RUN)
    assert outcome.rc == 2
    assert "error: pipe is a pipe, which is read once" in outcome.stderr


@pytest.mark.parametrize(
    ("data", "code", "words"), [(b"", 1, "standard input is empty"), (None, 2, "standard input is closed")]
)
def test_no_standard_input_leaves_nothing(gpt_here, monkeypatch, data, code, words):
    if data is None:
        monkeypatch.setattr(sys, "stdin", None)
    else:
        set_stdin(monkeypatch, data)
    outcome = gpt_here("train", "-")
    assert outcome.rc == code
    assert words in outcome.stderr
    assert not list(Path().rglob("*standard*"))


def test_a_config_whose_text_is_standard_input_keeps_it_and_resumes_without(gpt_here, monkeypatch):
    Path("c.yaml").write_text("data: {source: ['-', s.txt]}")
    set_stdin(monkeypatch, LINE.encode())
    assert gpt_here("train", "c.yaml", *QUICK_RUN, "run_dir=runs/c").rc == 0
    assert load_config(Path("runs/c/config.yaml")).data.source == ["runs/c.txt", "s.txt"]
    set_stdin(monkeypatch, b"")
    assert gpt_here("train", "runs/c", "train.steps=3").rc == 0
    set_stdin(monkeypatch, LINE.encode())
    assert gpt_here("train", "c.yaml", *QUICK_RUN, "run_dir=runs/c", "train.steps=4").rc == 0


def test_a_run_of_an_older_version_on_standard_input_resumes_from_it(gpt_here, monkeypatch):
    assert gpt_here("train", "s.txt", *QUICK_RUN).rc == 0
    file = Path("runs/s/config.yaml")
    file.write_text(file.read_text().replace("source: s.txt", "source: '-'"))
    set_stdin(monkeypatch, TEXT.encode())
    outcome = gpt_here("train", "runs/s", "train.steps=3")
    assert outcome.rc == 0, outcome.stderr
    assert not Path("runs/s.txt").exists()


def test_one_end_of_input_ends_the_text_of_a_terminal(tmp_path):
    terminal, its_end = pty.openpty()
    command = [sys.executable, "-m", "gpt_cli", "train", "-", *QUICK_RUN]
    process = subprocess.Popen(command, cwd=tmp_path, env=subprocess_env(), stdin=its_end, stderr=subprocess.DEVNULL)
    os.close(its_end)
    os.write(terminal, TEXT[:4000].replace("ä", "\n").encode() + b"\n\x04")
    assert process.wait(timeout=HANG) == 0
    os.close(terminal)


def test_a_dry_run_of_standard_input_leaves_nothing(gpt_here, monkeypatch):
    old_paths = sorted(Path().rglob("*"))
    set_stdin(monkeypatch, TEXT.encode())
    assert gpt_here("train", "-", *QUICK_RUN, "--dry-run").rc == 0
    assert sorted(Path().rglob("*")) == old_paths


def test_a_budget_is_lifted_with_the_time_limit_that_it_chose(gpt_here):
    assert gpt_here("train", "s.txt", *QUICK_RUN, "train.max_minutes=1").rc == 0
    file = Path("runs/s/config.yaml")
    file.write_text(file.read_text().replace("budget: null", "budget: 1m"))
    assert gpt_here("train", "runs/s", "train.budget=null").rc == 2  # the run keeps what it was begun with
    for run, limit, minutes in (("runs/on", [], None), ("runs/other", ["train.max_minutes=2"], 2)):
        assert gpt_here("train", "runs/s", f"run_dir={run}", "train.budget=null", *limit).rc == 0
        assert load_config(Path(run, "config.yaml")).train.max_minutes == minutes


def test_a_run_resumes_by_the_same_command_once_the_tokenizer_that_it_named_is_gone(gpt_here):
    assert gpt_here("train", "s.txt", *QUICK_RUN).rc == 0
    Path("c.yaml").write_text("data: {source: s.txt}\ntokenizer: {file: runs/s/tokenizer.json}")
    command = ("train", "c.yaml", *QUICK_RUN, "run_dir=runs/other")
    assert gpt_here(*command).rc == 0
    Path("runs/s").rename("moved")
    resumed = gpt_here(*command, "train.steps=4", "--json")
    assert json.loads(resumed.stdout)["steps"] == 4
    assert gpt_here("train", "c.yaml", *QUICK_RUN, "run_dir=runs/new").rc == 2


INVALID_OVERRIDES = {
    "unknown key": (["batch_size=4"], "train.batch_size"),
    "wrong type": (["train.steps=many"], "'many'"),
    "out of range": (["model.dropout=2"], "dropout"),
    "no time": (["train.budget=soon"], "90s"),
    "several": (["lr=0.1", "model.n_layr=3"], "optim.lr"),
    "not together": (["model.n_embd=10", "model.n_head=3"], "multiple"),
    "too many weights": (["data.weights=[1, 2]"], "a number for each of data.source"),
}


@pytest.mark.parametrize("name", INVALID_OVERRIDES)
def test_overrides_are_checked_before_any_text_is_read(name, monkeypatch):
    overrides, words = INVALID_OVERRIDES[name]
    monkeypatch.setattr(auto_config, "fit_config", lambda *_, **__: pytest.fail("the text was read"))
    with pytest.raises(RequestError) as excinfo:
        requested_config("s.txt", *overrides)
    assert words in excinfo.value.render()


def test_what_is_at_odds_with_what_was_fitted_is_told_with_its_keys():
    with pytest.raises(RequestError) as excinfo:
        requested_config("s.txt", "data.test_fraction=0.95")
    assert excinfo.value.keys[:2] == ("data.val_fraction", "data.test_fraction")


PLANS: list[tuple[list[str], Callable[[Config, str], Any]]] = [
    (["tokenizer.kind=byte"], lambda _, stderr: "One token per byte" in stderr),
    (["tokenizer.kind=bpe", "tokenizer.vocab_size=300"], lambda _, stderr: "BPE with 300 tokens" in stderr),
    (["tokenizer.vocab_size=300"], lambda config, stderr: config.tokenizer.kind == "bpe" and "BPE with 300" in stderr),
    (["model.n_layer=3", "model.n_embd=48"], lambda _, stderr: "3 layers of width 48, as asked." in stderr),
    (["model.context_length=32"], lambda _, stderr: "sees 32 tokens at once" in stderr),
    (["model.dropout=0.3"], lambda _, stderr: "Dropout 0.3, as asked." in stderr),
    (["train.steps=80"], lambda config, _: config.eval.every == config.checkpoint.every <= 40),
    (["data.val_fraction=0.25"], lambda _, stderr: "The last 25% of it is held out" in stderr),
    (
        ["data.val_source=others.csv", "data.text_key=body"],
        lambda _, stderr: "another text are its validation" in stderr,
    ),
    (["model.n_head=3"], lambda config, _: config.model.n_embd % 6 == 0),
    (["model.n_embd=20"], lambda config, _: 20 % (2 * config.model.n_head) == 0),
]


@pytest.mark.parametrize(("overrides", "holds"), PLANS, ids=[" ".join(overrides) for overrides, _ in PLANS])
def test_the_plan_that_is_told_is_that_of_the_run(overrides, holds, capsys):
    source = "s.txt" if "data.text_key=body" not in overrides else "bodies.csv"
    config, stderr = notes(capsys, source, *overrides)
    assert holds(config, stderr), stderr
    steps, context = config.train.steps, config.model.context_length
    assert f"in {steps:,} steps" in stderr
    assert f"sees {context} tokens" in stderr


def test_less_than_one_epoch_is_told_with_the_steps_that_read_all(gpt_here):
    outcome = gpt_here("train", "s.txt", *QUICK_RUN)
    plan, _, training_log = outcome.stderr.partition("training: runs/s")
    plan = " ".join(plan.split())
    words = plan.split("% of its training text")
    assert len(words) == 2
    share = float(words[0].rpartition(" ")[2])
    epoch_steps = int(plan.partition("train.steps=")[2].partition(" ")[0].replace(",", ""))
    assert 0 < share < 5
    assert epoch_steps == pytest.approx(100 * 2 / share, rel=0.05)
    assert f"% of the text; train.steps={epoch_steps} would read" in training_log


@pytest.mark.parametrize(
    "arguments",
    [["s.txt"], ["table.csv", "data.text_key=label"], ["s.txt", "tokenizer.kind=byte"], ["notes.jsonl"]],
    ids=" ".join,
)
def test_the_plan_counts_what_the_run_reads(arguments, capsys):
    Path("notes.jsonl").write_text("".join(f'{{"text": "note {n}"}}\n' for n in range(800)))
    assert main(["train", *arguments, *QUICK_RUN]) == 0
    plan, _, training_log = capsys.readouterr().err.partition("training: ")
    epoch_steps = re.findall(r"train\.steps=(\d+)", plan + training_log)
    assert len(epoch_steps) == 2
    assert epoch_steps[0] == epoch_steps[1]
    match = re.search(r"(\d+) distinct", plan)
    assert "byte" in plan or (match and f"char vocabulary of {match[1]}" in training_log)


@pytest.mark.parametrize("size", [300, 1000])
def test_the_plan_of_a_bpe_is_about_what_the_run_reads(size, capsys):
    arguments = [*QUICK_RUN, "data.source=builtin:python-docs", f"tokenizer.vocab_size={size}"]
    assert main(["train", *arguments]) == 0
    plan, _, log = capsys.readouterr().err.partition("training: ")
    plan_share, log_share = (float(re.search(r"([\d.]+)%\s+of (?:its|the)", output)[1]) for output in (plan, log))  # type: ignore[index]
    assert plan_share == pytest.approx(log_share, rel=0.2)
    assert "about" in plan
    file = f"tokenizer.file={Path('runs/python-docs/tokenizer.json')}"
    assert main(["train", "builtin:python-docs", *QUICK_RUN, "tokenizer.kind=bpe", file, "run_dir=runs/again"]) == 0
    plan = capsys.readouterr().err.partition("training: ")[0]
    plan_share = float(re.search(r"([\d.]+)%\s+of its", plan)[1])  # type: ignore[index]
    assert plan_share == pytest.approx(log_share, rel=0.05)


def test_a_base_of_another_shape_is_refused_before_the_text_is_read(gpt_here, monkeypatch):
    assert gpt_here("train", "s.txt", *QUICK_RUN).rc == 0
    monkeypatch.setattr(auto_config, "fit_config", lambda *_, **__: pytest.fail("the text was read"))
    with pytest.raises(RequestError, match=r"model\.n_head=1 asks for another model than runs/s, where it is 2"):
        requested_config("latin1.txt", "train.init_from=runs/s", "model.n_head=1")
    with pytest.raises(RequestError, match="contradict each other"):
        requested_config("s.txt", "train.budget=10m", "train.steps=3", "run_dir=runs/other")


def test_a_base_of_another_model_is_told_by_the_keys_that_differ_as_they_are_written(gpt_here):
    assert gpt_here("train", "s.txt", *QUICK_RUN, "model.n_head=4").rc == 0
    Path("c.yaml").write_text("data: {source: s.txt}\nmodel: {n_layer: 1, n_head: 2, n_embd: 16, context_length: 16}\n")
    outcome = gpt_here("train", "c.yaml", "train.init_from=runs/s", "run_dir=runs/x")
    assert "model.n_head: 4 there, 2 here" in outcome.stderr
    assert "null there, null here" not in outcome.stderr


def test_chats_are_trained_on_as_chats_unless_they_are_asked_for_as_texts(gpt_here):
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    Path("chats.jsonl").write_text(
        "".join(json.dumps({"messages": [*talk, talk[0], talk[1]][: 2 + n % 3]}) + "\n" for n in range(40))
    )
    quick = [*QUICK_RUN, "model.context_length=128"]
    assert gpt_here("train", "chats.jsonl", *quick).rc == 0
    assert load_config(Path("runs/chats/config.yaml")).data.format == "chat"
    assert gpt_here("train", "chats.jsonl", *quick, "train.steps=3").rc == 0  # resumes
    outcome = gpt_here("train", "chats.jsonl", "data.text_key=messages", "run_dir=runs/other")
    assert outcome.rc == 1
    assert "no text under the key 'messages': it is a list" in outcome.stderr


def test_a_budget_leaves_the_context_to_the_longest_example(gpt_here, monkeypatch):
    rows = [{"prompt": f"{n} {'sea ' * 20}", "completion": "sun " * 20} for n in range(60)]
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    written: list[frozenset[str]] = []

    def config_for_budget(config, seconds, corpus, keys, note):
        written.append(keys)
        return time_budget.BudgetedRun(replace_keys(config, {"train.steps": 1}))

    monkeypatch.setattr(time_budget, "config_for_budget", config_for_budget)
    assert gpt_here("train", "pairs.jsonl", "train.budget=10m").rc == 0
    assert load_config(Path("runs/pairs/config.yaml")).model.context_length == 256
    assert "model.context_length" in written[0]


def test_a_base_that_learned_a_template_keeps_it(gpt_here):
    rows = [{"prompt": f"{n} {'sea ' * 3}", "completion": "sun"} for n in range(60)]
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    template = ["data.prompt_end=' => '", 'data.completion_end="\\n"']
    assert gpt_here("train", "pairs.jsonl", "train.steps=2", *template, "run_dir=runs/base").rc == 0
    sample = load_config(Path("runs/base/config.yaml")).sample
    assert (sample.suffix, sample.stop) == (" => ", ["\n"]), "the template is that of the override"
    for source, ends in (("pairs.jsonl", (" => ", "\n")), ("s.txt", ("\x02", "\x03"))):
        assert (
            gpt_here("train", source, "train.init_from=runs/base", "train.steps=2", "run_dir=runs/" + source[0]).rc == 0
        )
        data = load_config(Path("runs", source[0], "config.yaml")).data
        assert (data.prompt_end, data.completion_end) == ends


def test_an_address_is_shown_as_it_was_given(gpt_here):
    outcome = gpt_here("train", "https://example.com/a.txt")
    assert "error: https://example.com/a.txt does not exist\n" in outcome.stderr


def test_several_texts_are_one_source(gpt_here):
    config = requested_config("s.txt", "bodies.csv", "data.text_key=body", "data.weights=[2, 1]")
    assert (config.data.source, config.run_dir) == (["s.txt", "bodies.csv"], "runs/s-and-1-more")
    assert requested_config("data.source=s.txt").data.source == "s.txt"


@pytest.mark.parametrize("characters", [100, 10_000, 300_000])
def test_bpe_alone_chooses_a_vocabulary_that_the_text_supports_and_says_so(gpt_here, characters):
    Path("long.txt").write_text((TEXT * (characters // len(TEXT) + 1))[:characters])
    overrides = ["model.context_length=2"]
    train_outcome = gpt_here("train", "long.txt", "tokenizer.kind=bpe", *QUICK_RUN, *overrides)
    assert train_outcome.rc == 0, train_outcome.stderr
    assert "BPE with " in train_outcome.stderr
    Path("c.yaml").write_text("data: {source: long.txt}\ntokenizer: {kind: bpe}\n")
    for attempt in range(2):  # the vocabulary is a function of the text, so that the run resumes
        resume_outcome = gpt_here("train", "c.yaml", *QUICK_RUN, *overrides, f"train.steps={2 + attempt}", "--json")
        assert resume_outcome.rc == 0, resume_outcome.stderr
    tokenize_outcome = gpt_here("tokenize", "long.txt", "--kind", "bpe", "--out", "store", "--json")
    assert tokenize_outcome.rc == 0, tokenize_outcome.stderr
    assert gpt_here("train", "store", *QUICK_RUN, *overrides).rc == 0


def test_a_text_and_a_base_are_all_that_tuning_needs(gpt_here):
    assert gpt_here("train", "s.txt", *QUICK_RUN, "tokenizer.kind=byte", "model.n_kv_head=1").rc == 0
    Path("other.txt").write_text("An entirely different text, which the base has not seen before.\n" * 80)
    tune_outcome = gpt_here(
        "train", "other.txt", "train.init_from=runs/s", "train.steps=3", "sample.every=null", "--json"
    )
    assert tune_outcome.rc == 0, tune_outcome.stderr
    assert "a tenth of those there" in tune_outcome.stderr
    base_config, tuned_config = (load_config(Path(run, "config.yaml")) for run in ("runs/s", "runs/other-from-s"))
    assert tuned_config.model.model_copy(update={"dropout": base_config.model.dropout}) == base_config.model
    assert tuned_config.optim.lr == pytest.approx(base_config.optim.peak_lr / 10)
    assert tuned_config.train.init_from == "runs/s"
    resume_outcome = gpt_here("train", "runs/other-from-s", "train.steps=4", "--json")
    assert json.loads(resume_outcome.stdout)["steps"] == 4
    repeat_outcome = gpt_here("train", "other.txt", "train.init_from=runs/s", "train.steps=5", "--json")
    assert json.loads(repeat_outcome.stdout)["steps"] == 5
    Path("runs/s").rename("moved")
    without_base_outcome = gpt_here("train", "other.txt", "train.init_from=runs/s", "train.steps=6", "--json")
    assert json.loads(without_base_outcome.stdout)["steps"] == 6
    Path("moved").rename("runs/s")
    conflict_outcome = gpt_here(
        "train", "other.txt", "train.init_from=runs/s", "tokenizer.kind=char", "run_dir=runs/no"
    )
    assert conflict_outcome.rc == 2
    assert "tokenizer.kind=char asks for another tokenizer than runs/s, where it is byte" in conflict_outcome.stderr
    second_tune_outcome = gpt_here(
        "train", "s.txt", "train.init_from=runs/other-from-s", "train.steps=0", "optim.lr=0.5"
    )
    assert second_tune_outcome.rc == 0, second_tune_outcome.stderr
    assert load_config(Path("runs/s-from-other-from-s/config.yaml")).optim.lr == 0.5


def test_a_config_that_was_fitted_says_the_same_run(capsys):
    assert dump_config(requested_config("s.txt", *TINY_MODEL)) == dump_config(requested_config("s.txt", *TINY_MODEL))


def test_a_run_finds_its_text_from_any_folder_also_when_it_was_moved(monkeypatch, tmp_path):
    Path("project").mkdir()
    monkeypatch.chdir("project")
    Path("mine.txt").write_text(TEXT)
    assert main(["train", "mine.txt", *QUICK_RUN]) == 0
    config_text = Path("runs/mine/config.yaml").read_text()
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_text("another text of the same name, which is not meant\n" * 50)
    assert main(["eval", "project/runs/mine"]) == 0
    assert main(["doctor", "project/runs/mine"]) == 0
    assert main(["train", "project/runs/mine", "train.steps=3"]) == 0
    assert Path("project/runs/mine/config.yaml").read_text() == config_text.replace("steps: 2\n", "steps: 3\n", 1)
    Path("project").rename("moved")
    assert main(["eval", "moved/runs/mine"]) == 0
    monkeypatch.chdir(tmp_path / "moved")
    assert main(["train", "runs/mine", "train.steps=4"]) == 0
    monkeypatch.chdir(tmp_path)
    assert main(["eval", "moved/runs/mine/checkpoints/step-00000004"]) == 0


def test_a_copied_run_finds_the_text_where_it_was_started(tmp_path, monkeypatch):
    Path("project").mkdir()
    monkeypatch.chdir("project")
    Path("mine.txt").write_text(TEXT)
    assert main(["train", "mine.txt", *QUICK_RUN]) == 0
    shutil.copytree("runs/mine", tmp_path / "copied")
    monkeypatch.chdir(tmp_path)
    assert load_config(Path("copied/config.yaml")).data.source == str(tmp_path / "project/mine.txt")
    assert main(["eval", "copied"]) == 0


@pytest.mark.parametrize("source", ["builtin:python-docs", "corpus:x", "hf:a/b", "-", "~/x.txt", "/x.txt"])
def test_what_is_no_relative_path_stays_as_it_is_written(tmp_path, source):
    home = tmp_path / "elsewhere/runs/x"
    home.mkdir(parents=True)
    (home / "run.json").write_text("{}")
    (home / "config.yaml").write_text(f"run_dir: runs/x\ndata: {{source: '{source}'}}\n")
    assert load_config(home / "config.yaml").data.source == source


def test_lines_that_end_in_a_carriage_return_are_told(capsys):
    Path("crlf.txt").write_bytes(TEXT.replace("\n", "\r\n").encode())
    assert "carriage return" in notes(capsys, "crlf.txt", *TINY_MODEL)[1]
    assert "carriage return" not in notes(capsys, "s.txt", *TINY_MODEL)[1]


@pytest.mark.parametrize("name", ["table.tsv", "list.json"])
def test_a_table_that_is_read_as_text_is_told(gpt_here, name):
    Path(name).write_text(TEXT)
    output = gpt_here("train", name, *QUICK_RUN).stderr
    assert output.count(f"{name} is read as plain text") == 1


def test_an_overridden_path_is_one_from_here_though_the_config_of_a_run_elsewhere_has_it(tmp_path, monkeypatch):
    there, here = tmp_path / "there", tmp_path / "here"
    for folder, text in ((there, TEXT), (here, TEXT * 2)):
        folder.mkdir()
        (folder / "book.txt").write_text(text)
    monkeypatch.chdir(there)
    assert main(["train", "book.txt", *QUICK_RUN, "run_dir=runs/a"]) == 0
    monkeypatch.chdir(here)
    config = "../there/runs/a/config.yaml"
    assert Path(requested_config(config).data.sources[0]).resolve() == there / "book.txt"
    overridden = requested_config(config, "data.source=book.txt", "run_dir=runs/b")
    assert Path(overridden.data.sources[0]).resolve() == here / "book.txt"
    assert main(["train", "../there/runs/a", "data.source=book.txt", "train.steps=3"]) == 2  # it has another text


def test_a_name_that_is_mistyped_is_no_text_of_a_run_with_its_last_part(capsys):
    assert main(["train", "s.txt", *QUICK_RUN]) == 0
    capsys.readouterr()
    assert main(["train", "nowhere/s.txt", *QUICK_RUN]) == 2
    assert "error: nowhere/s.txt does not exist" in capsys.readouterr().err


def test_tokens_and_epochs_of_pairs_are_those_that_were_read_and_what_is_left_out_is_in_neither(capsys):
    pairs = [{"prompt": f"{n:02}", "completion": "ab" if n % 2 else "ab" * 40} for n in range(100)]
    Path("p.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    arguments = ["data.source=p.jsonl", "data.format=pairs", "data.too_long=drop", "train.steps=10", "run_dir=runs/p"]
    Path("c.yaml").write_text("data: {split: documents}\n")
    assert main(["train", "c.yaml", *TINY_MODEL, *arguments, *QUICK_RUN[-3:]]) == 0
    output = capsys.readouterr().err
    too_long, of_all = map(int, re.search(r"(\d+) of (\d+) training examples are longer", output).groups())
    kept = of_all - too_long
    last = json.loads(Path("runs/p/metrics.jsonl").read_text().splitlines()[-1])
    assert last["epochs"] == pytest.approx(10 * 2 / kept, abs=1e-4)
    assert f"reads  {100 * 20 / kept:.2g}% of the text; train.steps={-(-kept // 2)} would read all" in output
    assert main(["diff", "runs/p", "runs/p", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert results["epochs"] == [last["epochs"]] * 2
    assert results["tokens"] == [last["tokens"]] * 2
    assert last["tokens"] == 10 * 2 * 5  # tokens of a pair that fits: its two parts and what ends them
