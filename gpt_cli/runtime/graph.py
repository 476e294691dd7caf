"""CUDA graphs (NVIDIA's): what was launched kernel by kernel once is launched as one from then on."""

from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


def record(compute: Callable[[], Result]) -> Callable[[], Result]:
    """`compute` as a CUDA graph. It is not computed now; each call of the result does, and writes over the last one.

    What it reads and writes must stay where it is. Raises RuntimeError for what cannot be recorded.
    """
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph):
            results = compute()
    except BaseException:
        torch.cuda.set_stream(stream)  # a recording that breaks off may leave its own behind
        raise

    def replay() -> Result:
        graph.replay()
        return results

    return replay
