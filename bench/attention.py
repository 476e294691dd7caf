"""Which attention backend is fastest on this CPU, by context length: `python -m bench.attention`.

Forward and backward of a batch, then the forward pass of one query with its keys in a cache, as in decoding; fp32, side
by side in one run; the ratio is what counts. It is where the choice in gpt_cli/model/attention.py comes from.
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
DECODING = [(1, 4, 32, 32), (1, 6, 128, 64), (1, 12, 1024, 64), (64, 4, 32, 32), (64, 6, 128, 64)]
ROUNDS = 15
REPEATS = 20  # of a decoding step, which is short


def main() -> None:
    """Print a line for each shape."""
    print(open_runtime(RuntimeConfig(device="cpu")).describe())
    print(f"{'(B, H, T, D)':>18} {'matmul ms':>10} {'sdpa ms':>10} {'sdpa / matmul':>14}")
    for shape in SHAPES:
        q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
        _compare(shape, _training(q, k, v, torch.randn(shape)))
    print(f"\n{'(B, H, S, D)':>18} {'matmul ms':>10} {'sdpa ms':>10} {'sdpa / matmul':>14}   one query each")
    for shape in DECODING:
        batch, n_head, n_key, width = shape
        k, v = (torch.randn(batch, n_head, 2 * n_key, width)[:, :, :n_key] for _ in range(2))  # half of the room
        _compare(shape, _decoding(torch.randn(batch, n_head, 1, width), k, v))


def _compare(shape: tuple[int, ...], measure: Callable[[Callable[..., Tensor]], float]) -> None:
    times: dict[str, list[float]] = {"matmul": [], "sdpa": []}
    for round_ in range(ROUNDS + 3):  # in turn, so that what else the machine does meets both
        for name, attention in (("matmul", matmul_attention), ("sdpa", sdpa_attention)):
            seconds = measure(attention)
            if round_ >= 3:
                times[name].append(seconds)
    matmul, sdpa = (1e3 * statistics.median(times[name]) for name in ("matmul", "sdpa"))
    print(f"{shape!s:>18} {matmul:>10.3f} {sdpa:>10.3f} {sdpa / matmul:>14.2f}")


def _training(q: Tensor, k: Tensor, v: Tensor, upstream: Tensor) -> Callable[[Callable[..., Tensor]], float]:
    def measure(attention: Callable[..., Tensor]) -> float:
        started = time.perf_counter()
        attention(q, k, v).backward(upstream)
        return time.perf_counter() - started

    return measure


def _decoding(q: Tensor, k: Tensor, v: Tensor) -> Callable[[Callable[..., Tensor]], float]:
    @torch.inference_mode()
    def measure(attention: Callable[..., Tensor]) -> float:
        started = time.perf_counter()
        for _ in range(REPEATS):
            attention(q, k, v)
        return (time.perf_counter() - started) / REPEATS

    return measure


if __name__ == "__main__":
    main()
