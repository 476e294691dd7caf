"""The loss of a GPT and its gradient from compiled code, in place of torch's autograd.

Shapes: B sequences, T tokens each, P elements of all parameters together.
"""

import ctypes
import math
from collections.abc import Iterator
from itertools import accumulate

import torch
from torch import Tensor, nn

from gpt_cli.cpu.common.c_model import MODEL_FIELDS, model_fields
from gpt_cli.cpu.train.train_bindings import Backend, NativeLibrary, address
from gpt_cli.model.gpt import GPT
from gpt_cli.model.parameters import BLOCK_SLOTS, NETWORK_SLOTS, block_parameters, network_parameters
from gpt_cli.model.position import Rotary

_TOKENS_PER_CHUNK = 512  # of one thread: what they need stays in its cache
_TILE = 32  # TILE of gemm.h


class _TrainerNetwork(ctypes.Structure):
    """`Network` of model.h."""

    _fields_ = (
        *MODEL_FIELDS,
        *((name, ctypes.c_float) for name in ("dropout", "attention_dropout")),
        *((name, ctypes.c_void_p) for name in ("positions", "cosines", "sines", "parameters", "offsets")),
        ("n_parameters", ctypes.c_long),
        *((name, ctypes.c_void_p) for name in ("matrices", "packed_offsets")),
        ("backend", Backend),
    )


class NativeEngine:
    """A model's loss and gradients by compiled code, from the model's own tensors into their `grad`."""

    reuses_gradients = True

    def __init__(self, model: GPT, library: NativeLibrary, threads: int) -> None:
        self.model, self.threads = model, threads
        self.library = library
        self._parameters = list(model.parameters())  # the model's own walk takes as long as a small layer
        self._ones = torch.ones(model.config.n_embd)  # the gain of norms that have none
        self._slots = list(_parameter_order(model, self._ones))
        self._offsets: dict[int, int] = {}  # of each parameter, by its identity: tied ones share it
        n_parameters = 0
        for parameter in self._slots:
            if parameter is not None and id(parameter) not in self._offsets:
                self._offsets[id(parameter)] = n_parameters
                n_parameters += -(-parameter.numel() // 16) * 16  # each begins at a cache line
        bf16 = library.dtype == torch.bfloat16
        first = len(self._slots) - len(NETWORK_SLOTS)
        lookup_tables = {first + NETWORK_SLOTS.index(name) for name in ("tokens", "positions")}  # no matrix products
        sizes = [
            0 if p is None or i in lookup_tables or not bf16 else _packed_size(p) for i, p in enumerate(self._slots)
        ]
        self._matrices = torch.zeros(sum(sizes), dtype=torch.bfloat16)
        self._gradients = torch.zeros(0)
        self._workspace = torch.zeros(0, dtype=torch.uint8)
        n = len(self._slots)
        self._pointers = (ctypes.c_void_p * n)()
        self._starts = (ctypes.c_long * n)(*(0 if p is None else self._offsets[id(p)] for p in self._slots))
        self._packed_offsets = (ctypes.c_long * n)(*accumulate(sizes[:-1], initial=0))
        self._net = self._describe(n_parameters)

    def forward_backward(self, inputs: Tensor, targets: Tensor, loss_normalizer: int | Tensor, seed: int) -> Tensor:
        share = 1.0 / (inputs.numel() * loss_normalizer if isinstance(loss_normalizer, int) else float(loss_normalizer))
        return torch.tensor(self.loss_and_gradients(inputs, targets, share, seed) * share)

    def summed_loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return torch.tensor(self._run(inputs, targets, 0.0, None), dtype=torch.float64)

    def loss_and_gradients(self, inputs: Tensor, targets: Tensor, weight: float, seed: int = 0) -> float:
        """(B, T), (B, T) -> the summed loss; `weight` times its gradient is added to every trained parameter's `grad`.

        Both are with the dropout that `seed` draws.
        """
        if self._gradients.shape[0] == 0:
            self._gradients = torch.zeros(self.threads, self._net.n_parameters)
        previous = {id(p): p.grad for p in self._parameters if p.grad is not None}
        if previous:  # an earlier micro-batch's
            previous = {key: gradient.clone() for key, gradient in previous.items()}
        loss = self._run(inputs, targets, weight, self._gradients, seed)
        for parameter in self._parameters:
            if not parameter.requires_grad:  # LoRA trains some; the norm that clips is of these alone
                continue
            start = self._offsets[id(parameter)]
            gradient = self._gradients[0, start : start + parameter.numel()].view_as(parameter)
            if id(parameter) in previous:
                gradient += previous[id(parameter)]
            parameter.grad = gradient
        return loss

    def _run(self, inputs: Tensor, targets: Tensor, weight: float, gradients: Tensor | None, seed: int = 0) -> float:
        batch, length = inputs.shape
        if inputs.stride() != targets.stride() or inputs.stride(1) != 1:
            inputs, targets = inputs.contiguous(), targets.contiguous()
        sequences = -(-batch // self.threads)
        chunk = max(1, min(sequences, _TOKENS_PER_CHUNK // length))
        threads = min(self.threads, batch)
        calls, net = self.library.calls, ctypes.byref(self._net)
        size = calls.workspace_bytes(net, chunk, length, gradients is not None) * threads
        if len(self._workspace) < size + 64:
            self._workspace = torch.empty(size + 64, dtype=torch.uint8)
        for i, parameter in enumerate(self._slots):
            self._pointers[i] = None if parameter is None else parameter.data_ptr()
        calls.pack_weights(net, self.threads)
        aligned = -self._workspace.data_ptr() % 64
        return float(
            calls.loss_and_gradients(
                net,
                inputs.data_ptr(),
                targets.data_ptr(),
                batch,
                length,
                inputs.stride(0),
                chunk,
                weight,
                seed,
                self._workspace.data_ptr() + aligned,
                None if gradients is None else gradients.data_ptr(),
                threads,
            )
        )

    def _describe(self, n_parameters: int) -> _TrainerNetwork:
        config, embedding = self.model.config, self.model.embedding
        rotary = next((module for module in self.model.modules() if isinstance(module, Rotary)), None)
        fixed = None if isinstance(embedding.positions, nn.Parameter) else embedding.positions
        return _TrainerNetwork(
            **model_fields(config, self.model.head.out_features, embedding.scale),
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            positions=address(fixed),
            cosines=None if rotary is None else address(rotary.cos),
            sines=None if rotary is None else address(rotary.sin),
            parameters=ctypes.addressof(self._pointers),
            offsets=ctypes.addressof(self._starts),
            n_parameters=n_parameters,
            matrices=address(self._matrices),
            packed_offsets=ctypes.addressof(self._packed_offsets),
            backend=self.library.backend,
        )


def _parameter_order(model: GPT, ones: Tensor) -> Iterator[Tensor | None]:
    """The parameters in the order of parameters.h, None where the model has none; `ones` for the gains it lacks."""
    named = dict(model.named_parameters(remove_duplicate=False))
    config = model.config
    gains = {"norm1", "norm2", "norm"} | ({"q_norm", "k_norm"} if config.qk_norm else set())
    blocks = [(BLOCK_SLOTS, block_parameters(config, layer)) for layer in range(config.n_layer)]
    for slots, table in (*blocks, (NETWORK_SLOTS, network_parameters(config, model.head.out_features))):
        for slot in slots:
            yield named[table[slot].name] if slot in table else ones if slot in gains else None


def _packed_size(parameter: Tensor) -> int:
    """Elements of the two copies of a matrix that gemm.h reads, each side filled up to tiles of 32."""
    return 2 * math.prod(-(-size // _TILE) * _TILE for size in parameter.shape) if parameter.ndim == 2 else 0
