"""Stumbles of a newcomer by their class: the exit code, the place, and the word that is suggested."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Run
from tests.support.tiny_run import TEXT

BOOK = "the king and the queen went to the town.\n" * 40
TINY = (
    "model.n_layer=4 model.n_head=1 model.n_embd=8 model.context_length=8 train.batch_size=1 train.steps=1"
    " sample.every=null runtime.threads=1"
)
SHOW = "config show c.yaml"

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
    begun: Callable[..., Any], command: str
) -> None:
    code, word = COMMANDS[command]
    outcome = begun(*command.split())
    assert (outcome.rc, outcome.stdout) == (code, "")
    hints = [line for line in outcome.stderr.splitlines() if line.startswith("hint: ")]
    assert word in "".join(hints) if word else hints == []


def test_the_key_of_a_setting_is_shown_as_the_option_of_the_command(begun: Run) -> None:
    assert begun("tokenize", "book.txt", "--val-fraction", "2").stderr == (
        "error: --val-fraction must be below 1, not 2.0\n"
    )


def test_a_key_that_a_file_sets_keeps_its_name_in_an_error_of_a_command_that_has_an_option_for_it(
    begun: Run, tmp_path: Path
) -> None:
    config = tmp_path / "runs/book/config.yaml"
    config.write_text(config.read_text().replace("temperature: 0.8", "temperature: -1"))
    outcome = begun("config", "show", "runs/book/config.yaml")
    assert outcome.stderr.startswith(
        "error: sample.temperature must be at least 0, not -1\n  --> runs/book/config.yaml:"
    )


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
        "error: runs/book is a run with another config: model.n_layer 4 there, 8 here\n"
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


@pytest.fixture
def begun(gpt_here: Run, tmp_path: Path) -> Run:
    """`gpt_here` in a folder with a run of book.txt, configs and records."""
    (tmp_path / "book.txt").write_text(BOOK + TEXT)
    (tmp_path / "c.yaml").write_text("data: {source: book.txt}\n")
    (tmp_path / "n_layr.yaml").write_text("# a comment\nmodel:\n  n_layr: 3\n")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/c.yaml").write_text("data: {source: book.txt}\n")
    records = [json.dumps({"id": number, "body": f"the king {number}"}) for number in range(40)]
    (tmp_path / "notes.jsonl").write_text("\n".join(records))
    assert gpt_here("train", "book.txt", *TINY.split()).rc == 0
    return gpt_here
