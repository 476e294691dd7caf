"""Training that starts from another run: the same model and tokenizer, all of it or LoRA, resumed bit for bit."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from gpt_cli.cli.main import main
from gpt_cli.config import Config, LoraConfig, ModelConfig, OptimConfig
from gpt_cli.export.import_hf import import_huggingface
from gpt_cli.model.gpt import GPT
from gpt_cli.run.checkpoint import Checkpoint, load_newest
from gpt_cli.training.lora import LoRA
from tests.support.export_models import TEXT

BASE = """
run_dir: base
data: {source: text.txt}
model: {n_layer: 2, n_head: 2, n_embd: 16, context_length: 16, zero_init: false}
optim: {name: adamw, lr: 0.01}
train: {steps: 4, batch_size: 2}
eval: {every: 2}
checkpoint: {every: 2}
sample: {every: null}
runtime: {device: cpu, threads: 1, precision: fp32}
"""
TUNED = ["train", "--config", "base.yaml", "run_dir=tuned", "train.init_from=base", "data.source=other.txt"]
VOCABULARY = ["tokenizer.file=base/tokenizer.json"]
LORA = ["lora.rank=3", "lora.targets=[qkv, up, down]"]


@pytest.fixture(autouse=True)
def _base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT)
    Path("other.txt").write_text("The lazy dogs jump over the fox\n" * 40)
    Path("base.yaml").write_text(BASE)
    assert main(["train", "--config", "base.yaml"]) == 0


def newest(run: str) -> Checkpoint:
    checkpoint = load_newest(Path(run), print)
    assert checkpoint is not None
    return checkpoint


@pytest.mark.parametrize("extra", [[], LORA], ids=["full", "lora"])
def test_it_starts_at_the_weights_of_the_base_and_leaves_them_alone(extra):
    before = newest("base").weights_sha256
    assert main([*TUNED, *VOCABULARY, *extra, "train.steps=0"]) == 0
    assert newest("tuned").weights_sha256 == before
    assert main([*TUNED, *VOCABULARY, *extra, "train.steps=4"]) == 0
    assert newest("tuned").weights_sha256 != before
    assert newest("base").weights_sha256 == before


@pytest.mark.parametrize("extra", [[], LORA, [*LORA, "optim.ema=0.9"]], ids=["full", "lora", "lora averaged"])
def test_resumed_it_ends_with_the_same_bits_though_the_base_is_gone(extra):
    command = [*TUNED, *VOCABULARY, *extra]
    assert main([*command, "run_dir=whole", "train.steps=6"]) == 0
    assert main([*command, "train.steps=2"]) == 0
    (Path("vocabulary.json")).write_bytes(Path("base/tokenizer.json").read_bytes())
    checkpoints = Path("base/checkpoints")
    checkpoints.rename("gone")
    assert main([*command, "train.steps=6"]) == 0
    assert newest("tuned").weights_sha256 == newest("whole").weights_sha256


def test_lora_changes_its_targets_by_a_matrix_of_its_rank_and_nothing_else():
    assert main([*TUNED, *VOCABULARY, *LORA, "train.steps=4"]) == 0
    before, after = newest("base").model_tensors, newest("tuned").model_tensors
    for name, tensor in after.items():
        change = tensor - before[name]
        targeted = name.endswith(("qkv.weight", "gate_up.weight", "down.weight"))
        assert int(torch.linalg.matrix_rank(change, atol=1e-6)) == 3 if targeted else not change.any(), name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tokenizer.kind=byte"], "another tokenizer"),
        ([*VOCABULARY, "model.n_embd=32"], "model.n_embd: 16 there, 32 here"),
        ([*VOCABULARY, "model.window=3"], "model.window"),
        ([*VOCABULARY, "train.init_from=nothing"], "no run at nothing"),
        ([*VOCABULARY, "train.init_from=null", "lora.rank=2"], "lora.rank (2) needs train.init_from"),
    ],
)
def test_another_model_or_tokenizer_is_refused_before_anything_is_left(arguments, message, capsys):
    assert main([*TUNED, *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not Path("tuned").exists()


def test_merged_logits_equal_adapted_ones_and_the_gradients_are_those_of_the_factors(monkeypatch):
    config = Config(model=ModelConfig(n_layer=2, n_head=2, n_embd=16, context_length=12, zero_init=False))
    torch.manual_seed(0)
    model = GPT(config.model, 11)
    lora = LoRA(
        model, LoraConfig(rank=2, alpha=3.0, targets=["qkv", "out", "up", "down"]), OptimConfig(lr=0.01), seed=1
    )
    factors = lora.adamw.parameters
    for factor in factors.values():
        torch.nn.init.normal_(factor, std=0.3)
    lora.merge()
    tokens, targets = torch.randint(11, (2, 2, 12))
    merged = model(tokens)
    F.cross_entropy(merged.flatten(0, 1), targets.flatten()).backward()
    lora.adamw.step = lambda *_: None
    lora.step(1.0)
    actual = {name: factor.grad for name, factor in factors.items()}

    leaves = {name: factor.detach().clone().requires_grad_() for name, factor in factors.items()}
    names = {id(parameter): name for name, parameter in model.named_parameters()}

    def adapted(self: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        name = names[id(self.weight)]
        if name not in lora.base:
            return F.linear(x, self.weight)
        a, b = leaves[f"{name}/a"], leaves[f"{name}/b"]
        return F.linear(x, lora.base[name]) + 1.5 * F.linear(F.linear(x, a), b)

    monkeypatch.setattr(torch.nn.Linear, "forward", adapted)
    reference = model(tokens)
    torch.testing.assert_close(merged, reference, rtol=0, atol=1e-5)
    F.cross_entropy(reference.flatten(0, 1), targets.flatten()).backward()
    for name, leaf in leaves.items():
        torch.testing.assert_close(actual[name], leaf.grad, rtol=1e-3, atol=1e-6)


def test_an_imported_run_is_trained_further_with_its_own_config():
    assert main(["export", "base", "--to", "hf", "hf"]) == 0
    import_huggingface("hf", Path("imported"))
    overrides = ["train.steps=2", "train.batch_size=2", "runtime.threads=1", "sample.every=null"]
    tune = ["train", "--config", "imported/config.yaml", "run_dir=tuned", "train.init_from=imported"]
    assert main([*tune, "data.source=other.txt", *overrides]) == 0
    assert main(["eval", "--run", "tuned"]) == 0


def test_null_and_the_value_that_it_stands_for_are_the_same_model():
    explicit = ["model.n_kv_head=2", "model.mlp_ratio=3.0"]  # null: n_head, and 8/3, both rounded up to a width of 48
    assert main([*TUNED, *VOCABULARY, *explicit, "train.steps=0"]) == 0
    assert newest("tuned").weights_sha256 == newest("base").weights_sha256


def test_values_that_differ_are_named_as_a_config_writes_them(capsys):
    assert main([*TUNED, *VOCABULARY, "model.window=3", "model.position=none"]) == 2
    output = capsys.readouterr().err
    assert "model.window: null there, 3 here" in output
    assert "model.position: rope there, none here" in output
