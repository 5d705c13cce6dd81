"""How long the device worked on a step."""

from __future__ import annotations

from time import perf_counter

import torch

__all__ = ["Span"]


class Span:
    """The time between two points of a device's work; of the host's clock where there is no GPU.

    Making it marks the first point.  after: the span before this one on the same device, for the gap between them.
    """

    __slots__ = ("_after", "_begin", "_end", "_started", "_stopped")

    def __init__(self, device: torch.device, after: Span | None = None) -> None:
        self._after = after
        self._begin: torch.cuda.Event | None = None
        self._end: torch.cuda.Event | None = None
        self._started = self._stopped = perf_counter()
        if device.type == "cuda":
            self._begin, self._end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self._begin.record()

    def end(self) -> None:
        """Mark the second point."""
        if self._end is not None:
            self._end.record()
        self._stopped = perf_counter()

    def seconds(self) -> float:
        """Tell the time between the points; waits for the second one."""
        if self._begin is None or self._end is None:
            return self._stopped - self._started
        self._end.synchronize()
        return self._begin.elapsed_time(self._end) / 1e3

    def gap(self) -> float:
        """Tell how long the device had nothing to do before this span; after `seconds`, once.  0 for the first."""
        after, self._after = self._after, None
        return 0.0 if after is None else after.until(self._begin, self._started)

    def until(self, begin: torch.cuda.Event | None, started: float) -> float:
        """Tell the time from this span's second point to a later event, or to `started` where there is no GPU."""
        if self._end is None or begin is None:
            return started - self._stopped
        return self._end.elapsed_time(begin) / 1e3
