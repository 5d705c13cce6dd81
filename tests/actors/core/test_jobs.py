# ruff: noqa: PT012  # what a block raises is raised by leaving it
"""Jobs: tasks of a supervisor that take no messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from callboard.actors.core import Actor, Job, Message, Supervisor, SupervisorClosed
from callboard.actors.core.simulate import run

pytestmark = pytest.mark.anyio


class Chore(Job):
    """Logs its beginning and its end, and between them waits `steps` times to be let on."""

    __slots__ = ("_gate", "_swallows", "_worker", "cancelled", "log", "steps")

    def __init__(self, name: str, log: list[str], *, steps: int = 1, swallows: int = 0) -> None:
        super().__init__(name)
        self.log = log
        self.steps = steps
        self.cancelled = False
        self._swallows = swallows
        self._gate: asyncio.Future[None] | None = None
        self._worker: asyncio.Task[None] | None = None

    async def run(self) -> None:
        self._worker = self.task
        try:
            if not self.cancelled:
                self.log.append(f"{self.name}+")
                await self._work()
        except asyncio.CancelledError:
            self.log.append(f"{self.name}!")
        finally:
            self._worker = None
            self.log.append(f"{self.name}-")
            self.leave()

    async def _work(self) -> None:
        while self.steps and not self.stopping:
            self._gate = asyncio.get_running_loop().create_future()
            try:
                await self._gate
            except asyncio.CancelledError:
                if not self._swallows:
                    raise
                self._swallows -= 1
                await anyio.sleep_forever()
            self.steps -= 1

    def look(self) -> None:
        if self._gate is not None and not self._gate.done():
            self._gate.set_result(None)

    def interrupt(self) -> None:
        self.cancelled = True
        if self._worker is not None:
            self._worker.cancel()


class Guest(Actor[Message]):
    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    async def __aexit__(self, *_: object) -> None:
        self.log.append(f"{self.name}-")


@asynccontextmanager
async def supervised(**options: float) -> AsyncIterator[tuple[Supervisor, list[str]]]:
    async with Supervisor("house", **options) as house:
        yield house, []


async def test_a_job_is_in_its_supervisor_until_it_leaves() -> None:
    async with supervised() as (house, log):
        job = Chore("a", log)
        await house.begin(job)
        await anyio.lowlevel.checkpoint()
        assert [(one.name, one.ended) for one in house.statistics()] == [("a", False)]
        job.look()
        await anyio.lowlevel.checkpoint()
        assert (log, house.statistics(), job.task, job.supervisor) == (["a+", "a-"], [], None, None)


async def test_jobs_and_actors_end_in_reverse() -> None:
    async with supervised() as (house, log):
        await house.begin(Chore("a", log))
        await house.spawn(lambda: Guest("b", log), name="b")
        await house.begin(Chore("c", log))
        await anyio.lowlevel.checkpoint()
        log.clear()
    assert log == ["c-", "b-", "a-"]


async def test_a_job_exists_only_inside_a_block() -> None:
    house, log = Supervisor("house"), list[str]()
    with pytest.raises(SupervisorClosed):
        await house.begin(Chore("a", log))
    async with house:
        pass
    with pytest.raises(SupervisorClosed):
        await house.begin(Chore("a", log))
    assert log == []


async def test_one_that_was_not_begun_yet_runs_nothing_and_still_leaves() -> None:
    job = Chore("a", log := list[str]())
    with pytest.raises(KeyError):
        async with Supervisor("house") as house:
            await house.begin(job)
            raise KeyError
    assert (log, job.supervisor) == (["a-"], None)


def test_stopping_gives_the_grace_then_interrupts() -> None:
    class Deaf(Chore):
        def look(self) -> None:
            """Hear nothing."""

    async def deaf() -> tuple[list[str], float]:
        async with Supervisor("house", grace=3) as house:
            await house.begin(Deaf("a", log := list[str]()))
            await anyio.sleep(1)
        return log, asyncio.get_running_loop().time()

    assert run(deaf, seed=1).value == (["a+", "a!", "a-"], 4.0)


def test_one_that_swallows_its_cancellation_is_cancelled_again() -> None:
    async def main() -> tuple[list[str], float]:
        with anyio.CancelScope() as scope:
            async with Supervisor("house", cleanup=2) as house:
                await house.begin(Chore("a", log := list[str](), swallows=1))
                await anyio.sleep(1)
                scope.cancel()
                await anyio.sleep(1)
        return log, asyncio.get_running_loop().time()

    assert run(main, seed=1).value == (["a+", "a!", "a-"], 3.0)


async def test_a_job_of_a_nested_supervisor_ends_with_its_life() -> None:
    async with supervised() as (house, log):
        inner = await house.supervise("inner", restart="temporary")
        await inner.begin(job := Chore("a", log))
        await anyio.lowlevel.checkpoint()
        assert [one.name for one in house.statistics()] == ["inner", "a"]
        assert inner.ref is not None
        await inner.ref.stop()
        assert (log, job.supervisor, inner.statistics()) == (["a+", "a-"], None, [])
        with pytest.raises(SupervisorClosed):
            await inner.begin(Chore("b", log))
