"""The ids of a split as training and evaluation read them: two bytes each, on the device where they fit.

Shapes: N ids of the split, W windows, L ids in each.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpt_cli.runtime.async_copy import to_device_async
from gpt_cli.runtime.device import device_memory

DEVICE_SHARE = 0.1
"""Share of a device's memory that a split may occupy; a larger one stays on the host, and its windows are copied."""


class DeviceTokens:
    """(N,) ids, from which windows are cut where they lie. Both places return the same windows."""

    def __init__(
        self, ids: npt.NDArray[np.unsignedinteger], device: torch.device, *, resident: bool | None = None
    ) -> None:
        """`ids` is uint16 or uint32. `resident`: kept on `device`; None: if it fits in DEVICE_SHARE of its memory."""
        if resident is None:
            resident = ids.nbytes <= DEVICE_SHARE * device_memory(device)
        # Not every device indexes unsigned integers: their bits are kept as signed ones, see `_widen`.
        signed = torch.from_numpy(ids.view(np.int16 if ids.itemsize == 2 else np.int32))
        self.device = device
        self.ids = signed.to(device) if resident else signed

    def __len__(self) -> int:
        return len(self.ids)

    def windows(self, starts: Sequence[int], length: int) -> Tensor:
        """(W, L) int64 on the device: the `length` ids from each of `starts` on. No device is waited for."""
        first = to_device_async(list(starts), self.ids.device)
        return self._widen(self.ids[first[:, None] + torch.arange(length, device=self.ids.device)])

    def span(self, start: int, stop: int) -> Tensor:
        """(stop - start,) int64 on the device: the ids in that range."""
        return self._widen(self.ids[start:stop])

    def _widen(self, ids: Tensor) -> Tensor:
        if ids.device.type != self.device.type:  # "cuda" is not equal to "cuda:0"
            if self.device.type == "cuda":
                ids = ids.contiguous().pin_memory()  # or the copy would wait for the step before
            ids = ids.to(self.device, non_blocking=True)
        return ids.long() & 0xFFFF if ids.dtype == torch.int16 else ids.long()
