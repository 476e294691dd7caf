"""Stumbles of a newcomer by their class: the exit code, the place, and the word that is suggested.

A command that is refused leaves every file as it was.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from shlex import split

import pytest

from gpt_cli.cli.main import main
from tests.support.command import Outcome, Run, as_json, in_process

BOOK = "the king and the queen went to the town.\n" * 40
TINY = (
    "model.n_layer=1 model.n_head=1 model.n_embd=8 model.context_length=8 train.batch_size=1 train.steps=1"
    " sample.every=null runtime.threads=1"
)
SMALL = """
model: {n_layer: 1, n_head: 1, n_embd: 8, context_length: 64}
train: {steps: 1, batch_size: 1}
sample: {every: null}
runtime: {threads: 1}
"""
SHOW = "config show c.yaml"


def lines_of(*records: object) -> str:
    """JSON lines."""
    return "".join(json.dumps(record) + "\n" for record in records)


PAIRS = lines_of(*({"prompt": f"q {number}", "completion": f"a {number}"} for number in range(80)))
CHATS = lines_of(
    *(
        {"messages": [{"role": "user", "content": f"hi {number}"}, {"role": "assistant", "content": "yo"}]}
        for number in range(80)
    )
)
MARKS = lines_of(
    *({"text": f"it is {('bad', 'good')[number % 2]} {number}", "label": number % 2} for number in range(40))
)
TEXTS = {
    "book.txt": BOOK,
    "a.txt": BOOK[::-1],
    "page.html": BOOK,
    "-dash.txt": BOOK,
    "texts/a.txt": BOOK,
    "c.yaml": "data: {source: book.txt}\n",
    "configs/c.yaml": "data: {source: book.txt}\n",
    "UPPER.YAML": "data: {source: book.txt}\n" + SMALL,
    "small.yaml": SMALL,
    "n_layr.yaml": "# a comment\nmodel:\n  n_layr: 3\n",
    "notes.jsonl": lines_of(*({"id": number, "body": f"the king {number}"} for number in range(40))),
    "pairs.jsonl": PAIRS,
    "chats.jsonl": CHATS,
    "marks.jsonl": MARKS,
    # records of which one is wrong
    "half.jsonl": PAIRS + lines_of({"prompt": "q"}),
    "broken.jsonl": PAIRS + "{oops\n",
    "robot.jsonl": CHATS + lines_of({"messages": [{"role": "robot", "content": "hi"}]}),
    "decimal.jsonl": MARKS + lines_of({"text": "it is", "label": 1.5}),
    "twice.jsonl": '{"text": "the king"}\n{"text": "the king", "text": "a shoe"}\n' * 40,
    "ragged.csv": "text,label\nthe king,a\nhello, world,b\n" + "the queen,b\n" * 99,
    "not-finite.jsonl": '{"prompt": "the", "id": NaN}\n',
    "greek.csv": "text\nit is good\nit is Ω\n",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts, runs of every task, a damaged one, and what is exported; no test changes it."""
    folder = tmp_path_factory.mktemp("home")
    for name, text in TEXTS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in (
            f"train book.txt {TINY} train.steps=2 checkpoint.every=1",
            "train small.yaml data.source=pairs.jsonl data.format=pairs run_dir=runs/pairs",
            "train small.yaml data.source=marks.jsonl task.kind=classes run_dir=runs/marks",
            "tokenize book.txt --out store",
            "export runs/book exported",
            "import exported runs/imported",
        ):
            assert main(split(command)) == 0, command
    shutil.copytree(folder / "runs/book", folder / "damaged")
    shutil.copytree(folder / "exported", folder / "spoilt")
    for file in [*folder.glob("damaged/checkpoints/*/model.safetensors"), folder / "spoilt/model.safetensors"]:
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    return folder


def contents(folder: Path) -> dict[Path, str]:
    """Every file with its digest; who last held a lock is no matter."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def begun(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run `gpt` in `home`."""
    monkeypatch.chdir(home)
    return in_process(capfd)


@pytest.fixture
def refused(home: Path, begun: Run) -> Callable[[str, int], list[str]]:
    """Run a command that is refused with an exit code, one error and no output; the lines of the error."""

    def run(command: str, code: int) -> list[str]:
        before = contents(home)
        outcome = begun(*split(command.replace("TINY", TINY)))
        assert (outcome.rc, outcome.stdout) == (code, ""), outcome.stderr
        assert "Traceback" not in outcome.stderr
        assert len(re.findall("^error: ", outcome.stderr, flags=re.MULTILINE)) == 1
        assert contents(home) == before
        return outcome.stderr.splitlines()

    return run


CONFIGS = {
    # the config, or the override of an empty one: (line:column of the problem, the suggested word), None for none
    # keys: misspelled, in another section, of another tool
    "model:\n  n_layr: 3": ("2:3", "model.n_layer"),
    "n_layer: 3": ("1:1", "model.n_layer"),
    "train: {n_layers: 3}": ("1:9", "model.n_layer"),
    "model: {N-Layer: 3}": ("1:9", "model.n_layer"),
    "trian: {steps: 3}": ("1:1", "train"),
    "tokenizer: {patience: 3}": ("1:13", "train.patience"),
    "every: 3": ("1:1", "eval.every"),
    "block_size: 3": ("1:1", "model.context_length"),
    "model: {hidden_size: 3}": ("1:9", "model.n_embd"),
    "max_iters: 3": ("1:1", "train.steps"),
    "learning_rate: 3": ("1:1", "optim.lr"),
    "optimizer: adamw": ("1:1", "optim.name"),
    "optimizer: {lr: 0.1}": ("1:1", "optim"),
    "dataset: {source: a.txt}": ("1:1", "data"),
    "eval: {interval: 3}": ("1:8", "eval.every"),
    "qwertz: 3": ("1:1", None),
    "model.n_layr=3": (None, "model.n_layer"),
    "model.d_model=3": (None, "model.n_embd"),
    "model=3": (None, None),
    # values: of another tool, misspelled, off, out of range, of another type
    "optim: {name: adam}": ("1:15", "adamw"),
    "model: {norm: rms_norm}": ("1:15", "rmsnorm"),
    "model: {position: rotary}": ("1:19", "rope"),
    "lora: {rank: 4, targets: [q_proj]}": ("1:27", "qkv"),
    "runtime: {precision: bfloat16}": ("1:22", "bf16"),
    "runtime.device=gpu": (None, "cuda"),
    "runtime.precision=bf16-mixed": (None, "bf16"),
    "model: {bias: yes}": ("1:15", "true"),
    "eval: {every: 0}": ("1:15", "null"),
    "optim: {grad_clip: none}": ("1:20", "null"),
    "train: {patience: -1}": ("1:19", "null"),
    "optim.name=sgd": (None, None),
    "train: {steps: fast}": ("1:16", None),
    "optim: {lr: -1}": ("1:13", None),
    "optim: {betas: [0.9]}": ("1:16", None),
    "model: 5": ("1:8", None),
    # keys that do not go together: the one that is set, or overridden, is to blame
    "model: {n_head: 3}": ("1:17", None),
    "lora: {rank: 4}": ("1:14", None),
    "data: {val_fraction: 0.9, test_fraction: 0.5}": ("1:22", None),
    # YAML
    "seed: 1\nmodel:\n\tn_layer: 3": ("3:1", None),
    "seed: 1: 2": ("1:8", None),
    "run_dir: 'x\nseed: 1": ("1:10", None),
    "data: {source: [a, b}": ("1:21", None),
    "seed: 1\nseed: 2": ("2:1", None),
    "seed: &x 3": ("1:7", None),
    "- seed": ("1:1", None),
    "just a text": ("1:1", None),
}


@pytest.mark.parametrize("text", CONFIGS)
def test_a_wrong_config_ends_with_2_its_place_and_the_word_that_was_meant(
    gpt_here: Run, tmp_path: Path, text: str
) -> None:
    place, word = CONFIGS[text]
    is_override = "=" in text
    (tmp_path / "c.yaml").write_text("" if is_override else text)
    outcome = gpt_here(*SHOW.split(), *([text] if is_override else []))
    assert (outcome.rc, outcome.stdout) == (2, "")
    lines = outcome.stderr.splitlines()
    assert lines[0].startswith("error: ")
    assert [line for line in lines if line.startswith("  --> ")] == ([f"  --> c.yaml:{place}"] if place else [])
    hints = [line for line in lines[1:] if line.startswith("hint: ")]
    assert word in "".join(hints) if word else hints == []


COMMANDS = {
    # the command: (exit code, the suggested word)
    "frobnicate": (2, "gpt --help"),
    "trian book.txt": (2, "gpt train"),
    "generate": (2, "gpt sample"),
    "runs list": (2, "gpt runs"),
    "config validate c.yaml": (2, "gpt config show"),
    "sample --max-length 3": (2, "--max-new-tokens"),
    "sample --num-return-sequences 3": (2, "-n"),
    "sample --checkpoint runs/book": (2, "--run"),
    "sample --device gpu": (2, "--device cuda"),
    "export runs/book out --dtype int8": (2, "--dtype q8_0"),
    "train book.txt --block-size 8": (2, "model.context_length=8"),
    "train book.txt --bias": (2, "model.bias=true"),
    "train book.txt --compile": (2, "runtime.compile=true"),
    "train book.txt --epochs 3": (2, "train.steps?"),  # not steps=3: they count other things
    "train book.txt --wandb true": (2, "log.sinks?"),
    "train book.txt --frobnicate": (2, "gpt train --help"),
    "chat --temp 1": (2, "--temperature"),
    "classify --run runs/book hello": (2, "gpt train TEXT task.kind=classes"),
    "sample --seed": (2, "gpt sample --help"),
    "sample --run runs/bok": (2, "runs/book"),
    "train configs/c.yml": (2, "configs/c.yaml"),
    "train bok.txt": (2, "book.txt"),
    "tokenize c.yaml": (2, "gpt train --config c.yaml"),
    "tokenize book.txt --val-fraction 2": (2, None),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_command_ends_with_its_code_and_the_word_that_was_meant(
    refused: Callable[[str, int], list[str]], command: str
) -> None:
    code, word = COMMANDS[command]
    hints = [line for line in refused(command, code) if line.startswith("hint: ")]
    assert word in "".join(hints) if word else hints == []


KINDS = {
    # a path of another kind than the command takes, or a run of another task: the command that takes it, or the path
    "eval book.txt": "--text book.txt",
    "sample c.yaml": "gpt train --config c.yaml",
    "sample exported": "gpt import exported RUN",
    "sample runs": "gpt runs --dir runs",
    "sample runs/book/checkpoints/step-00000002/model.safetensors": "runs/book/checkpoints/step-00000002",
    "eval runs/book@7": "runs/book/checkpoints/step-00000002",
    "eval --text store": "gpt train store",
    "train --config book.txt": "gpt train book.txt",
    "train exported": "gpt import exported RUN",
    "train runs/book@1 train.steps=9": "gpt train TEXT train.init_from=runs/book@1",
    "train runs/book/tokenizer.json": "gpt train runs/book",
    "train runs/imported": "gpt train TEXT train.init_from=runs/imported",
    "import runs/book runs/n": "gpt train runs/book",
    "chat runs/marks": "gpt classify --run runs/marks TEXT",
    "export runs/marks marks.gguf": "gpt classify --run runs/marks TEXT",
    "train a.txt train.init_from=runs/marks run_dir=runs/n": "task.kind=classes",
}


@pytest.mark.parametrize("command", KINDS)
def test_a_path_of_another_kind_is_not_read_and_the_hint_says_what_takes_it(
    refused: Callable[[str, int], list[str]], command: str
) -> None:
    (hint,) = (line for line in refused(command, 2) if line.startswith("hint: "))
    assert KINDS[command] in hint


@pytest.mark.parametrize(
    "command",
    [
        # on what is there already
        "export runs/book exported",
        "export runs/book book.txt",
        "import exported runs/book",
        "import exported .",
        "train book.txt TINY run_dir=book.txt",
        "train book.txt TINY run_dir=runs/book/inside",
        "sweep UPPER.YAML optim.lr=0.01,0.02 --out runs/book/sweep",
        # on what is read
        "config init book.txt -o book.txt --force",
        "eval runs/pairs --out pairs.jsonl",
        "score page.html runs/book --html page.html",
        # into a run of something else
        "train a.txt run_dir=runs/book",
        "train runs/book data.source=a.txt",
        "train runs/book seed=4",
        "train runs/book train.steps=1",
        # more than was meant
        "runs rm runs --yes",
        "runs rm texts --yes",
        "runs rm runs/book runs/nothing --yes",
    ],
)
def test_no_command_writes_over_work_or_removes_more_than_a_run(
    refused: Callable[[str, int], list[str]], command: str
) -> None:
    refused(command, 2)


RECORDS = {
    # the command: (exit code, place)
    "train small.yaml data.source=half.jsonl data.format=pairs": (1, "half.jsonl:81"),
    "train small.yaml data.source=broken.jsonl data.format=pairs": (1, "broken.jsonl:81"),
    "train small.yaml data.source=chats.jsonl data.format=pairs": (1, "chats.jsonl:1"),
    "train small.yaml data.source=robot.jsonl data.format=chat": (1, "robot.jsonl:81"),
    "train small.yaml data.source=decimal.jsonl task.kind=classes": (1, "decimal.jsonl:41"),
    "train twice.jsonl": (1, "twice.jsonl:2"),
    "train ragged.csv": (1, "ragged.csv:3"),
    "sample runs/book --prompts not-finite.jsonl": (2, "not-finite.jsonl:1"),
    "classify greek.csv --run runs/marks": (2, "greek.csv:3"),
}


@pytest.mark.parametrize("command", RECORDS)
def test_a_wrong_record_is_named_by_its_line_before_anything_is_left(
    refused: Callable[[str, int], list[str]], command: str
) -> None:
    code, place = RECORDS[command]
    assert f"  --> {place}" in refused(command, code)


@pytest.mark.parametrize(
    "command",
    [
        "train book.txt train.steps=99999999999999999999",
        "train book.txt optim.lr=1e400",
        "train book.txt model.context_length=1000000",
        "train book.txt runtime.threads=40000",
        "train book.txt --devices 99999999999",
        "sample --beams 2147483648",
        "sample --temperature 1e300",
        "tokenize book.txt --unknown token --min-count 999999999999999999999",
    ],
)
def test_a_number_beyond_any_use_is_refused_before_anything_is_left(
    refused: Callable[[str, int], list[str]], command: str
) -> None:
    refused(command, 2)


@pytest.mark.parametrize(
    "command",
    [
        "sample damaged",
        "train damaged train.steps=9",
        "train book.txt train.init_from=damaged run_dir=runs/n",
        "import spoilt runs/n",
    ],
)
def test_damaged_weights_are_used_by_no_command(refused: Callable[[str, int], list[str]], command: str) -> None:
    refused(command, 1)


ACCEPTED = {
    # the command: what shows how it was read
    "config show UPPER.YAML": r"^data\.source +book\.txt ",
    "config show c.yaml train.steps=1e3": r"^train\.steps +1000 ",
    "config show c.yaml train.steps=1 train.steps=2": r"^train\.steps +2 ",
    "config init ./-dash.txt -o -": r"^  source: \./-dash\.txt",
    "sample runs/book/ --max-new-tokens 2": r"^runs/book, step 2,",
    "sample runs/book@1 --max-new-tokens 2": r", step 1,",
    "sample runs/book --max-new-tokens 2 --seed 1 --seed=3": r", seed 3$",
}


@pytest.mark.parametrize("command", ACCEPTED)
def test_what_can_mean_one_thing_is_done(begun: Run, command: str) -> None:
    outcome = begun(*split(command))
    assert outcome.rc == 0, outcome.stderr
    assert re.search(ACCEPTED[command], outcome.stdout + outcome.stderr, flags=re.MULTILINE)


def test_the_key_of_a_setting_is_shown_as_the_option_of_the_command(begun: Run) -> None:
    assert begun("tokenize", "book.txt", "--val-fraction", "2").stderr == (
        "error: --val-fraction must be below 1, not 2.0\n"
    )


def test_a_key_that_a_file_sets_keeps_its_name_in_an_error_of_a_command_that_has_an_option_for_it(
    begun: Run, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(Path("runs/book/config.yaml").read_text().replace("temperature: 0.8", "temperature: -1"))
    outcome = begun("config", "show", config)
    assert outcome.stderr.startswith(f"error: sample.temperature must be at least 0, not -1\n  --> {config}:")


def test_a_key_that_was_typed_keeps_its_name_where_an_option_has_another_meaning(begun: Run) -> None:
    outcome = begun("tune", "c.yaml", "train.steps=x")  # --steps is of the range test
    assert outcome.stderr == "error: train.steps must be a whole number, not 'x'\n"


SEVEN = {
    "finetune book.txt": "error: no such command 'finetune'\nhint: gpt train TEXT train.init_from=RUN\n",
    "train book.txt --learning-rate 0.01": (
        "error: no such option: --learning-rate\nhint: did you mean optim.lr=0.01?\n"
    ),
    "train n_layr.yaml": (
        "error: model.n_layr is not a key\n  --> n_layr.yaml:3:3\nhint: did you mean model.n_layer?\n"
    ),
    "train book.txt optim.name=sgd": "error: optim.name must be adamw or muon, not 'sgd'\n",
    "train runs/book model.n_layer=8": (
        "error: runs/book is a run with another config: model.n_layer 1 there, 8 here\n"
        "hint: run_dir=runs/NAME starts a new run\n"
    ),
    "tokenize runs/book": "error: runs/book is a run, not text\nhint: gpt train runs/book resumes it\n",
    "train notes.jsonl data.text_key=text": (
        "error: no text under the key 'text'; keys: id, body\n  --> notes.jsonl:1\nhint: data.text_key=body\n"
    ),
}


@pytest.mark.parametrize("command", SEVEN)
def test_seven_stumbles_print_the_error_the_place_and_one_way_out(begun: Run, command: str) -> None:
    outcome = begun(*command.split())
    assert outcome.stderr == SEVEN[command]


def weights(trained: Outcome) -> str:
    """The digest of the weights that a training ended with."""
    assert trained.rc == 0, trained.stderr
    return re.findall(r"^  weights sha256 (\w+)$", trained.stderr, flags=re.MULTILINE)[-1]


def test_a_first_week_from_a_text_to_an_export_and_back(gpt_here: Run) -> None:
    Path("book.txt").write_text(BOOK)
    gpt_here("train", "book.txt", *split(TINY), "train.steps=2")
    resumed = weights(gpt_here("train", "runs/book", "train.steps=4"))
    assert resumed == weights(gpt_here("train", "book.txt", *split(TINY), "train.steps=4", "run_dir=runs/whole"))
    assert gpt_here("train", "runs/book", "model.n_embd=16").rc == 2
    assert gpt_here("train", "runs/book", "model.n_embd=16", "run_dir=runs/wide").rc == 0
    assert as_json(gpt_here("info", "runs/book", "--json"))["weights_sha256"].startswith(resumed)

    assert gpt_here("export", "runs/book", "exported").rc == 0
    assert gpt_here("import", "exported").rc == 0
    sample = ("--prompt", "the ", "--seed", 1, "--max-new-tokens", 20)
    assert gpt_here("sample", "runs/exported", *sample).stdout == gpt_here("sample", "runs/book", *sample).stdout
    losses = [
        as_json(gpt_here("eval", run, "--text", "book.txt", "--json"))["loss"] for run in ("runs/exported", "runs/book")
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert gpt_here("train", "book.txt", "train.init_from=runs/exported", "train.steps=1").rc == 0

    assert gpt_here("runs", "rm", "runs/wide", "--yes").rc == 0
    assert "runs/wide" not in gpt_here("runs").stdout
    assert gpt_here("sample", "runs/wide").rc == 2


def test_labels_come_back_from_an_export_as_they_were_predicted(gpt_here: Run) -> None:
    Path("marks.jsonl").write_text(MARKS)
    keys = ("task.kind=classes", "task.pooling=last", "model.causal=true")  # which Transformers has too
    assert gpt_here("train", "marks.jsonl", *split(TINY), *keys).rc == 0
    predicted = gpt_here("classify", "marks.jsonl", "--run", "runs/marks", "--jsonl").stdout
    assert gpt_here("export", "runs/marks", "exported").rc == 0
    assert gpt_here("import", "exported").rc == 0
    assert gpt_here("doctor", "runs/exported").rc == 0
    assert gpt_here("classify", "marks.jsonl", "--run", "runs/exported", "--jsonl").stdout == predicted


def test_a_run_on_a_token_store_that_was_replaced_is_neither_resumed_nor_evaluated_on_it(gpt_here: Run) -> None:
    Path("book.txt").write_text(BOOK)
    assert gpt_here("tokenize", "book.txt", "--kind", "byte", "--out", "store").rc == 0
    before = weights(gpt_here("train", "store", *split(TINY), "run_dir=runs/book"))
    assert gpt_here("tokenize", "book.txt", "--kind", "char", "--out", "store").rc == 0
    assert gpt_here("train", "runs/book", "train.steps=2").rc == 2
    assert gpt_here("eval", "runs/book").rc == 2
    assert as_json(gpt_here("info", "runs/book", "--json"))["weights_sha256"].startswith(before)
