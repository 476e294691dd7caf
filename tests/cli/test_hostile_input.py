"""Configs, checkpoints, prompts, names and command lines by the thousand: exit codes 0, 1, 2, and nothing else.

Texts and token stores have theirs in test_corpus_fuzz.py.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt_cli.config import Config, ModelConfig
from gpt_cli.errors import UserError
from gpt_cli.model.gpt import GPT
from gpt_cli.model.sequence_classifier import make_model
from gpt_cli.run.checkpoint import save
from gpt_cli.run.load_model import load_model
from gpt_cli.tokenizer import ByteTokenizer
from tests.support.command import subprocess_env

pytestmark = pytest.mark.robust

# What a kind may cost in memory at most, in MB: a model that is loaded, a text that is read.
KINDS = {"configs": 100, "checkpoints": 200, "prompts": 100, "names": 100, "commands": 300}


def attack(folder: Path, kind: str, count: int, seed: int) -> dict[str, int]:
    """Try `count` cases of `kind` in a watched process; how many ended with which exit code."""
    shutil.copytree(
        Path(os.environ["GPT_CACHE"]), folder / "cache"
    )  # with the kernels, which need not be compiled again
    completed = subprocess.run(
        [sys.executable, "-BP", "-W", "ignore", "-m", "tests.support.fuzz_cli", kind, str(count), str(seed)],
        cwd=folder,
        env=subprocess_env(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=7200,
        check=False,
    )
    case = folder / "case.txt"
    assert completed.returncode == 0, f"{case.read_text() if case.exists() else ''}\n{completed.stderr[-4000:]}"
    actual: dict[str, int] = json.loads(completed.stdout.splitlines()[-1])
    assert actual["tried"] == count
    assert actual["grown"] < KINDS[kind]
    return actual


@pytest.mark.parametrize("kind", KINDS)
def test_150_hostile_inputs_end_in_an_answer_or_in_one_error(
    tmp_path: Path, kind: str, record_property: Callable[[str, object], None]
) -> None:
    record_property("faults", 150)
    actual = attack(tmp_path, kind, 150, seed=1)
    assert actual["1"] + actual["2"] > 30  # or they are not hostile


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_20_000_hostile_inputs_end_in_an_answer_or_in_one_error(
    tmp_path: Path, kind: str, record_property: Callable[[str, object], None]
) -> None:
    record_property("faults", 20_000)
    attack(tmp_path, kind, 20_000, seed=2)


@pytest.mark.parametrize(
    "giant",
    [
        {"n_layer": 10_000},
        {"n_embd": 8_000_000},
        {"context_length": 2**31 - 1},
        {"context_length": 2**31 - 1, "position": "sinusoidal"},
        {"mlp_ratio": 1000.0},
    ],
    ids=str,
)
def test_a_config_that_asks_for_a_giant_is_refused_before_it_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, giant: dict[str, Any]
) -> None:
    small = ModelConfig(n_layer=1, n_head=2, n_embd=8, context_length=8)
    tensors = GPT(small, 256).state_dict()
    config = Config(model=small.model_copy(update=giant))
    path = save(tmp_path, 1, tensors, {}, {}, config, ByteTokenizer())

    def outline(*arguments: Any) -> GPT:
        if torch.empty(0).device.type != "meta":
            pytest.fail("it was built")
        return make_model(*arguments)

    monkeypatch.setattr("gpt_cli.run.load_model.make_model", outline)
    with pytest.raises(UserError, match=r"does not fit its config|bytes for positions alone"):
        load_model(path, torch.device("cpu"), print)
