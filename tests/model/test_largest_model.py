"""The largest model that the schema allows is described and planned without a byte of it allocated."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gpt_cli.config import load_config
from gpt_cli.model.attention import alibi_slopes
from gpt_cli.model.sizing import build_on_meta, parameter_table
from gpt_cli.report.info_view import render_plan
from gpt_cli.run.model_info import describe
from gpt_cli.runtime.device import Runtime
from gpt_cli.search import dry_run
from tests.support.command import ROOT
from tests.support.waiting import HANG

pytestmark = pytest.mark.robust

MOST = 500_000  # kilobytes
LAYERS, LARGEST = 10_000, 2**31 - 1
WIDE = ["model.n_embd=10000000", "model.n_head=10", f"model.n_layer={LAYERS}", f"train.batch_size={LARGEST}"]
LONG = f"model.context_length={LARGEST}"
COMMANDS = {
    "wide, long and deep": ["info", "c.yaml", *WIDE, LONG, "model.mlp_ratio=1000"],
    "of so many heads": ["info", "c.yaml", *WIDE, LONG, "model.position=alibi", "model.n_head=5000000"],
    "of windows": ["info", "c.yaml", *WIDE, LONG, "model.window=1000000000", "model.position=sinusoidal"],
    "of learned positions": ["info", "c.yaml", *WIDE, LONG, "model.position=learned", "tokenizer.kind=byte"],
    "planned": ["train", "c.yaml", "--dry-run", *WIDE, "model.context_length=1000"],
    "planned for a text": ["train", "x.txt", "--dry-run", *WIDE, "model.context_length=1000"],
    "planned in fp32 by torch": ["train", "c.yaml", "--dry-run", *WIDE, "runtime.engine=torch", "optim.ema=0.9"],
}
CODE = """
import sys
from gpt_cli.cli.main import main
from tests.support.memory import peak_kilobytes
code = main(sys.argv[1:])
print(code, peak_kilobytes())
"""


@pytest.mark.parametrize("name", COMMANDS)
def test_the_largest_model_is_described_within_the_memory_of_an_import(name: str, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("once upon a time there was a mouse that lived in a shoe\n" * 400)
    (tmp_path / "c.yaml").write_text("data: {source: x.txt}\n")
    completed = subprocess.run(
        [sys.executable, "-c", CODE, *COMMANDS[name]],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "GPT_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    code, peak = map(int, completed.stdout.split()[-2:])
    assert code == 0, completed.stderr
    assert peak < MOST
    assert "PB" in completed.stdout


@pytest.mark.parametrize("position", ["rope", "learned", "alibi"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_table_of_parameters_is_that_of_the_model(position: str, tied: bool, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("model: {n_layer: 3, n_embd: 16, n_head: 2}\n")
    overrides = [f"model.position={position}", f"model.tie_embeddings={str(tied).lower()}"]
    model = load_config(tmp_path / "c.yaml", overrides).model
    built = [(name, tuple(p.shape), p.numel()) for name, p in build_on_meta(model, 7).named_parameters()]
    assert parameter_table(model, 7) == built


@pytest.mark.parametrize("free", [0, None])
def test_a_plan_without_the_memory_for_a_step_says_so_instead_of_trying(free, tmp_path, monkeypatch) -> None:
    (tmp_path / "x.txt").write_text("once upon a time there was a mouse that lived in a shoe\n" * 40)
    (tmp_path / "c.yaml").write_text(
        "model: {n_layer: 1, n_embd: 16, n_head: 2, context_length: 8}\ntrain: {steps: 3}\n"
    )
    config = load_config(tmp_path / "c.yaml", [f"data.source={tmp_path / 'x.txt'}", "runtime.device=cpu"])
    monkeypatch.setattr(dry_run, "available_memory", lambda _: free)
    planned = dry_run.plan(config, lambda _: None)
    assert (planned.seconds is None) is (free == 0)
    assert ("a step would need more memory" in render_plan(planned)) is (free == 0)


def test_the_slopes_of_alibi_are_those_of_the_paper_to_the_last_bit() -> None:
    for heads in (*range(1, 70), 96, 128, 200):
        power_of_two = 1 << (heads.bit_length() - 1)
        paper = [2 ** (-8 * (i + 1) / power_of_two) for i in range(power_of_two)]
        paper += [2 ** (-4 * (2 * i + 1) / power_of_two) for i in range(heads - power_of_two)]
        assert torch.equal(alibi_slopes(heads), torch.tensor(paper)), heads


@pytest.mark.parametrize("file", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda file: file.stem)
def test_a_shipped_model_is_measured_as_it_is_where_there_is_room(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "available_memory", lambda _: None)
    config = load_config(file, ["runtime.device=cpu"])
    vocab_size = config.tokenizer.vocab_size or 50_257
    cpu = Runtime(torch.device("cpu"), "fp32", threads=1)
    assert dry_run._measured_configs(config, describe(Path(), config, vocab_size), vocab_size, cpu) == [config]
