"""Many programs side by side, in no task of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from ..actors.errors import Aborted
from .bell import Bell
from .house import HOUSE
from .performer import Call, play
from .staged import StagedStream
from .stream import Stream

__all__ = ["Crowd"]


class Crowd:
    """Run calls, `at_once` at a time; `ended` is told each one's place, stream, and error if it failed."""

    def __init__(self, at_once: int, ended: Callable[[int, Stream, BaseException | None], None]) -> None:
        self._at_once = at_once
        self._ended = ended
        self._staged: dict[int, StagedStream] = {}  # plain bodies, by their places
        self._tasks: dict[int, asyncio.Task[object]] = {}  # async ones
        self._bell = Bell()
        self._cancelled = False
        self.bodies = HOUSE.bodies(asyncio.get_running_loop())

    async def admit(self, index: int, call: Call) -> None:
        """Start one more, once there is room for it."""
        while len(self._staged) + len(self._tasks) >= self._at_once:
            await self._bell.wait()
        if call.asynchronous:
            stream = call.open()
            self._tasks[index] = task = stream.loop.create_task(play(call, stream))
            task.add_done_callback(partial(self._played, index, stream))
            return
        staged = StagedStream(call, index, self)
        try:
            await call.backend.programs.begin(staged)
        except Exception as error:  # it never came to life
            staged.fail(error)
            self._ended(index, staged, error)
        else:
            self._staged[index] = staged

    async def gone(self) -> None:
        """Wait until the last has ended."""
        while self._staged or self._tasks:
            await self._bell.wait()

    def cancel(self) -> None:
        """End all of them now; `ended` is told of none of them."""
        self._cancelled = True
        for staged in list(self._staged.values()):
            staged.call_off(Aborted(f"{staged.name} was cancelled"))
        for task in self._tasks.values():
            task.cancel()

    def leave(self, staged: StagedStream) -> None:
        """Take leave of a stream of which nothing is left; told by itself."""
        del self._staged[staged.index]
        self._finish(staged.index, staged, staged.failure)

    def _played(self, index: int, stream: Stream, task: asyncio.Task[object]) -> None:
        del self._tasks[index]
        self._finish(index, stream, (None if task.cancelled() else task.exception()) or stream.error)

    def _finish(self, index: int, stream: Stream, error: BaseException | None) -> None:
        stream.observed = True
        self._bell.ring()
        if not self._cancelled:
            self._ended(index, stream, error)
