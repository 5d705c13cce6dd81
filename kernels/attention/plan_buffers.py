"""Pinned memory for what flashinfer plans on the host, so that it may plan again before the device has read it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["PlanBuffers"]


class PlanBuffers:
    """Lend pinned buffers in turn.

    A wrapper of flashinfer copies its plan to the device from one pinned buffer, and would write the next step's plan
    over it while that copy still waits behind a step on the device.  A buffer's turn comes again `depth` plans later;
    should the device not have read it by then, lending waits.
    """

    def __init__(self, size_bytes: int, depth: int) -> None:
        self._buffers = [torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True) for _ in range(depth)]
        self._read = [torch.cuda.Event() for _ in range(depth)]
        self._turn = 0

    @contextmanager
    def lent_to(self, wrapper: Any) -> Iterator[None]:
        """Let a wrapper plan once, on the current stream, from the next buffer."""
        self._turn = (self._turn + 1) % len(self._buffers)
        self._read[self._turn].synchronize()  # at once if it was never recorded
        # Its `reset_workspace_buffer` would allocate a buffer of its own, and nobody knew when that may be written.
        wrapper._pin_memory_int_workspace_buffer = self._buffers[self._turn]  # noqa: SLF001
        yield
        self._read[self._turn].record()
