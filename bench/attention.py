"""The time of torch's attention kernels on this CPU, by context length: `python -m bench.attention`.

Forward and backward of a batch in fp32 and, where the processor has instructions for it, in bf16; then the forward pass
of one query with its keys in a cache, as in decoding, in fp32. They take turns in one run, on one thread; times are of
the processor, without waiting for others. The ratio is where the choice in gpt_cli/model/attention.py comes from.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpt_cli.config import RuntimeConfig
from gpt_cli.runtime.device import setup_runtime

SHAPES = [(12, 4, 64, 32), (16, 4, 128, 32), (16, 4, 192, 32), (8, 4, 256, 64), (64, 6, 256, 64), (4, 8, 1024, 64)]
DECODING = [(1, 4, 32, 32), (1, 6, 128, 64), (1, 12, 1024, 64), (64, 4, 32, 32), (64, 6, 128, 64)]
ROUNDS = 15
REPEATS = 20  # of a decoding step, which is short


def main() -> None:
    """Print a line for each shape."""
    runtime = setup_runtime(RuntimeConfig(device="cpu", threads=1))
    print(runtime.describe())
    for dtype in dict.fromkeys([torch.float32, runtime.matmul_dtype]):
        print(f"\n{'(B, H, T, D)':>18} {'plain ms':>10} {'flash ms':>10} {'flash / plain':>14}   {dtype}")
        for shape in SHAPES:
            q, k, v = (torch.randn(shape, requires_grad=True, dtype=dtype) for _ in range(3))
            _compare(shape, _training(q, k, v, torch.randn(shape, dtype=dtype)))
    print(f"\n{'(B, H, S, D)':>18} {'plain ms':>10} {'flash ms':>10} {'flash / plain':>14}   one query each")
    for shape in DECODING:
        batch, n_head, n_key, width = shape
        k, v = (torch.randn(batch, n_head, 2 * n_key, width)[:, :, :n_key] for _ in range(2))  # half of the room
        _compare(shape, _decoding(torch.randn(batch, n_head, 1, width), k, v))


def _compare(shape: tuple[int, ...], measure: Callable[[], float]) -> None:
    times: dict[SDPBackend, list[float]] = {SDPBackend.MATH: [], SDPBackend.FLASH_ATTENTION: []}
    for round_ in range(ROUNDS + 3):  # in turn, so that what else the machine does meets both
        for kernel, seconds in times.items():
            with sdpa_kernel(kernel):
                took = measure()
            if round_ >= 3:
                seconds.append(took)
    plain, flash = (1e3 * statistics.median(seconds) for seconds in times.values())
    print(f"{shape!s:>18} {plain:>10.3f} {flash:>10.3f} {flash / plain:>14.2f}")


def _training(q: Tensor, k: Tensor, v: Tensor, upstream: Tensor) -> Callable[[], float]:
    def measure() -> float:
        started = time.process_time()
        F.scaled_dot_product_attention(q, k, v, is_causal=True).backward(upstream)
        return time.process_time() - started

    return measure


def _decoding(q: Tensor, k: Tensor, v: Tensor) -> Callable[[], float]:
    @torch.inference_mode()
    def measure() -> float:
        started = time.process_time()
        for _ in range(REPEATS):
            F.scaled_dot_product_attention(q, k, v)
        return (time.process_time() - started) / REPEATS

    return measure


if __name__ == "__main__":
    main()
