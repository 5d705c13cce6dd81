"""A task in a supervisor's block that takes no messages: nobody writes to it, and it lives once."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from .statistics import Statistics

if TYPE_CHECKING:
    from .child import Restart
    from .supervisor import Supervisor

__all__ = ["Job"]


class Job(ABC):
    """Be one task in a supervisor's block, with no mailbox, no address and no restart: it costs little but its task.

    Its supervisor ends it as it ends a temporary actor, in the same order: told to stop, it comes to its end behind
    the work at hand, and is interrupted once the grace has passed.  One that swallows that is interrupted again every
    `cleanup` seconds.
    """

    __slots__ = ("__weakref__", "_timer", "name", "stopping", "supervisor", "task")

    restart: Restart = "temporary"
    starting = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.supervisor: Supervisor | None = None  # from its beginning to its end
        self.task: asyncio.Task[None] | None = None  # likewise
        self.stopping = False  # it is to end behind the work at hand
        self._timer: asyncio.TimerHandle | None = None

    @abstractmethod
    async def run(self) -> None:
        """Do the work. Whatever happens, the last thing it does is `leave`; what it raises asyncio logs."""

    @abstractmethod
    def look(self) -> None:
        """Look whether it is `stopping`, if it waits for more to do."""

    @abstractmethod
    def interrupt(self) -> None:
        """Cancel the work at hand, but not what cleans up behind it; if it has not begun, it is not to begin.

        A task that is cancelled before its first step runs nothing of its coroutine, `leave` neither.
        """

    def leave(self) -> None:
        """Have ended."""
        supervisor, timer = self.supervisor, self._timer
        self.supervisor = self.task = None
        if timer is not None:
            timer.cancel()
            self._timer = None
        if supervisor is not None:
            supervisor.children.pop(self, None)

    def stop(self, grace: float) -> None:
        """Come to an end behind the work at hand; interrupted after `grace` seconds."""
        self.stopping = True
        self._interrupt_after(grace)
        self.look()

    def cancel(self) -> None:
        """Come to an end now."""
        self.stopping = True
        if (supervisor := self.supervisor) is not None:
            self.interrupt()
            self._interrupt_after(supervisor.cleanup, anew=True)

    def _interrupt_after(self, seconds: float, *, anew: bool = False) -> None:
        supervisor, timer = self.supervisor, self._timer
        if supervisor is None or seconds == math.inf:
            return
        loop = supervisor.home.loop
        if timer is not None:
            if not anew and timer.when() <= loop.time() + seconds:
                return
            timer.cancel()
        self._timer = loop.call_later(seconds, self.cancel)

    # What a supervisor calls, as it does with an actor's place (`child.py`).

    def pause(self, grace: float | None) -> asyncio.Task[None] | None:
        task = self.task
        if task is not None:
            if grace is None:
                self.cancel()
            else:
                self.stop(grace)
        return task

    def finish(self, reason: str, cause: BaseException | None = None) -> None:  # noqa: ARG002
        self.leave()

    def statistics(self) -> list[Statistics]:
        return [
            Statistics(
                name=self.name, bound=0, queued=0, taken=0, restarts=0, dead_letters=0, ended=self.supervisor is None
            )
        ]
