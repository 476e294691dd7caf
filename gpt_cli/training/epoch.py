"""The order of an epoch, worked out on the device: `order.window_start` of all its windows at once.

The same integers, bit for bit, out of a fixed number of tensor operations: nothing is asked of the device, and
nothing is sent but the operations. It is done once an epoch, of which each step then reads its slice.

Shapes: W windows of the epoch, D >= W numbers that the Feistel network permutes.
"""

from functools import lru_cache

import torch
from torch import Tensor

from gpt_cli.order import epoch_order, half_bits, round_keys, windows_per_epoch

_MOST = 2**22  # numbers to permute: 32 MB, and a few times that for a moment


def fits_on_device(tokens: int, context_length: int, batch_size: int) -> bool:
    """Whether the order of an epoch is small enough to be kept whole, and no batch meets more than two of them."""
    windows = windows_per_epoch(tokens, context_length)
    return batch_size <= windows and 4 ** half_bits(windows) <= _MOST


@lru_cache(maxsize=2)  # a batch may end an epoch and begin the next
def epoch_starts(epoch: int, tokens: int, context_length: int, seed: int, device: torch.device) -> Tensor:
    """(W,) int64 on `device`: where the windows of `epoch` start in the text, in the order of their visits."""
    windows, phase, key = epoch_order(epoch, tokens, context_length, seed)
    return permutation(windows, key, device) * context_length + phase


def permutation(n: int, key: int, device: torch.device) -> Tensor:
    """(n,) int64 on `device`: `order.permuted` of each number below n.

    The network permutes all D numbers below a power of four. A number that leaves range(n) walks on until it is back;
    every round doubles how far each has walked, so that after log2(D) rounds all have arrived.
    """
    half = half_bits(n)
    walked = _feistel(torch.arange(4**half, device=device), half, round_keys(key))  # (D,)
    for _ in range(2 * half):
        walked = torch.where(walked < n, walked, walked[walked])
    return walked[:n].clone()  # not D of them kept


def _feistel(value: Tensor, half: int, keys: tuple[int, ...]) -> Tensor:
    mask = (1 << half) - 1
    left, right = value >> half, value & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return left << half | right


def _mix(value: Tensor) -> Tensor:
    """`order._mix` of 64 bits that torch takes for signed: products wrap around, shifts must not bring the sign in."""
    value = (value ^ _shifted(value, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    value = (value ^ _shifted(value, 27)) * (0x94D049BB133111EB - 2**64)
    return value ^ _shifted(value, 31)


def _shifted(value: Tensor, bits: int) -> Tensor:
    return value >> bits & (1 << 64 - bits) - 1
