"""Plain functions on the event loop: a body that waits is set aside, and the loop goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import msgspec
from greenlet import GreenletExit, getcurrent, greenlet

__all__ = ["Bodies", "Body", "current_body"]

R = TypeVar("R")

IDLE = 64
"""How many greenlets that have come to their end are kept for the next body."""


class Body(greenlet):
    """A plain function that runs on the loop, in the task that performs it, and may wait without a thread."""

    def __init__(self) -> None:
        super().__init__(self._serve)

    def wait(self, awaitable: Awaitable[R]) -> R:
        """Wait for anything, from inside the function: the task that performs it does the waiting."""
        assert self.parent is not None
        return self.parent.switch(awaitable)

    def _serve(self, functions: list[Callable[[], Any]]) -> None:
        """Run one function after the other, handing what came of each to the task that performs it.

        functions: the one to run.  It is taken out of the list, which stays alive as long as this does.
        """
        assert self.parent is not None
        while True:
            function = functions.pop()
            try:
                end = _End(function())
            except GreenletExit:  # thrown into a greenlet nobody will go on with
                raise
            except BaseException as error:
                end = _End(None, error)
            del function
            functions = self.parent.switch(end)
            del end


class Bodies:
    """Perform plain functions in one loop; a new greenlet costs some page faults, so a few are used again."""

    __slots__ = ("__weakref__", "_idle")

    def __init__(self) -> None:
        self._idle: list[Body] = []

    async def perform(self, function: Callable[[], R], before_waiting: Callable[[], None] | None = None) -> R:
        """Run a plain function to its end, awaiting for it what it waits for.

        A cancellation is raised where the function waits.  before_waiting: called once, if it does wait.
        """
        body = self._idle.pop() if self._idle else Body()
        body.gr_context = getcurrent().gr_context  # it sees, and sets, the context variables of this task
        outcome = body.switch([function])
        if before_waiting is not None and type(outcome) is not _End:
            before_waiting()
        while type(outcome) is not _End:
            try:
                value = await cast("Awaitable[Any]", outcome)
            except BaseException as error:
                outcome = body.throw(error)
            else:
                outcome = body.switch(value)
        body.gr_context = None
        if len(self._idle) < IDLE:
            self._idle.append(body)
        return outcome.take()


class _End(msgspec.Struct, eq=False):
    """How a function ended."""

    value: Any = None
    error: BaseException | None = None

    def take(self) -> Any:
        """Give what came of it, or raise its error; this, which an idle body holds on to, then holds neither."""
        value, error = self.value, self.error
        self.value = self.error = None
        if error is None:
            return value
        try:
            raise error
        finally:
            del error  # a frame that its own traceback refers to


def current_body() -> Body | None:
    """Give the body whose code is running here, if it is one's."""
    current = getcurrent()
    return current if isinstance(current, Body) else None
