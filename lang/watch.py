"""Waiting for any of many bells."""

from __future__ import annotations

import asyncio
from functools import partial

from .bell import Bell

__all__ = ["Watch"]


class Watch:
    """Tell which of many bells have rung since one looked; a thousand cost no more than the one that rings.

    Everything here belongs to the bells' loop; one task at a time may wait.
    """

    __slots__ = ("_rung", "_waiter")

    def __init__(self) -> None:
        self._rung: list[int] = []
        self._waiter: asyncio.Future[None] | None = None

    def add(self, key: int, bell: Bell) -> None:
        """Look out for the next ring of a bell, under a number."""
        bell.wait().add_done_callback(partial(self._note, key))

    async def rung(self) -> list[int]:
        """Wait until something has rung, and give the numbers; each is to be added again."""
        while not self._rung:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        rung, self._rung = self._rung, []
        return rung

    def _note(self, key: int, _: asyncio.Future[None]) -> None:
        self._rung.append(key)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
