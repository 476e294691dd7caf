"""`gpt tune`: the proposal follows from the losses, and the test leaves nothing but its picture."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from gpt_cli.cli.main import main
from gpt_cli.config import load_config
from gpt_cli.errors import RequestError, UserError
from gpt_cli.search.lr_range_test import debiased_ema, lr_range_test, suggest_lr

RATES = [10 ** (-5 + i / 20) for i in range(100)]


def valley(best: float) -> list[float]:
    """Losses that fall towards the rate `best` and rise steeply behind it."""
    return [3 + 0.3 * abs(math.log(rate / best)) * (1 if rate < best else 4) for rate in RATES]


@pytest.mark.parametrize("best", [1e-4, 3e-3, 5e-2])
def test_the_proposal_is_a_quarter_of_the_best_rate_whatever_it_is(best):
    assert suggest_lr(RATES, valley(best)) == pytest.approx(best / 4, rel=0.1)


def test_a_loss_that_never_falls_is_no_basis():
    with pytest.raises(UserError, match="no learning rate tried made the loss fall"):
        suggest_lr(RATES, [3.0 + rate for rate in RATES])


def test_the_average_of_a_constant_is_the_constant_from_its_first_step():
    assert debiased_ema([2.5] * 30) == pytest.approx([2.5] * 30)
    assert debiased_ema([4.0, 2.0])[1] == pytest.approx((0.9 * 4 + 2) / 1.9)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("It was the best of times, it was the worst of times.\n" * 60)
    (tmp_path / "tiny.yaml").write_text(
        "data: {source: text.txt}\n"
        "model: {n_layer: 1, n_head: 2, n_embd: 16, context_length: 16}\n"
        "train: {batch_size: 4}\n"
        "runtime: {device: cpu, threads: 1}\n"
    )
    return tmp_path / "tiny.yaml"


@pytest.mark.system
@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_it_draws_proposes_and_repeats(config, capsys, name):
    command = ["tune", str(config), f"optim.name={name}", "-o", "lr.png", "--steps", "40", "--json"]
    assert main(command) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert first["lr"] == sorted(first["lr"])
    assert min(first["lr"]) <= first["proposed_lr"] * 4 <= max(first["lr"]) * 1.1
    assert (first["proposed_adamw_lr"] is None) == (name == "adamw")
    assert Path("lr.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in config.parent.iterdir()) == ["lr.png", "text.txt", "tiny.yaml"]


LABELLED = "".join(f'{{"text": "{word} {i}", "label": "{word[0]}"}}\n' for i in range(30) for word in ("fig", "iron"))
CLASSES = ("task.kind=classes", "data.source=labelled.jsonl", "tokenizer.kind=byte")


def proposed(capsys, *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["tune", *arguments, "--steps", "20", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.system
def test_a_classifier_is_tuned_on_the_loss_of_texts(config, capsys):
    Path("labelled.jsonl").write_text(LABELLED)
    test = proposed(capsys, str(config), *CLASSES)
    assert test["unit"] == "text"
    assert test["loss"][0] == pytest.approx(math.log(2), abs=0.1)
    overrides = [f"optim.lr={test['proposed_lr']}", f"optim.adamw_lr={test['proposed_adamw_lr']}", "train.steps=2"]
    assert main(["train", "--config", str(config), *CLASSES, *overrides, "run_dir=run"]) == 0
    assert main(["train", "--config", str(config), *CLASSES, "optim.lr=auto", "train.steps=2", "run_dir=auto"]) == 0


@pytest.mark.system
@pytest.mark.parametrize("how", [(), ("task.trains=head",), ("lora.rank=2",)], ids=["all", "head", "lora"])
def test_a_model_that_is_trained_further_is_tuned_from_its_weights(config, capsys, how):
    Path("labelled.jsonl").write_text(LABELLED)
    rates = ("optim.lr=0.02", "optim.adamw_lr=0.02", "eval.every=null")
    assert main(["train", "--config", str(config), *CLASSES, *rates, "train.steps=60", "run_dir=base"]) == 0
    further = (*CLASSES, "train.init_from=base", "tokenizer.file=base/tokenizer.json", *how)
    test = proposed(capsys, str(config), *further, "run_dir=base")
    assert test["loss"][0] < 0.1
    assert test["key"] == ("optim.adamw_lr" if how else "optim.lr")
    assert (test["proposed_adamw_lr"] is None) == bool(how)
    overrides = [f"{test['key']}={test['proposed_lr']}", "train.steps=1", "train.patience=null"]
    assert main(["train", "--config", str(config), *further, *overrides, "run_dir=further"]) == 0
    with pytest.raises(RequestError, match="no-such-run"):
        lr_range_test(load_config(config, [*CLASSES, "train.init_from=no-such-run"]), print)


@pytest.mark.system
def test_what_it_prints_are_overrides_of_a_run(config, capsys):
    assert main(["tune", str(config), "--steps", "30"]) == 0
    overrides = capsys.readouterr().out.split()
    assert [o.partition("=")[0] for o in overrides] == ["optim.lr", "optim.adamw_lr"]
    assert main(["train", "--config", str(config), *overrides, "train.steps=2", "--dry-run"]) == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [(["-o", "lr.gif"], "lr.gif"), (["--steps", "3"], "'--steps'"), (["optim.lr=0"], "optim.lr must be above 0")],
)
def test_a_wrong_request_is_one_error(config, capsys, arguments, error):
    assert main(["tune", str(config), *arguments]) == 2
    assert error in capsys.readouterr().err


@pytest.mark.system
@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_auto_trains_at_what_tune_proposes_and_a_run_that_goes_on_keeps_it(config, capsys, name):
    assert main(["tune", str(config), f"optim.name={name}", "optim.lr=auto", "--json"]) == 0
    proposed = json.loads(capsys.readouterr().out)
    command = ["train", "--config", str(config), f"optim.name={name}", "optim.lr=auto", "--json"]
    assert main([*command, "run_dir=whole", "train.steps=6"]) == 0
    uninterrupted = json.loads(capsys.readouterr().out)
    saved = load_config(Path("whole/config.yaml")).optim
    assert saved.lr == proposed["proposed_lr"]
    assert saved.adamw_lr == (proposed["proposed_adamw_lr"] or 0.005)
    assert main([*command, "run_dir=parts", "train.steps=3"]) == 0
    assert "proposed by a range test" in capsys.readouterr().err
    assert main([*command, "run_dir=parts", "train.steps=6"]) == 0
    captured = capsys.readouterr()
    assert "proposed" not in captured.err
    assert load_config(Path("parts/config.yaml")).optim == saved
    plain = [f"optim.{key}={getattr(saved, key)}" for key in ("lr", "adamw_lr")]
    assert main([*command, *plain, "run_dir=plain", "train.steps=6"]) == 0
    assert json.loads(capsys.readouterr().out)["weights_sha256"] == uninterrupted["weights_sha256"]


def test_a_dry_run_with_auto_tries_nothing_out(config, capsys):
    assert main(["train", "--config", str(config), "optim.lr=auto", "--dry-run"]) == 0
    assert "proposed" not in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("train.budget=10m", "optim.lr (auto) needs train.budget (10m) to be null"),
        ("train.init_from=runs/other", "optim.lr (auto) needs train.init_from (runs/other) to be null"),
        ("optim.lr=high", "optim.lr must be a number or auto, not 'high'"),
    ],
)
def test_what_auto_cannot_do_is_told(config, capsys, override, error):
    assert main(["train", "--config", str(config), "optim.lr=auto", override]) == 2
    assert error in capsys.readouterr().err
