"""Every shipped config loads, says what it is, and fits together."""

import re

import pytest

from gpt_cli.config import dump_config, load_config, parse_config
from gpt_cli.model.sizing import num_parameters
from tests.support.command import ROOT

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
each_config = pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)


def test_the_promised_configs_are_there():
    assert {path.stem for path in CONFIGS} >= {
        "quickstart", "shakespeare_cpu", "shakespeare_char", "shakespeare_bpe", "gpt2_124m", "vaswani_decoder",
        "gpt2_tiny", "llama_tiny", "shakespeare_minute", "shakespeare_laptop", "translate", "classify", "imdb",
    }  # fmt: skip


@each_config
def test_each_config_loads_comes_back_from_its_dump_and_keeps_its_run_under_its_own_name(path):
    config = load_config(path)
    assert parse_config(dump_config(config), "dump.yaml", ()) == config
    assert config.run_dir == f"runs/{path.stem}"


@each_config
def test_each_config_begins_by_saying_what_it_trains_and_how_well(path):
    head = path.read_text().partition("\nrun_dir")[0]
    assert all(line.startswith("# ") for line in head.splitlines())
    assert re.search(r"Measured: (validation loss \d\.\d{4}|[\d,]{5,} tokens/s) ", head)


def test_the_sizes_in_the_comments_are_the_sizes_of_the_models():
    sizes = {
        **{"quickstart": 103, "gpt2_124m": 50257},
        **dict.fromkeys(("shakespeare_cpu", "shakespeare_minute", "shakespeare_laptop", "shakespeare_gpu"), 65),
    }
    for name, vocab_size in sizes.items():
        path = next(path for path in CONFIGS if path.stem == name)
        assert f"{num_parameters(load_config(path).model, vocab_size):,} parameters" in path.read_text()


def test_the_cpu_recipe_stays_within_its_class():
    config = load_config(next(path for path in CONFIGS if path.stem == "shakespeare_cpu"))
    assert num_parameters(config.model, 65) <= 850_000
    assert config.model.context_length == 64


def test_the_classic_recipe_has_its_published_size():
    config = load_config(next(path for path in CONFIGS if path.stem == "shakespeare_char"))
    assert num_parameters(config.model, 65) == pytest.approx(10.65e6 + 256 * 384, rel=0.01)
