"""Waking tasks that wait for news: all whose news came with one step by one callback of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from types import coroutine
from typing import Any

__all__ = ["Sleeper", "Waker"]


class Waker:
    """Wake sleepers of one loop.  A future would cost each a callback of its own, as much again as all it waits for."""

    __slots__ = ("_done", "_due", "loop")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._due: list[Sleeper] = []
        self._done: asyncio.Future[None] = self.loop.create_future()  # what all are told has happened
        self._done.set_result(None)

    def wake(self, sleeper: Sleeper) -> None:
        """Let a sleeper's task go on soon, behind those that were woken before it."""
        if not self._due:
            self.loop.call_soon(self._wake_all)
        self._due.append(sleeper)

    def _wake_all(self) -> None:
        due, self._due = self._due, []
        left, done = iter(due), self._done
        try:
            for sleeper in left:
                callback, sleeper.callback = sleeper.callback, None
                told = done
                if sleeper.instead is not None:
                    told, sleeper.instead = sleeper.instead, None
                sleeper.context.run(callback, told)
        finally:  # a task that ends with KeyboardInterrupt or SystemExit ends this callback too, and no other's sleep
            for sleeper in left:
                self.wake(sleeper)


class Sleeper:
    """Let one task wait until it is woken, again and again, where a future is awaited once.

    To asyncio's tasks it looks like a future: they look at its loop and leave a callback.  What they call back with is
    a future that is done, or one that is cancelled: of these they know the result without a call of Python's.

    sleeps: whether a task waits here that nobody has woken yet.  callback, context: what the task left, for the waker.
    instead: what it is told instead, if its wait was cancelled.
    """

    __slots__ = ("_asyncio_future_blocking", "_loop", "callback", "context", "instead", "sleeps", "waker")

    def __init__(self, waker: Waker) -> None:
        self.waker = waker
        self._loop = waker.loop
        self._asyncio_future_blocking = False
        self.callback: Callable[[Any], object] | None = None
        self.context: Any = None
        self.instead: asyncio.Future[None] | None = None
        self.sleeps = False

    @coroutine  # awaited itself it would be asked for an iterator first, which costs a tenth of a wait
    def sleep(self) -> Generator[Any, None, None]:
        """Wait until woken.  Raises RuntimeError if another task waits here."""
        if self.callback is not None:
            raise RuntimeError("two tasks wait for the same news; let one of them read and hand on")
        self._asyncio_future_blocking = True
        yield self

    def wake(self) -> None:
        """Let the task that sleeps here go on soon."""
        if self.sleeps:
            self.sleeps = False
            self.waker.wake(self)

    # --- what a task asks a future for -----------------------------------------------------------------------------

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context | None = None) -> None:
        self.callback, self.context = callback, context
        self.sleeps = True

    def cancel(self, msg: Any = None) -> bool:
        """Wake the task with CancelledError; False if it is being woken already, and its task sees to that itself."""
        if not self.sleeps:
            return False
        self.instead = self.waker.loop.create_future()
        self.instead.cancel(msg)
        self.wake()
        return True
