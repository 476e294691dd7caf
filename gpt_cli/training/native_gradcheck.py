"""A check of the compiled training code before a run: its loss and gradient of a tiny batch against autograd."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from gpt_cli.config import ModelConfig
from gpt_cli.cpu.train.native_engine import NativeEngine
from gpt_cli.cpu.train.native_muon import NativeMuon
from gpt_cli.cpu.train.train_bindings import NativeLibrary
from gpt_cli.model.gpt import GPT
from gpt_cli.runtime.device import exact_products, torch_threads
from gpt_cli.training.evaluate import IGNORED, cross_entropy
from gpt_cli.training.muon import POLAR_EXPRESS, Muon, newton_schulz_batched

T = TypeVar("T")
_VOCAB_SIZE, _LENGTH, _BATCH = 37, 70, 2  # larger than the blocks of the C code, and no multiples of them
_WINDOW = 9
_PASSES = 4
"""Repetitions at different stack depths and addresses, since some faults depend on these."""
_WIDEST_HEAD = 64
_TOLERANCE = {torch.float32: (1e-5, 5e-5, 1e-4), torch.bfloat16: (2e-2, 1e-1, 2e-1)}
"""Tolerances of the loss and, relative to their norms, of a gradient and of an orthogonalised matrix: several times the
error of another summation order, or of rounding to bf16. A wrong constant or index exceeds them."""
_KINKED = {torch.float32: 5e-2, torch.bfloat16: 3e-1}
"""Tolerance of the gradient with relu, where the rounding of a sum near zero can switch a whole row."""


def check_native_gradients(library: NativeLibrary, config: ModelConfig, threads: int) -> str | None:
    """The first difference between the compiled code and torch on a tiny model like `config`, or None.

    Takes 10 to 20 ms, and does not touch the random state of the process.
    """
    with (
        torch_threads(1),  # waking other threads takes longer than this
        exact_products(),
        torch.random.fork_rng(devices=[]),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        torch.default_generator.manual_seed(0)
        return _compare(library, _tiny(config), min(threads, 2))


def _tiny(config: ModelConfig) -> ModelConfig:
    """A small model that runs the same code paths."""
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
    usual = {
        "mlp_ratio": 1.5,
        "norm_eps": 1e-5,
        "init_std": None,
        "rope_theta": 1e4,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    }
    return config.model_copy(update={**shape, **usual})


def _compare(library: NativeLibrary, config: ModelConfig, threads: int) -> str | None:
    loss_tolerance, gradient_tolerance, matrix_tolerance = _TOLERANCE[library.dtype]
    if config.mlp == "relu":
        gradient_tolerance = _KINKED[library.dtype]
    model = GPT(config, _VOCAB_SIZE).float()
    with torch.no_grad():
        for parameter in model.parameters():  # so that none is zero or one
            parameter.add_(0.1 * torch.randn_like(parameter))
    tokens = torch.randint(0, _VOCAB_SIZE, (_BATCH, _LENGTH + 1))
    inputs, targets = tokens[:, :-1], tokens[:, 1:].clone()
    targets[0, 0] = IGNORED
    expected = cross_entropy(model(inputs), targets, "sum") / inputs.numel()
    expected.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for depth in range(_PASSES):
        model.zero_grad()
        network = NativeEngine(model, library, threads)
        loss = _deeper(3 * depth, partial(network.loss_and_gradients, inputs, targets, 1.0 / inputs.numel()))
        if not abs(loss / inputs.numel() - expected.item()) <= loss_tolerance:
            return "its loss is not that of torch"
        for name, parameter in model.named_parameters():
            if name in gradients and not _distance(parameter.grad, gradients[name]) <= gradient_tolerance:
                return f"its gradient of {name} is not that of torch"
    if not all(
        distance <= matrix_tolerance for distance in _muon_distances(NativeMuon(library, threads, POLAR_EXPRESS))
    ):
        return "its update by Muon is not that of torch"
    return None


def _muon_distances(native: NativeMuon) -> list[float]:
    """The distances of two matrices and of their momentum, updated by compiled code, from those updated by torch."""
    muons = []
    for fused in (None, native.update):
        generator = torch.Generator().manual_seed(0)
        parameters = {"wide": torch.zeros(20, 36), "tall": torch.zeros(36, 20)}
        muon = Muon(
            parameters, {}, lr=1.0, momentum=0.9, weight_decay=0.25,
            orthogonalise=partial(newton_schulz_batched, dtype=torch.float32), fused=fused,
        )  # fmt: skip
        for _ in range(2):
            for parameter in parameters.values():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            muon.step(1.0)
        muons.append(muon)
    expected, actual = ({**muon.parameters, **{f"{n} momentum": b for n, b in muon.buffers.items()}} for muon in muons)
    return [_distance(actual[name], expected[name]) for name in expected]


def _deeper(calls: int, compute: Callable[[], T]) -> T:
    """The result of `compute`, called this many frames deeper on the C stack, which a generator's `next` uses."""
    return next(_deeper(calls - 1, compute) for _ in (None,)) if calls else compute()


def _distance(a: Tensor | None, b: Tensor) -> float:
    """The distance of `a` from `b`, relative to the norm of `b`; NaN if either contains NaN."""
    return float("nan") if a is None else float((a - b).norm() / (b.norm() + 1e-12))
