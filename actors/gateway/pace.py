"""How often streams write: with many of them live, what the engine says between two beats goes out as one event."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

__all__ = ["Pace"]

_MS_A_STREAM = 1.0  # an event costs about 0.06 ms of CPU: at one a stream and beat, writing takes 6 % of one core
_LONGEST_MS = 50.0  # twenty events a second still read as a flow


class Pace:
    """Give all streams one beat to write by.  One timer serves them all.

    interval_ms: between two beats; 0 is no beat at all; None grows with the streams that are live: none for the first,
    a millisecond for each other, at most 50.
    """

    def __init__(self, interval_ms: float | None = None) -> None:
        self.streams = 0
        self._given_ms = interval_ms
        self._beat: anyio.Event | None = None

    @property
    def interval_ms(self) -> float:
        """The time to the next beat if the last one were now."""
        if self._given_ms is not None:
            return self._given_ms
        return min(_LONGEST_MS, _MS_A_STREAM * max(0, self.streams - 1))

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Count a stream as live."""
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1

    async def rest(self) -> None:
        """Wait for the next beat: between two writes, never before the first or behind the last."""
        if self._beat is None:
            interval_ms = self.interval_ms
            if interval_ms == 0:
                return
            self._beat = anyio.Event()
            asyncio.get_running_loop().call_later(interval_ms / 1000, self._strike, self._beat)
        await self._beat.wait()

    def _strike(self, beat: anyio.Event) -> None:
        self._beat = None
        beat.set()
