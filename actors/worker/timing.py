"""How long the device worked on a step."""

from __future__ import annotations

from collections import deque
from time import perf_counter

import torch

from .streams import launching_stream

__all__ = ["Span", "Spans"]

_Marks = tuple[torch.cuda.Event, torch.cuda.Event]


class Spans:
    """Begin spans of a device's work, of the host's clock where there is no GPU.

    Marks are made once and take turns; two threads may use them, one that begins and ends, one that reads.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = launching_stream(device)
        self._free: deque[_Marks] = deque()
        self._last: Span | None = None  # to have ended

    def begin(self) -> Span:
        """Mark where a span begins."""
        marks = None
        if self._stream is not None:
            marks = self._free.popleft() if self._free else (_mark(), _mark())
            marks[0].record(self._stream)
        return Span(marks, self._last)

    def end(self, span: Span) -> None:
        """Mark where it ends."""
        if span.marks is not None:
            span.marks[1].record(self._stream)
        span.stopped = perf_counter()
        self._last = span

    def read(self, span: Span) -> tuple[float, float]:
        """Tell how long a span that has ended lasts, and how long the device had nothing to do before it: seconds.

        Waits for its end.  Once, in the order in which spans ended; the first one has nothing before it.
        """
        after, span.after = span.after, None
        if span.marks is None:
            return span.stopped - span.started, 0.0 if after is None else span.started - after.stopped
        begin, end = span.marks
        end.synchronize()
        lasted = begin.elapsed_time(end) / 1e3
        if after is None or after.marks is None:
            return lasted, 0.0
        gap = after.marks[1].elapsed_time(begin) / 1e3
        self._free.append(after.marks)  # nobody asks for them again
        after.marks = None
        return lasted, gap


class Span:
    """The time between two points of a device's work.

    marks: them, if a GPU has them; started, stopped: when the host was there.  after: the span that had ended before.
    """

    __slots__ = ("after", "marks", "started", "stopped")

    def __init__(self, marks: _Marks | None, after: Span | None) -> None:
        self.marks = marks
        self.after = after
        self.started = self.stopped = perf_counter()


def _mark() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
