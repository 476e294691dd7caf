"""The ids of a split, two or four bytes each, on the device where they fit.

Shapes: N ids of the split, W windows, L ids in each.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpt_cli.corpus.tokens import MappedTokens
from gpt_cli.runtime.async_copy import to_device_async
from gpt_cli.runtime.device import device_memory

DEVICE_SHARE = 0.1
"""Share of a device's memory that a split may occupy; a larger one stays on the host, and its windows are copied."""


class DeviceTokens:
    """(N,) ids on the device, on the host or on disk, and windows of them on the device."""

    def __init__(
        self,
        ids: npt.NDArray[np.unsignedinteger] | MappedTokens,
        device: torch.device,
        *,
        resident: bool | None = None,
    ) -> None:
        """`ids` is uint16 or uint32. `resident`: stored on `device`; None: if it fits in DEVICE_SHARE of its memory."""
        on_disk = isinstance(ids, MappedTokens)
        if resident is None:
            resident = ids.nbytes <= DEVICE_SHARE * device_memory(device) and not (on_disk and device.type == "cpu")
        self.device = device
        self.mapped = ids if isinstance(ids, MappedTokens) and not resident else None
        self.ids = _signed(ids[:0] if self.mapped else ids[:]).to(device if resident else "cpu")

    def __len__(self) -> int:
        return len(self.ids) if self.mapped is None else len(self.mapped)

    def windows(self, starts: Sequence[int], length: int) -> Tensor:
        """(W, L) int64 on the device: the `length` ids from each of `starts` on, without a sync."""
        if self.mapped is not None:
            return self._widen(_signed(self.mapped.windows(starts, length)))
        first = to_device_async(torch.tensor(starts), self.ids.device)
        return self._widen(self.ids[first[:, None] + torch.arange(length, device=self.ids.device)])

    def span(self, start: int, stop: int) -> Tensor:
        """(stop - start,) int64 on the device: the ids in that range."""
        return self._widen(self.ids[start:stop] if self.mapped is None else _signed(self.mapped[start:stop]))

    def _widen(self, ids: Tensor) -> Tensor:
        if ids.device.type != self.device.type:  # "cuda" is not equal to "cuda:0"
            ids = to_device_async(ids, self.device)
        return ids.long() & 0xFFFF if ids.dtype == torch.int16 else ids.long()


def _signed(ids: npt.NDArray[np.unsignedinteger]) -> Tensor:
    """The same bits as signed integers, as not every device indexes unsigned ones; see `DeviceTokens._widen`."""
    return torch.from_numpy(ids.view(np.int16 if ids.itemsize == 2 else np.int32))
