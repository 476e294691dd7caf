"""CUDA graphs (NVIDIA's): the kernels of a function, launched as one from then on."""

from collections.abc import Callable, Sequence
from contextlib import suppress

import torch
from torch import Tensor

TensorFunction = Callable[..., Sequence[Tensor]]
"""Tensors -> tensors: of inputs of the same shapes each time, without a look at their values by the host."""

_WARM_UPS = 2  # calls before the capture: what compiles, loads or plans itself does it there


def graphs_available(device: torch.device) -> bool:
    """True if CUDA graphs are worth a try. On AMD's GPUs they trained wrongly, unnoticed (pytorch/pytorch#187715)."""
    return device.type == "cuda" and torch.version.hip is None


def capture_graph(function: TensorFunction, inputs: Sequence[Tensor]) -> TensorFunction:
    """`function` as a CUDA graph, which copies its inputs to where those of the capture lie, and is replayed.

    The function is called twice and captured once: calling it again with the same `inputs` must change nothing. Raises
    RuntimeError for what cannot be captured.
    """
    static = [tensor.clone() for tensor in inputs]
    stream, side, pool = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.graph_pool_handle()
    side.wait_stream(stream)
    with torch.cuda.stream(side):
        for _ in range(_WARM_UPS):
            function(*static)
    stream.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=side):
            outputs = function(*static)
    except BaseException:
        torch.cuda.set_stream(stream)  # an invalidated capture leaves its own behind, and the allocator at its pool
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
        raise

    def replay(*inputs: Tensor) -> Sequence[Tensor]:
        for buffer, value in zip(static, inputs, strict=True):
            buffer.copy_(value)
        graph.replay()
        return [tensor.clone() for tensor in outputs]

    return replay
