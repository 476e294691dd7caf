"""docs/recipes.md: its commands run, its table is one that the bench prints; and the bench counts right."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import ablations
from bench.ablations import DEFAULT, MANY_EPOCHS, ROWS, Row, key_of, missing, noise, paired, table, train_once
from gpt_cli.cli.main import main
from gpt_cli.config import ModelConfig, parse_config
from gpt_cli.model.gpt import GPT
from gpt_cli.training import state

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
FEW = ("train.steps=2", "model.n_layer=1", "model.n_embd=32", "model.context_length=32", "train.batch_size=2")
GELU, RELU = Row("activation", ("model.mlp=gelu",)), Row("activation", ("model.mlp=relu",))


def recorded(losses: dict[Row, list[float]]) -> dict[str, Any]:
    """A record of these losses, of the seeds from 1 on, on one corpus."""
    runs = [
        {**key_of("text", row, seed), "val_loss": loss}
        for row, found in losses.items()
        for seed, loss in enumerate(found, 1)
    ]
    return {"runs": runs}


def test_every_command_of_the_page_runs(monkeypatch, tmp_path, capsys):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^\$ gpt (.*)$", PAGE, flags=re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        words = shlex.split(command)
        assert main([*words, *(FEW if words[0] == "train" else ())]) == 0, command
        capsys.readouterr()


def test_the_rows_of_the_page_are_rows_of_the_bench():
    shown = re.findall(r"^\| `([^`]*=[^`]*)` \|", PAGE, flags=re.MULTILINE)
    names = iter(row.name for row in ROWS)
    assert len(shown) >= 10
    assert all(name in names for name in shown)  # in the order of the bench; two groups may have a row of one name


def test_every_row_is_a_config():
    for row in ROWS:
        parse_config("", "bench", [*ablations.ALWAYS, *ablations.BASE, *ablations.settings_of(row.overrides)])


def test_a_row_is_compared_with_the_default_seed_by_seed():
    record = recorded({DEFAULT: [1.0, 2.0, 3.0], GELU: [1.1, 2.2, 3.3], RELU: [1.1, 2.1]})
    assert paired(record, "text", GELU) == pytest.approx([0.1, 0.2, 0.3])
    assert paired(record, "text", RELU) == pytest.approx([0.1, 0.1])
    assert noise(record, "text", [GELU, RELU]) == pytest.approx((0.02 / 3) ** 0.5)
    many = Row(MANY_EPOCHS, ("model.dropout=0.2",))
    assert paired(recorded({DEFAULT: [1.0], many: [1.5]}), "text", many) == []  # which has a default of its own


def test_the_table_says_how_many_seeds_there_are_and_what_is_no_difference():
    lines = table(recorded({DEFAULT: [1.0, 2.0, 3.0], GELU: [1.5, 2.4, 3.6], RELU: [1.1, 2.0]}), ["text"]).splitlines()
    assert "| `model.mlp=gelu` | 2.500 ± 1.054 | +0.500 |" in lines
    assert "| `model.mlp=relu` | 1.550 ± 0.636 (n=2) | +0.050 = |" in lines
    assert "| default | 2.000 ± 1.000 |  |" in lines
    assert not any("dropout" in line for line in lines)
    assert "+0.500 ?" in table(recorded({DEFAULT: [1.0], GELU: [1.5]}), ["text"])


def test_what_the_record_has_is_not_trained_again():
    todo = list(missing(recorded({DEFAULT: [1.0], GELU: [1.0]}), [DEFAULT, GELU], ["text"]))
    assert [(row, seed) for _, row, seed in todo] == [(DEFAULT, 2), (GELU, 2), (DEFAULT, 3), (GELU, 3)]


def test_a_row_is_trained_to_the_same_exact_loss_again(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("It was the best of times, it was the worst of times.\n" * 60)
    overrides = [f"data.source={text}", *FEW, "model.mlp=gelu"]
    first = train_once(overrides, 1)
    assert train_once(overrides, 1) == first != train_once(overrides, 2)


@pytest.mark.parametrize("name", ablations.MODELS)
def test_a_model_of_the_benchs_own_is_the_trainers_but_for_its_shortcut(name):
    config = ModelConfig(n_layer=2, n_head=2, n_embd=16, context_length=8, zero_init=False, init_std=0.2)
    tokens = torch.arange(8)[None]
    torch.manual_seed(0)
    plain = GPT(config, 11)
    with ablations.models([name]):
        torch.manual_seed(0)
        model = state.GPT(config, 11)
    shortcut = dict(model.named_parameters()).keys() - dict(plain.named_parameters()).keys()
    assert state.GPT is GPT is not type(model)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in plain.state_dict().items())
    with torch.no_grad():
        off = {key: torch.zeros_like(value) for key, value in model.named_parameters() if key in shortcut}
        off |= {"stream_scale": torch.ones(2)} if "stream_scale" in off else {}
        assert torch.allclose(torch.func.functional_call(model, off, (tokens,)), plain(tokens))
        on = {key: torch.full_like(value, 0.5) for key, value in off.items()}
        assert not torch.allclose(torch.func.functional_call(model, on, (tokens,)), plain(tokens))
