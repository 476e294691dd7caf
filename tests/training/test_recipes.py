"""The shipped recipes reach what their heads say: minutes of training, so behind the marker."""

import json
import re

import pytest

from tests.support.command import ROOT

CONFIGS = ROOT / "configs"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shakespeare_cpu", "shakespeare_minute", "shakespeare_laptop", "shakespeare_bpe"])
def test_a_shakespeare_recipe_reaches_the_loss_at_its_head(gpt, shared_data, name):
    config = CONFIGS / f"{name}.yaml"
    trained = gpt("train", "--config", config, f"data.source={shared_data / 'shakespeare.txt'}", "--json", timeout=1200)
    assert trained.rc == 0, trained.stderr
    measured = float(re.search(r"validation loss (\d\.\d+)", config.read_text())[1])
    assert json.loads(trained.stdout)["val_loss"] == pytest.approx(measured, rel=0.01)
    targets = {"shakespeare_cpu": 1.90, "shakespeare_minute": 1.48, "shakespeare_laptop": 1.38}
    if name in targets:
        assert json.loads(trained.stdout)["val_loss"] <= targets[name]
