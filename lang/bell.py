"""Waking those who wait for something to change."""

from __future__ import annotations

import asyncio

__all__ = ["Bell"]

CROWD = 64


class Bell:
    """Let tasks of one loop wait until it is rung; they look again for themselves whether what they want is there.

    Costs nothing while nobody waits, which is nearly always.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] | None = None

    def wait(self) -> asyncio.Future[None]:
        """Give what is done when the bell is rung next; to be awaited at once."""
        future = asyncio.get_running_loop().create_future()
        if self._waiting is None:
            self._waiting = [future]
        else:
            if len(self._waiting) >= CROWD:  # those who gave up waiting are still here
                self._waiting = [other for other in self._waiting if not other.done()]
            self._waiting.append(future)
        return future

    def ring(self) -> None:
        """Wake everybody who waits."""
        waiting = self._waiting
        if waiting is not None:
            self._waiting = None
            for future in waiting:
                if not future.done():
                    future.set_result(None)
