"""Which attention backend is fastest on this CPU, by context length: `python -m bench.attention`.

Forward and backward, fp32, side by side in one run; the ratio is what counts. It is where the choice in
gpt_cli/model/attention.py comes from.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from gpt_cli.config import RuntimeConfig
from gpt_cli.model.attention import matmul_attention, sdpa_attention
from gpt_cli.runtime.device import open_runtime

SHAPES = [(12, 4, 64, 32), (16, 4, 128, 32), (16, 4, 192, 32), (8, 4, 256, 64), (64, 6, 256, 64), (4, 8, 1024, 64)]
ROUNDS = 15


def main() -> None:
    """Print a line for each shape."""
    print(open_runtime(RuntimeConfig(device="cpu")).describe())
    print(f"{'(B, H, T, D)':>18} {'matmul ms':>10} {'sdpa ms':>10} {'sdpa / matmul':>14}")
    for shape in SHAPES:
        q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
        upstream = torch.randn(shape)
        times: dict[str, list[float]] = {"matmul": [], "sdpa": []}
        for round_ in range(ROUNDS + 3):  # in turn, so that what else the machine does meets both
            for name, attention in (("matmul", matmul_attention), ("sdpa", sdpa_attention)):
                seconds = _time(attention, q, k, v, upstream)
                if round_ >= 3:
                    times[name].append(seconds)
        matmul, sdpa = (1e3 * statistics.median(times[name]) for name in ("matmul", "sdpa"))
        print(f"{shape!s:>18} {matmul:>10.2f} {sdpa:>10.2f} {sdpa / matmul:>14.2f}")


def _time(attention: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, upstream: Tensor) -> float:
    started = time.perf_counter()
    attention(q, k, v).backward(upstream)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
