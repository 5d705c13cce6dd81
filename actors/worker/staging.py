"""One transfer a step from the host to the device, which never waits for the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .streams import launching_stream

__all__ = ["Staging"]


class Staging:
    """Carry a step's arrays to the device, packed as int32 in pinned memory.

    depth: how many buffers take turns.  A buffer is written again `depth` transfers later; should the device not have
    read it by then, `room` waits.  On a CPU the arrays are copied all the same: who made them may write them again.
    Transfers are behind what this thread has launched on the stream that was current when this was made.
    """

    def __init__(self, device: torch.device, *, words: int = 1 << 16, depth: int = 4) -> None:
        self.device = device
        self._stream = launching_stream(device)
        self._buffers = [self._buffer(words) for _ in range(depth)]
        self._hosts = [buffer.numpy() for buffer in self._buffers]
        self._read = [None if self._stream is None else torch.cuda.Event() for _ in range(depth)]
        self._turn = 0

    def room(self, words: int) -> np.ndarray:
        """Give room for the next transfer, int32 [words], to be filled before `go`."""
        self._turn = turn = (self._turn + 1) % len(self._buffers)
        if (event := self._read[turn]) is not None:
            event.synchronize()
        if len(self._hosts[turn]) < words:
            self._buffers[turn] = self._buffer(words + words // 2)
            self._hosts[turn] = self._buffers[turn].numpy()
        return self._hosts[turn][:words]

    def go(self, words: int, into: Tensor) -> None:
        """Start the transfer of so many words of what `room` gave last, to the front of `into`, int32 on the device."""
        buffer, event = self._buffers[self._turn], self._read[self._turn]
        (into if len(into) == words else into[:words]).copy_(buffer[:words], non_blocking=True)
        if event is not None:
            event.record(self._stream)

    def carry(self, words: int) -> Tensor:
        """Start the transfer of so many words of what `room` gave last; give them on the device, int32."""
        into = torch.empty(words, dtype=torch.int32, device=self.device)
        self.go(words, into)
        return into

    def send(self, parts: Sequence[np.ndarray]) -> list[Tensor]:
        """Start the transfer of some arrays; give them as int32 tensors on the device, in order.

        float32 parts travel as the words they are: `view` them back.
        """
        lengths = [len(part) for part in parts]
        total = sum(lengths)
        host = self.room(total)
        end = 0
        for part, length in zip(parts, lengths, strict=True):
            host[end : end + length] = part.view(np.int32) if part.dtype == np.float32 else part
            end += length
        return list(self.carry(total).split(lengths))

    def _buffer(self, words: int) -> Tensor:
        return torch.empty(words, dtype=torch.int32, pin_memory=self._stream is not None)
