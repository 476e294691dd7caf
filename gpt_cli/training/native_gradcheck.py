"""The compiled training code, tried on a tiny batch before a run relies on it: is its gradient that of autograd?"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from gpt_cli.config import ModelConfig
from gpt_cli.cpu.train.native_muon import NativeNewtonSchulz
from gpt_cli.cpu.train.network import NativeNetwork
from gpt_cli.cpu.train.train_bindings import NativeLibrary
from gpt_cli.model.gpt import GPT
from gpt_cli.training.evaluate import IGNORED, cross_entropy
from gpt_cli.training.muon import POLAR_EXPRESS, newton_schulz_batched

T = TypeVar("T")
_VOCAB_SIZE, _LENGTH, _BATCH = 37, 70, 2  # more than what is computed at once, and no multiple of it
_WINDOW = 9
_PASSES = 4
"""Each with its own stack and memory, since some faults depend on addresses."""
_WIDEST_HEAD = 64
_TOLERANCE = {torch.float32: (1e-5, 5e-5, 1e-4), torch.bfloat16: (2e-2, 1e-1, 2e-1)}
"""Tolerances of the loss, and, relative to their norms, of the gradient and of an orthogonalised matrix: several times
what sums in another order, or numbers rounded to bf16, are apart. A wrong constant or a wrong index is further off."""
_KINKED = {torch.float32: 5e-2, torch.bfloat16: 3e-1}
"""Tolerance of the gradient with relu, where a sum near zero that is rounded to its other side changes a whole row."""


def check_native_gradients(library: NativeLibrary, config: ModelConfig, threads: int) -> str | None:
    """A description of how the compiled code differs from torch, for a tiny model of the kind of `config`; or None.

    Takes 10 to 20 ms, and no randomness of the process.
    """
    precision, at_work = torch.get_float32_matmul_precision(), torch.get_num_threads()
    torch.set_float32_matmul_precision("highest")
    torch.set_num_threads(1)  # waking others takes longer than this
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
            torch.default_generator.manual_seed(0)
            return _compare(library, _tiny(config), min(threads, 2))
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.set_num_threads(at_work)


def _tiny(config: ModelConfig) -> ModelConfig:
    """A small model that takes the same way through the code."""
    usual_head = config.head_dim <= _WIDEST_HEAD  # 32 and 64 have code of their own
    shape = {
        "n_layer": 1,
        "n_head": 2,
        "n_kv_head": 2 if config.kv_heads == config.n_head else 1,
        "n_embd": 2 * (config.head_dim if usual_head else _WIDEST_HEAD + 8),
        "context_length": _LENGTH,
        "window": None if config.window is None else _WINDOW,
        "logit_softcap": None if config.logit_softcap is None else 5.0,
    }
    usual = {"mlp_ratio": 1.5, "norm_eps": 1e-5, "init_std": None, "rope_theta": 1e4, "dropout": 0.0}
    return config.model_copy(update={**shape, **usual})


def _compare(library: NativeLibrary, config: ModelConfig, threads: int) -> str | None:
    of_loss, of_gradient, of_matrix = _TOLERANCE[library.dtype]
    if config.mlp == "relu":
        of_gradient = _KINKED[library.dtype]
    model = GPT(config, _VOCAB_SIZE).float()
    with torch.no_grad():
        for parameter in model.parameters():  # none is zero or one
            parameter.add_(0.1 * torch.randn_like(parameter))
    tokens = torch.randint(0, _VOCAB_SIZE, (_BATCH, _LENGTH + 1))
    inputs, targets = tokens[:, :-1], tokens[:, 1:].clone()
    targets[0, 0] = IGNORED
    expected = cross_entropy(model(inputs), targets, "sum") / inputs.numel()
    expected.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for depth in range(_PASSES):
        model.zero_grad()
        network = NativeNetwork(model, library, threads)
        found = _deeper(3 * depth, partial(network.add_gradients, inputs, targets, 1.0 / inputs.numel()))
        if not abs(found / inputs.numel() - expected.item()) <= of_loss:
            return "its loss is not that of torch"
        for name, parameter in model.named_parameters():
            if name in gradients and not _distance(parameter.grad, gradients[name]) <= of_gradient:
                return f"its gradient of {name} is not that of torch"
    matrices, scales = [torch.randn(20, 36), torch.randn(36, 20)], [1.0, -0.5]
    results = NativeNewtonSchulz(library, threads, POLAR_EXPRESS)(matrices, scales)
    for ours, theirs in zip(results, newton_schulz_batched(matrices, scales, torch.float32), strict=True):
        if not _distance(ours, theirs) <= of_matrix:
            return "a matrix that it orthogonalised is not that of torch"
    return None


def _deeper(calls: int, compute: Callable[[], T]) -> T:
    """The result of `compute`, called so many calls further down the stack of C, which a generator's `next` uses."""
    return next(_deeper(calls - 1, compute) for _ in (None,)) if calls else compute()


def _distance(a: Tensor | None, b: Tensor) -> float:
    """Distance of `a` from `b`, relative to the norm of `b`; NaN where something is."""
    return float("nan") if a is None else float((a - b).norm() / (b.norm() + 1e-12))
