"""Capture CUDA graphs that share one pool of memory, and count what they take."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch

__all__ = ["GraphMemory"]

Outputs = TypeVar("Outputs")

# Torch allows for one capture at a time in a process, and workers of several devices may be in one.
_ONE_AT_A_TIME = threading.Lock()


class GraphMemory:
    """The pool of graphs that are never replayed at the same time.

    size_bytes: the device memory that captures have taken; what a graph had that was dropped stays the pool's.
    """

    def __init__(self, device: torch.device) -> None:
        self.size_bytes = 0
        self._device = device
        self._pool: Any = None  # as torch names it
        self._stream: torch.cuda.Stream | None = None  # torch's own for captures is of the device that came first

    def capture(self, run: Callable[[], Outputs]) -> tuple[torch.cuda.CUDAGraph, Outputs]:
        """Capture what `run` launches; other threads may use the device meanwhile."""
        graph = torch.cuda.CUDAGraph()
        self._stream = self._stream or torch.cuda.Stream(self._device)
        with _ONE_AT_A_TIME:
            free = torch.cuda.mem_get_info(self._device)[0]
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                outputs = run()
        self._pool = self._pool or graph.pool()
        self.size_bytes += max(0, free - torch.cuda.mem_get_info(self._device)[0])
        return graph, outputs
