"""The way back: results travel to pinned memory on a stream of their own, while the next step already runs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

__all__ = ["Arrival", "Returns"]


class Arrival:
    """A tensor on its way to the host.  landed: when it is there; None if it is already."""

    __slots__ = ("_host", "landed")

    def __init__(self, host: Tensor, landed: torch.cuda.Event | None) -> None:
        self._host = host
        self.landed = landed

    def wait(self) -> np.ndarray:
        """Wait until it is there.  Other threads run meanwhile."""
        if self.landed is not None:
            self.landed.synchronize()
        return self._host.numpy()


class Returns:
    """Bring tensors to the host, in order.  On a CPU they are there."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def bring(self, tensor: Tensor) -> Arrival:
        """Start a transfer behind what has been launched so far.

        The tensor must not be written again by what is launched later; its memory may be let go of.
        """
        if self._stream is None:
            return Arrival(tensor, None)
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(self._stream):
            host.copy_(tensor, non_blocking=True)
            tensor.record_stream(self._stream)
            landed = torch.cuda.Event()
            landed.record()
        return Arrival(host, landed)
