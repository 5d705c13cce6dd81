"""One transfer a step from the host to the device, which never waits for the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

__all__ = ["Staging"]


class Staging:
    """Carry a step's arrays to the device, packed as int32 in pinned memory.

    depth: how many buffers take turns.  A buffer is written again `depth` transfers later; should the device not have
    read it by then, `send` waits.  On a CPU the arrays are copied all the same: who made them may write them again.
    """

    def __init__(self, device: torch.device, *, words: int = 1 << 16, depth: int = 4) -> None:
        self.device = device
        self._pinned = device.type == "cuda"
        self._buffers = [self._buffer(words) for _ in range(depth)]
        self._read: list[torch.cuda.Event | None] = [None] * depth
        self._turn = 0

    def send(self, parts: Sequence[np.ndarray], into: Tensor | None = None) -> list[Tensor]:
        """Start the transfer; give the parts as int32 tensors on the device, in order.

        into: int32 on the device, for the parts side by side; new memory if it is not given.  float32 parts travel as
        the words they are: `view` them back.
        """
        lengths = [len(part) for part in parts]
        total = sum(lengths)
        buffer = self._take(total)
        host = buffer.numpy()
        end = 0
        for part, length in zip(parts, lengths, strict=True):
            host[end : end + length] = part.view(np.int32) if part.dtype == np.float32 else part
            end += length
        if into is None:
            into = torch.empty(total, dtype=torch.int32, device=self.device)
        into[:total].copy_(buffer[:total], non_blocking=self._pinned)
        if self._pinned:
            event = self._read[self._turn] = self._read[self._turn] or torch.cuda.Event()
            event.record()
        return list(into[:total].split(lengths))

    def _take(self, words: int) -> Tensor:
        self._turn = (self._turn + 1) % len(self._buffers)
        if (event := self._read[self._turn]) is not None:
            event.synchronize()
        if len(self._buffers[self._turn]) < words:
            self._buffers[self._turn] = self._buffer(words + words // 2)
        return self._buffers[self._turn]

    def _buffer(self, words: int) -> Tensor:
        return torch.empty(words, dtype=torch.int32, pin_memory=self._pinned)
