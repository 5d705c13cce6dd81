"""The way back: results travel to pinned memory on a stream of their own, while the next step already runs."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .streams import launching_stream

__all__ = ["Arrival", "Returns"]

_LEAST_WORDS = 1 << 12
_KEPT = 8  # buffers that wait for their next turn


class _Landing(NamedTuple):
    """Pinned int32 memory, and when what was last sent there has landed."""

    host: Tensor
    words: np.ndarray
    landed: torch.cuda.Event


class Arrival:
    """A tensor on its way to the host.  landed: when it is there; None if it is already."""

    __slots__ = ("_free", "_landing", "_tensor")

    def __init__(self, tensor: Tensor, landing: _Landing | None = None, free: deque[_Landing] | None = None) -> None:
        self._tensor = tensor  # lives until its copy has been read
        self._landing = landing
        self._free = free

    @property
    def landed(self) -> torch.cuda.Event | None:
        return None if self._landing is None else self._landing.landed

    def wait(self) -> np.ndarray:
        """Wait until it is there, and take it; once.  Other threads run meanwhile."""
        if self._landing is None:
            return self._tensor.numpy()
        self._landing.landed.synchronize()
        found = self._landing.words[: len(self._tensor)].copy()
        if self._free is not None and len(self._free) < _KEPT:
            self._free.append(self._landing)
        self._landing = self._free = None
        return found


class Returns:
    """Bring tensors to the host, in order.  On a CPU they are there.

    Behind what has been launched on the stream that was current when this was made.
    """

    def __init__(self, device: torch.device) -> None:
        self._launching = launching_stream(device)
        self._free: deque[_Landing] = deque()  # used from the threads that send and that wait
        if self._launching is not None:
            self._stream = torch.cuda.Stream(device)
            self._reached = torch.cuda.Event()

    def bring(self, tensor: Tensor) -> Arrival:
        """Start the transfer of int32 words, [n].

        The tensor must not be written again by what is launched later.
        """
        if self._launching is None:
            return Arrival(tensor)
        landing = self._landing(len(tensor))
        self._reached.record(self._launching)
        self._reached.wait(self._stream)
        torch.cuda.set_stream(self._stream)
        try:
            landing.host[: len(tensor)].copy_(tensor, non_blocking=True)
        finally:
            torch.cuda.set_stream(self._launching)
        landing.landed.record(self._stream)
        return Arrival(tensor, landing, self._free)

    def _landing(self, words: int) -> _Landing:
        """Take memory that is free, or more."""
        found = self._free.popleft() if self._free else None
        if found is not None and len(found.words) >= words:
            return found
        host = torch.empty(max(words, _LEAST_WORDS), dtype=torch.int32, pin_memory=True)
        return _Landing(host, host.numpy(), torch.cuda.Event())
