"""From one loop or thread into another, and back with the outcome."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

import anyio

from ..actors.errors import Aborted
from .body import current_body

__all__ = ["Crossing", "await_in", "running_loop", "wait_in"]

R = TypeVar("R")

_LOG = logging.getLogger("callboard.lang")

LOOK_S = 1.0
"""How often a thread that waits looks whether the loop it waits for still runs."""
BLOCKED = 5
"""After how many looks at which nothing had begun it is said that the loop is blocked."""


class Crossing(Generic[R]):
    """A coroutine in another loop, for somebody who waits here; whoever stops waiting cancels it and sees it end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, make: Callable[[], Coroutine[Any, Any, R]]) -> None:
        self._loop = loop
        self._make = make
        self._task: asyncio.Task[R] | None = None
        self._cancelled = False
        self._done = threading.Event()
        self._wake: Callable[[], object] = lambda: None

    def block(self) -> R:
        """Wait in a thread that has nothing else to do."""
        self._begin()
        try:
            runs = self._wait_while_it_runs()
        except BaseException:  # KeyboardInterrupt comes here
            self._cancel()
            self._wait_while_it_runs()
            raise
        if not runs:
            raise RuntimeError(
                "the loop in which the backend lives does not run, so nobody does the work; let it run in another "
                "thread, or await in it"
            )
        return self._outcome()

    def _wait_while_it_runs(self) -> bool:
        """Wait for the end; False if the loop has stopped, and not just between two tasks."""
        stopped, looks = 0, 0
        while not self._done.wait(LOOK_S):
            stopped = 0 if self._loop.is_running() else stopped + 1
            if stopped == 2:
                return self._done.is_set()
            looks += 1
            if looks == BLOCKED and self._task is None:
                _LOG.warning(
                    "the loop in which the backend lives is blocked, and a thread waits for it: a body that waits for "
                    "a thread or sleeps must be `async def`, or let a thread do its waiting"
                )
        return True

    async def wait(self) -> R:
        """Wait in a loop of another thread."""
        here = asyncio.get_running_loop()
        done = asyncio.Event()
        self._wake = lambda: _call(here, done.set)
        self._begin()
        try:
            await done.wait()
        except asyncio.CancelledError:
            self._cancel()
            with anyio.CancelScope(shield=True):
                await done.wait()
            raise
        return self._outcome()

    def _begin(self) -> None:
        if not _call(self._loop, self._run):
            raise RuntimeError("the loop in which the backend lives is closed; enter the backend again")

    def _run(self) -> None:
        self._task = self._loop.create_task(self._make())
        self._task.add_done_callback(self._end)
        if self._cancelled:
            self._task.cancel()

    def _end(self, _: asyncio.Task[R]) -> None:
        self._done.set()
        self._wake()

    def _cancel(self) -> None:
        self._cancelled = True
        _call(self._loop, lambda: self._task is not None and self._task.cancel())

    def _outcome(self) -> R:
        assert self._task is not None
        if self._task.cancelled():
            raise Aborted("it was cancelled in the loop in which the backend lives, or that has ended")
        return self._task.result()


async def await_in(loop: asyncio.AbstractEventLoop, make: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Await a coroutine in the loop it belongs to, which may be this one."""
    if asyncio.get_running_loop() is loop:
        return await make()
    return await Crossing(loop, make).wait()


def wait_in(loop: asyncio.AbstractEventLoop, make: Callable[[], Coroutine[Any, Any, R]], instead: str) -> R:
    """Wait for a coroutine from synchronous code, wherever that runs; `instead` tells what to write in async code."""
    body = current_body()
    if body is not None:
        return body.wait(await_in(loop, make))
    if running_loop() is loop:
        raise RuntimeError(f"this would wait in the very loop that must do the work; write {instead}")
    return Crossing(loop, make).block()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Give the loop that runs in this thread, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[], Any]) -> bool:
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:  # it is closed
        return False
    return True
