"""Plain functions on the event loop: a body that waits is set aside, and the loop goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from greenlet import getcurrent, greenlet

__all__ = ["Body", "current_body", "perform"]

R = TypeVar("R")


class Body(greenlet):
    """A plain function that runs on the loop, in the task that awaits `perform`, and may wait without a thread."""

    def wait(self, awaitable: Awaitable[R]) -> R:
        """Wait for anything, from inside the function: the task that performs it does the waiting."""
        assert self.parent is not None
        return self.parent.switch(awaitable)


def current_body() -> Body | None:
    """Give the body whose code is running here, if it is one's."""
    current = getcurrent()
    return current if isinstance(current, Body) else None


async def perform(function: Callable[..., R], *arguments: Any, **keywords: Any) -> R:
    """Run a plain function to its end, awaiting for it what it waits for; a cancellation is raised where it waits."""
    body = Body(function)
    body.gr_context = getcurrent().gr_context  # it sees, and sets, the context variables of this task
    outcome = body.switch(*arguments, **keywords)
    while not body.dead:
        try:
            value = await cast("Awaitable[Any]", outcome)
        except BaseException as error:
            outcome = body.throw(error)
        else:
            outcome = body.switch(value)
    return outcome
