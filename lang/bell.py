"""Waking those who wait for something to change."""

from __future__ import annotations

import asyncio

__all__ = ["Bell"]


class Bell:
    """Let tasks of one loop wait until it is rung; they look again for themselves whether what they want is there.

    Costs nothing while nobody waits, which is nearly always.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] | None = None

    async def wait(self) -> None:
        future = asyncio.get_running_loop().create_future()
        if self._waiting is None:
            self._waiting = []
        self._waiting.append(future)
        try:
            await future
        finally:
            if self._waiting and future in self._waiting:  # cancelled: it was not rung
                self._waiting.remove(future)

    def ring(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting:
            for future in waiting:
                if not future.done():
                    future.set_result(None)
