"""From mapped files to a device."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Upload"]


class Upload:
    """Copy tensors to a device through two buffers of pinned memory: one is filled while the other travels.

    A device reads pinned memory several times as fast as a mapped file's, which it cannot address.  Filling a buffer
    takes as many threads as torch has, so that pages are read from the disk side by side.
    """

    def __init__(self, device: torch.device, buffer_bytes: int = 32 << 20) -> None:
        self._on_device = device.type == "cuda"
        self._device = device
        self._buffers = [torch.empty(buffer_bytes, dtype=torch.uint8, pin_memory=self._on_device) for _ in range(2)]
        self._sent = [torch.cuda.Event() for _ in range(2)] if self._on_device else []

    def send(self, tensor: Tensor, place: Tensor) -> None:
        """Copy a tensor to a place of its shape and dtype, both contiguous; what is launched later finds it there."""
        pieces = self._buffers[0].numel() // tensor.itemsize
        for number, (piece, target) in enumerate(
            zip(tensor.view(-1).split(pieces), place.view(-1).split(pieces), strict=True)
        ):
            half = number % 2
            if self._on_device:
                self._sent[half].synchronize()
            buffer = self._buffers[half].view(tensor.dtype)[: len(piece)]
            buffer.copy_(piece)
            target.copy_(buffer, non_blocking=True)
            if self._on_device:
                self._sent[half].record(torch.cuda.current_stream(self._device))
