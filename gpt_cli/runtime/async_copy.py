"""Asynchronous copies between host and device: started now, read later, without waiting for work queued in between."""

from typing import Any

import torch
from torch import Tensor


class AsyncHostCopy:
    """The numbers of a tensor, for later.

    A device does things in the order in which they were asked. Reading a number directly waits for everything that
    was asked until then, also for the step that has just begun; a copy asked for before that step is there before it.
    """

    def __init__(self, numbers: Tensor) -> None:
        """`numbers` is of any shape, on any device; nothing is waited for where it is CUDA."""
        self._arrived: torch.cuda.Event | None = None
        if numbers.is_cuda:
            pinned = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)  # or the copy would wait
            self._numbers = pinned.copy_(numbers.detach(), non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record(torch.cuda.current_stream(numbers.device))
        else:
            self._numbers = numbers.detach().clone()

    def read(self) -> list[Any]:
        """The numbers as they were when this was made, nested as the tensor is; waits until they have arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._numbers.tolist()


def to_device_async(numbers: Tensor, device: torch.device) -> Tensor:
    """`numbers`, on the host, on `device`, without waiting for it: from memory that a GPU reads by itself."""
    if device.type == "cuda":
        numbers = numbers.contiguous().pin_memory()  # or the copy would wait for what was asked before
    return numbers.to(device, non_blocking=True)
