"""docs/recipes.md: its commands run, its table is one that the bench prints; and the bench counts right."""

import json
import math
import re
import shlex
import sys

import pytest
import torch
from safetensors import safe_open

from bench import ablations, model_variants
from bench.ablations import DEFAULT, MANY_EPOCHS, ROWS, Losses, Row, table, task_of
from gpt_cli.cli.main import main
from gpt_cli.config import parse_config
from gpt_cli.model.gpt import GPT
from gpt_cli.run.checkpoint import list_checkpoints
from gpt_cli.training import state
from tests.support.command import ROOT

pytestmark = pytest.mark.docs

PAGE = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
FEW = ("train.steps=2", "model.n_layer=1", "model.n_embd=32", "model.context_length=32", "train.batch_size=2")
GELU, RELU = Row("activation", ("model.mlp=gelu",)), Row("activation", ("model.mlp=relu",))


def by_seed(losses: dict[Row, list[float]]) -> Losses:
    """These losses, of the seeds from 1 on, on one corpus."""
    return {("text", row): dict(enumerate(actual, 1)) for row, actual in losses.items()}


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
    documented = re.findall(r"^\| `([^`]*=[^`]*)` \|", PAGE, flags=re.MULTILINE)
    names = iter(row.name for row in ROWS)
    assert len(documented) >= 10
    assert all(name in names for name in documented)  # in the order of the bench; two groups may have a row of one name


def test_every_row_is_a_config_and_a_run_of_its_own():
    for many_epochs in (False, True):
        tasks = [task_of("text", (), row, 1) for row in ROWS if (row.group == MANY_EPOCHS) == many_epochs]
        assert len({task.config.run_dir for task in tasks}) == len(tasks)


def test_the_table_says_how_many_seeds_there_are_and_what_is_no_difference():
    lines = table(by_seed({DEFAULT: [1.0, 2.0, 3.0], GELU: [1.5, 2.5, 3.51], RELU: [1.1, 2.0]}), ["text"]).splitlines()
    assert "| `model.mlp=gelu` | 2.503 ± 1.005 | +0.503 |" in lines
    assert "| `model.mlp=relu` | 1.550 ± 0.636 (n=2) | +0.050 = |" in lines
    assert "| default | 2.000 ± 1.000 |  |" in lines
    assert not any("dropout" in line for line in lines)
    assert "+0.500 ?" in table(by_seed({DEFAULT: [1.0], GELU: [1.5]}), ["text"])


def test_rows_of_many_epochs_have_a_default_of_their_own():
    default, dropout = Row(MANY_EPOCHS, ()), Row(MANY_EPOCHS, ("model.dropout=0.2",))
    lines = table(by_seed({DEFAULT: [1.0], default: [4.0], dropout: [3.0]}), ["text"]).splitlines()
    assert "| `model.dropout=0.2` | 3.000 (n=1) | -1.000 ? |" in lines
    assert "-1.000" not in table(by_seed({DEFAULT: [1.0], dropout: [3.0]}), ["text"])


def test_its_runs_are_those_of_a_sweep_and_what_is_there_is_not_trained_again(monkeypatch, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("It was the best of times, it was the worst of times.\n" * 60)
    rows = [DEFAULT, GELU, *(row for row in ROWS if row.name == "value residual")]
    monkeypatch.setattr(ablations, "OUT", tmp_path / "out")
    monkeypatch.setattr(ablations, "BASE", (*ablations.BASE, *FEW, "model.n_layer=2"))
    monkeypatch.setattr(ablations, "ROWS", rows)
    monkeypatch.setattr(ablations, "SEEDS", 1)
    monkeypatch.setattr(ablations, "STEPS", 2)
    monkeypatch.setattr(sys, "argv", ["ablations", "--text", str(text), "--jobs", "1"])
    assert ablations.main() == 0
    first = capsys.readouterr()
    assert first.err.count("val loss") == 6
    assert [line.split(" | ")[0] for line in first.out.splitlines() if "?" in line] == [
        "| `model.mlp=gelu`",
        "| `value residual`",
    ]
    for run in (tmp_path / "out").glob("shakespeare*-seed=1"):
        with safe_open(list_checkpoints(run)[0] / "model.safetensors", "pt") as weights:
            assert any("share" in name for name in weights.keys()) == ("value-residual" in run.name)  # noqa: SIM118
    assert ablations.main() == 0
    assert capsys.readouterr() == (first.out, "")
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--steps", "3"])
    assert ablations.main() == 0
    assert capsys.readouterr().err.count("val loss") == 6  # runs of other lengths are other runs


OFF = {"stream_scale": 1.0, "sink": -math.inf}  # and 0 for any other


@pytest.mark.parametrize("name", model_variants.MODELS)
def test_a_model_of_the_benchs_own_is_the_trainers_but_for_its_ingredient(name):
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 16, "context_length": 8, "zero_init": False, "init_std": 0.2}
    config = parse_config(f"{{model: {json.dumps(shape)}}}", "test")
    tokens = torch.arange(8)[None]
    torch.manual_seed(0)
    plain = state.make_model(config, 11)
    with model_variants.named_in(f"text {name} seed=1"):
        torch.manual_seed(0)
        model = state.make_model(config, 11)
    own = dict(model.named_parameters()).keys() - dict(plain.named_parameters()).keys()
    assert type(state.make_model(config, 11)) is GPT is not type(model)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in plain.state_dict().items())
    with torch.no_grad():
        off = {
            key: torch.full_like(value, OFF.get(key.rpartition(".")[2], 0.0))
            for key, value in model.named_parameters()
            if key in own
        }
        are_close = torch.allclose(torch.func.functional_call(model, off, (tokens,)), plain(tokens), atol=1e-6)
        assert are_close == (name != "alternating windows")  # they have nothing to turn off
        on = {key: torch.full_like(value, 0.5) for key, value in off.items()}
        assert not torch.allclose(torch.func.functional_call(model, on, (tokens,)), plain(tokens), atol=1e-6)


@pytest.mark.parametrize("name", model_variants.MODELS)
def test_no_model_of_the_benchs_own_sees_the_future(name):
    config = parse_config("{model: {n_layer: 2, n_head: 2, n_embd: 16, context_length: 8, zero_init: false}}", "test")
    with model_variants.named_in(f"text {name} seed=1"):
        model = state.make_model(config, 11)
    tokens = torch.arange(8)[None]
    changed = torch.cat([tokens[:, :5], tokens[:, 5:].flip(1)], dim=1)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens)[:, :5], model(changed)[:, :5], rtol=0, atol=0)
