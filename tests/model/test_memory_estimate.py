"""The memory that is estimated is what a step allocates, within 15 %."""

import pytest
import torch

from gpt_cli.config import Config, RuntimeConfig, load_config, parse_config
from gpt_cli.model.memory_estimate import estimate_memory
from gpt_cli.runtime.device import Runtime, planned_device
from gpt_cli.training.state import TrainingState
from tests.support.command import ROOT
from tests.support.gpu_allocations import allocations_of_a_gpu

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
VOCABULARY = {"char": 90, "byte": 256}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SMALL = ("model.n_layer=3", "model.n_head=4", "model.n_embd=64", "model.context_length=64", "train.batch_size=8")


def peak(config: Config, vocab_size: int, precision: str) -> int:
    """Bytes of a step at their most."""
    with allocations_of_a_gpu() as allocations:
        state = TrainingState.initialize(config, vocab_size, Runtime(torch.device("cpu"), precision, 1), print)
        size = config.train.sequences_per_forward
        tokens = torch.zeros(size, config.model.context_length, dtype=torch.long)
        targets = tokens if config.task.kind == "language" else tokens[:, 0]
        micro_batches = -(-config.train.batch_size // size)
        allocations.peak = 0
        for micro_step in range(min(micro_batches, 2)):
            state.engine.forward_backward(tokens, targets, micro_batches, micro_step)
        state.optimizer.step(1.0)
    return allocations.peak


def assert_near(config: Config, vocab_size: int, precision: str) -> None:
    config = config.model_copy(update={"runtime": config.runtime.model_copy(update={"engine": "torch"})})
    estimate = estimate_memory(config, vocab_size, torch.device("cuda"), DTYPES[precision])
    assert sum(estimate.values()) == pytest.approx(peak(config, vocab_size, precision), rel=0.15)
    assert all(size >= 0 for size in estimate.values())


@pytest.mark.system
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_estimate_of_a_shipped_config_is_what_a_step_allocates(path):
    """At full width, context and batch; of the layers, which are alike, two. Other precisions are below, by option."""
    config = load_config(path, ["model.n_layer=2"])
    if config.task.kind == "classes":  # training reads the labels from the data
        config = config.model_copy(update={"task": config.task.model_copy(update={"labels": ["a", "b", "c"]})})
    assert_near(config, VOCABULARY.get(config.tokenizer.kind, config.tokenizer.vocab_size), "bf16")


@pytest.mark.system
@pytest.mark.parametrize("precision", DTYPES)
def test_the_estimate_of_gpt2_at_full_size_is_what_a_step_allocates(precision):
    path = next(path for path in CONFIGS if path.stem == "gpt2_124m")
    assert_near(load_config(path), 50_257, precision)


@pytest.mark.system
@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("model.mlp=relu", "model.norm_position=post", "model.norm=layernorm"),
        ("model.mlp=relu2", "model.qk_norm=false", "model.dropout=0.1"),
        ("model.mlp=gelu", "model.n_kv_head=1", "optim.ema=0.9"),
        ("model.tie_embeddings=true", "model.logit_softcap=20", "optim.name=adamw"),
        ("train.micro_batch_size=2",),
        ("train.activation_checkpointing=true", "model.n_layer=5"),
    ],
)
def test_the_estimate_knows_every_option(overrides, precision):
    assert_near(parse_config("", "t", [*SMALL, *overrides]), 90, precision)


@pytest.mark.system
@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("overrides", [(), ("model.logit_softcap=20", "train.micro_batch_size=4")])
def test_the_estimate_knows_the_loss_in_pieces(overrides, precision):
    assert_near(parse_config("", "t", [*SMALL, *overrides]), 300_000, precision)


@pytest.mark.system
@pytest.mark.parametrize(
    "overrides", [(), ("lora.targets=[out]",), ("lora.targets=[qkv, out, up, down]", "lora.rank=16")]
)
def test_the_estimate_of_lora_is_enough_and_not_half_as_much_again(overrides):
    lora = ("train.init_from=other", "lora.rank=2", "runtime.engine=torch")
    config = parse_config("", "t", [*SMALL, *lora, *overrides])
    allocated = peak(config, 90, "fp32")
    estimate = estimate_memory(config, 90, torch.device("cuda"), torch.float32)
    assert allocated <= sum(estimate.values()) <= 1.5 * allocated


def test_the_machine_of_an_estimate_is_the_one_that_a_config_names_wherever_it_is_read():
    named = {
        ("cpu", "auto"): torch.float32,
        ("cpu", "bf16"): torch.bfloat16,
        ("cuda", "auto"): torch.bfloat16,
        ("cuda", "fp32"): torch.float32,
        ("mps", "auto"): torch.float32,
    }
    for (device, precision), dtype in named.items():
        assert planned_device(RuntimeConfig(device=device, precision=precision)) == (torch.device(device), dtype)
