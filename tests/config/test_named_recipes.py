"""`recipe`: a name for what is not written down, which what is written down beats, and which a run keeps."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_cli.cli.main import main
from gpt_cli.config import Config, ModelConfig, dump_config, explain, load_config, parse_config
from gpt_cli.config.keys import fields, get_key
from gpt_cli.config.recipes import RECIPES
from gpt_cli.export.architectures import LAYOUTS
from gpt_cli.export.layout import choose_layout
from gpt_cli.literals import Recipe

SIZES = ("n_layer", "n_head", "n_embd", "context_length", "dropout", "attention_dropout")
each_recipe = pytest.mark.parametrize("recipe", RECIPES)


def stated(recipe: str) -> dict[str, Any]:
    """{dotted key: value} of a recipe."""
    return {f"{section}.{key}": value for section, keys in RECIPES[recipe].items() for key, value in keys.items()}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("It was the best of times, it was the worst of times.\n" * 60)
    (tmp_path / "tiny.yaml").write_text(
        "data: {source: text.txt}\n"
        "model: {n_layer: 1, n_head: 2, n_embd: 16, context_length: 16}\n"
        "train: {batch_size: 4, steps: 60}\n"
        "eval: {every: 10}\n"
        "checkpoint: {every: 10}\n"
        "runtime: {device: cpu, threads: 1}\n"
    )
    return tmp_path / "tiny.yaml"


def test_each_name_has_a_recipe_of_keys_that_there_are():
    assert set(get_args(Recipe)) == set(RECIPES)
    assert all(stated(recipe).keys() <= fields().keys() for recipe in RECIPES)


@each_recipe
def test_a_recipe_states_the_whole_architecture_so_that_it_outlives_the_defaults(recipe):
    rotary = {"rope_theta", "rope_scaling", "rope_rounding"}
    optional = set() if RECIPES[recipe]["model"]["position"] == "rope" else rotary
    assert set(RECIPES[recipe]["model"]) == set(ModelConfig.model_fields) - set(SIZES) - {"norm_eps"} - optional


@each_recipe
@settings(max_examples=15)
@given(st.data())
def test_what_is_written_down_beats_a_recipe_which_beats_the_default_and_both_come_back_from_a_dump(recipe, data):
    say = st.fixed_dictionaries(
        {},
        optional={
            "model.position": st.sampled_from(["rope", "learned", "none"]),
            "model.qk_norm": st.booleans(),
            "model.bias": st.booleans(),
            "optim.name": st.sampled_from(["adamw", "muon"]),
            "optim.lr": st.sampled_from([0.02, 0.5]),
            "train.steps": st.integers(0, 9),
        },
    )
    in_file, override = data.draw(say), data.draw(say)
    text = f"recipe: {recipe}\n" + "".join(
        f"{section}: {json.dumps({k.partition('.')[2]: v for k, v in in_file.items() if k.startswith(section)})}\n"
        for section in ("model", "optim", "train")
    )
    config = parse_config(
        text, "c.yaml", [f"{key}={json.dumps(value).strip(chr(34))}" for key, value in override.items()]
    )
    expected = {key: get_key(Config(), key) for key in fields()} | stated(recipe) | in_file | override
    assert {key: get_key(config, key) for key in fields()} == expected | {"recipe": recipe}
    assert parse_config(dump_config(config), "full.yaml") == config
    assert parse_config(dump_config(config, full=False), "short.yaml") == config


@each_recipe
def test_it_is_the_same_from_python(recipe):
    built = Config(recipe=recipe, model=ModelConfig(n_layer=2, bias=True))
    assert built == parse_config(f"recipe: {recipe}\nmodel: {{n_layer: 2, bias: true}}\n", "c.yaml")


def test_a_value_is_explained_by_its_recipe(config):
    overrides = ["recipe=classic", "model.qk_norm=true"]
    origins = {row.key: row.origin for row in explain(load_config(config, overrides), config, overrides)}
    assert (origins["model.position"], origins["optim.lr"]) == ("recipe classic", "recipe classic")
    assert (origins["model.qk_norm"], origins["model.dropout"]) == ("override", "default")
    assert origins["model.n_layer"].endswith("tiny.yaml:2")


@settings(max_examples=6)  # a layout takes a tenth of a second to find
@given(
    st.integers(1, 4),
    st.sampled_from([(1, 8), (2, 16), (4, 48), (6, 96)]),
    st.integers(2, 64),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([None, 1]),
)
def test_modern_always_exports_as_qwen3_and_classic_as_gpt2(n_layer, heads, context_length, dropout, n_kv_head):
    model = dict(zip(SIZES, (n_layer, *heads, context_length, dropout), strict=False))
    modern = Config.model_validate({"recipe": "modern", "model": model | {"n_kv_head": n_kv_head}})
    assert choose_layout(modern.model, LAYOUTS).architecture == "Qwen3ForCausalLM"
    classic = Config.model_validate({"recipe": "classic", "model": model})
    assert choose_layout(classic.model, LAYOUTS).architecture == "GPT2LMHeadModel"


@each_recipe
def test_each_recipe_learns_and_its_run_goes_on_but_not_as_another_one(config, capsys, recipe):
    command = ["train", "--config", str(config), f"recipe={recipe}", "run_dir=run", "schedule.warmup_steps=5", "--json"]
    assert main([*command, "train.steps=40"]) == 0
    capsys.readouterr()
    assert main(command) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["steps"] == 60
    losses = [json.loads(line).get("val_loss") for line in Path("run/metrics.jsonl").read_text().splitlines()]
    first, *_, last = [loss for loss in losses if loss is not None]
    assert last < first - 0.3
    other_recipe = next(name for name in RECIPES if name != recipe)
    assert main(["train", "--config", str(config), f"recipe={other_recipe}", "run_dir=run"]) == 2
    assert f"recipe {recipe} there, {other_recipe} here" in capsys.readouterr().err


def test_a_text_alone_is_trained_by_a_recipe_too(config, capsys):
    command = ["train", "text.txt", "recipe=classic", "train.steps=2", "run_dir=run"]
    assert main([*command, "--json"]) == 0
    saved = load_config(Path("run/config.yaml"))
    assert (saved.recipe, saved.model.position, saved.optim.name) == ("classic", "learned", "adamw")
    assert saved.schedule.warmup_steps == 0  # which the fit to so short a run chose, and no recipe takes back
    assert main(command) == 0
    assert "already complete" in capsys.readouterr().err


def test_an_unknown_recipe_is_told_with_the_one_that_was_probably_meant(config, capsys):
    assert main(["train", "--config", str(config), "recipe=clasic"]) == 2
    error = capsys.readouterr().err
    assert "recipe must be classic, modern, speed or null, not 'clasic'" in error
    assert "did you mean classic?" in error
