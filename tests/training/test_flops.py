"""A step multiplies what its formula says, and nothing else: counted by torch, product by product."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from gpt_cli.config import ModelConfig
from gpt_cli.model.chunked_loss import chunked_loss, needs_chunking
from gpt_cli.model.gpt import GPT
from gpt_cli.model.sizing import flops_per_token
from gpt_cli.runtime.device import Runtime
from gpt_cli.training.device_tokens import DeviceTokens
from gpt_cli.training.evaluate import EvaluationText, evaluate
from gpt_cli.training.grad_scaler import GradScaler
from gpt_cli.training.torch_engine import TorchEngine, token_loss

SHAPE = {"n_layer": 2, "n_head": 4, "n_embd": 128, "context_length": 128}
TOKENS = 4 * SHAPE["context_length"]
VOCABULARIES = [(65, False), (20_000, True)]  # whether the loss is taken in pieces


def flops(compute: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        compute()
    return counter.get_total_flops()


def forward_pass(model: GPT, tokens: Tensor) -> int:
    with torch.no_grad():
        return flops(partial(model, tokens))


def random_tokens(vocab_size: int, count: int) -> Tensor:
    return torch.randint(vocab_size, (count,), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("vocab_size", "chunked"), VOCABULARIES)
def test_evaluating_costs_one_forward_pass(vocab_size: int, chunked: bool) -> None:
    model, tokens = GPT(ModelConfig(**SHAPE), vocab_size), random_tokens(vocab_size, TOKENS + 1)
    assert needs_chunking(model, TOKENS) == chunked
    cpu = torch.device("cpu")
    text = EvaluationText(DeviceTokens(tokens.numpy().astype(np.uint16), cpu), TOKENS, TOKENS, TOKENS)
    engine = TorchEngine(model, Runtime(cpu, "fp32", threads=1), GradScaler(False), print)
    cost = flops(lambda: evaluate(model, engine, text))
    assert cost == forward_pass(model, tokens[:-1].view(4, -1))


@pytest.mark.parametrize(("vocab_size", "chunked"), VOCABULARIES)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_training_costs_three_forward_passes(vocab_size: int, chunked: bool, device: str) -> None:
    with torch.device(device):
        model = GPT(ModelConfig(**SHAPE), vocab_size)
    inputs, targets = random_tokens(vocab_size, 2 * TOKENS).view(2, 4, -1).to(device)
    loss = chunked_loss if chunked else token_loss
    cost = flops(lambda: loss(model, inputs, targets).backward())
    assert cost <= 3.05 * forward_pass(model, inputs)
    assert cost <= 1.01 * flops_per_token(model.config, vocab_size) * TOKENS


def test_a_frozen_head_costs_no_gradient_of_its_weight() -> None:
    model = GPT(ModelConfig(**SHAPE), 20_000)
    inputs, targets = random_tokens(20_000, 2 * TOKENS).view(2, 4, -1)
    learning = flops(lambda: chunked_loss(model, inputs, targets).backward())
    model.head.weight.requires_grad_(False)
    frozen = flops(lambda: chunked_loss(model, inputs, targets).backward())
    assert learning - frozen == 2 * TOKENS * SHAPE["n_embd"] * 20_000
