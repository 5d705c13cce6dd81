"""The strategies: who is stopped and started again when a child has crashed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

import anyio

from .child import Child, report_crash
from .errors import RestartLimit
from .intensity import Intensity
from .job import Job
from .life import wait_for_task

if TYPE_CHECKING:
    from .supervisor import Supervisor

__all__ = ["Restarts", "Strategy"]

Strategy = Literal["one_for_one", "rest_for_one", "one_for_all"]


class Restarts:
    """Restart a supervisor's children by its strategy, until there were too many crashes.

    `one_for_one` starts the new life at once, inside the old one's last step. The other two have to wait for
    siblings to stop and to start, so a task repairs, one crash after the other; it lives only as long as that takes.
    """

    __slots__ = ("_crashes", "_intensity", "_scope", "_strategy", "_supervisor", "_task")

    def __init__(self, supervisor: Supervisor, strategy: Strategy, intensity: Intensity) -> None:
        self._supervisor = supervisor
        self._strategy: Strategy = strategy
        self._intensity = intensity
        self._crashes: list[tuple[Child, int, BaseException | None]] = []  # child, which of its lives, why
        self._task: asyncio.Task[None] | None = None
        self._scope = anyio.CancelScope()

    def begin(self) -> None:
        """Start counting anew."""
        self._intensity.reset()

    def restart(self, child: Child, error: BaseException | None) -> None:
        """Restart after a life ended; error is None if a permanent child returned."""
        if self._strategy == "one_for_one":
            self._revive(child, error)
            return
        self._crashes.append((child, child.lives, error))
        if self._task is None:
            self._scope = anyio.CancelScope()
            self._task = self._supervisor.home.loop.create_task(self._repair(), name=f"{self._supervisor.name} repair")

    async def end(self) -> None:
        """Give up repairing."""
        self._crashes.clear()
        if self._task is not None:
            self._scope.cancel()
            await wait_for_task(self._task)

    def _allow(self, error: BaseException | None) -> bool:
        if self._intensity.allow(self._supervisor.home.loop.time()):
            return True
        limit = RestartLimit(self._supervisor.name, self._intensity.restarts, self._intensity.within)
        limit.__cause__ = error
        self._supervisor.fail(limit)
        return False

    def _revive(self, child: Child, error: BaseException | None) -> None:
        while self._allow(error):
            try:
                child.launch()
            except Exception as failure:
                report_crash(child, failure, "its factory failed")
                error = failure
            else:
                return

    async def _repair(self) -> None:
        try:
            with self._scope:
                while self._crashes:
                    child, lives, error = self._crashes.pop(0)
                    if child.mailbox.closed or child.life is not None or child.lives != lives:
                        continue  # restarted meanwhile, as another's sibling
                    if not self._allow(error):
                        return
                    await self._restart_group(self._group(child))
        except Exception as error:
            self._supervisor.fail(error)
        finally:
            self._task = None

    def _group(self, child: Child) -> list[Child | Job]:
        children = [other for other in self._supervisor.children if other is child or not other.starting]
        return children[children.index(child) :] if self._strategy == "rest_for_one" else children

    async def _restart_group(self, group: list[Child | Job]) -> None:
        await self._supervisor.pause(group)
        for member in group:
            if member.restart == "temporary":
                member.finish("stopped")
            if isinstance(member, Job) or member.mailbox.closed or member.life is not None:
                continue
            try:
                await self._supervisor.start_again(member)
            except Exception as failure:
                report_crash(member, failure, "it failed to start")
                self._crashes.insert(0, (member, member.lives, failure))
                return
