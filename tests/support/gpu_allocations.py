"""Memory that a step would allocate on a GPU, counted on tensors without numbers."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from gpt_cli.model import chunked_loss
from gpt_cli.model.gpt import GPT


class Allocations(TorchDispatchMode):
    """The bytes of all storages that operations make, while they live: `now`, and at the most, `peak`."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            if isinstance(tensor, Tensor) and (key := (storage := tensor.untyped_storage())._cdata) not in self.live:
                self.live[key] = storage.nbytes()
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._free, key)
        return out

    def _free(self, key: int) -> None:
        self.now -= self.live.pop(key)


class FlashAttention(torch.autograd.Function):
    """What the kernel of a GPU allocates and keeps: output (B, T, H, D) and the logarithm of each sum."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, heads, n_token, width = q.shape
        y = q.new_empty(batch, n_token, heads, width).transpose(1, 2)
        ctx.save_for_backward(q, k, v, y, torch.empty(batch, heads, n_token))
        return y

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(t) for t in ctx.saved_tensors[:3])


class FusedRMSNorm(torch.autograd.Function):
    """What the kernel of a GPU allocates and keeps: its input, and a number for each row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor) -> Tensor:
        ctx.save_for_backward(x, gain, torch.empty(x.shape[:-1]))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, Tensor]:
        x, gain, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(gain)


@contextmanager
def allocations_of_a_gpu() -> Iterator[Allocations]:
    """Within, tensors have no numbers, and kernels that a CPU does not have allocate what a GPU's do."""

    def attention(q: Tensor, k: Tensor, v: Tensor, **_: object) -> Tensor:
        if torch.is_autocast_enabled("cpu"):
            q, k, v = (t.to(torch.get_autocast_dtype("cpu")) for t in (q, k, v))
        return FlashAttention.apply(q, k, v)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", attention)
        patch.setattr(F, "rms_norm", lambda x, _shape, gain, _eps: FusedRMSNorm.apply(x, gain))
        patch.setattr(chunked_loss, "MAX_CPU_LOGITS", chunked_loss.MAX_LOGITS)
        patch.setattr(GPT, "to", lambda model, *_: model)  # it is where it is; tensors without numbers cannot be moved
        with FakeTensorMode(), Allocations() as allocations:
            yield allocations
