"""How many restarts are too many."""

from __future__ import annotations

from collections import deque

__all__ = ["Intensity"]


class Intensity:
    """Allow at most `restarts` in any `within` seconds."""

    __slots__ = ("_times", "restarts", "within")

    def __init__(self, restarts: int, within: float) -> None:
        if restarts < 0:
            raise ValueError(f"restarts is {restarts}; it must be 0 or more")
        if not within > 0:
            raise ValueError(f"within is {within}; it must be more than 0 seconds")
        self.restarts = restarts
        self.within = within
        self._times: deque[float] = deque()

    def allow(self, now: float) -> bool:
        """Count one restart at `now`, in seconds; False if it is one too many."""
        times = self._times
        while times and times[0] <= now - self.within:
            times.popleft()
        if len(times) >= self.restarts:
            return False
        times.append(now)
        return True

    def reset(self) -> None:
        """Forget every restart so far."""
        self._times.clear()
