"""Tasks whose news came together are woken together, each once, in order; a wait is cancelled like any other."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import anyio
import pytest

from callboard.actors.waker import Sleeper, Waker

from .collector import until

pytestmark = pytest.mark.anyio


class Counted(asyncio.SelectorEventLoop):
    """A loop that counts what it is given to call."""

    calls = 0

    def call_soon(self, *arguments, **more):
        self.calls += 1
        return super().call_soon(*arguments, **more)


async def _asleep(sleepers: list[Sleeper]) -> None:
    await until(lambda: all(sleeper.sleeps for sleeper in sleepers))


def test_all_that_are_woken_go_on_in_order_by_one_callback() -> None:
    async def main() -> None:
        waker = Waker()
        sleepers = [Sleeper(waker) for _ in range(50)]
        order: list[int] = []

        async def sleep(index: int) -> None:
            for _ in range(3):
                await sleepers[index].sleep()
                order.append(index)

        tasks = [asyncio.ensure_future(sleep(index)) for index in range(50)]
        for _ in range(3):
            await _asleep(sleepers)
            before = loop.calls
            for sleeper in sleepers:
                sleeper.wake()
                sleeper.wake()  # once is enough
            assert loop.calls == before + 1
        await asyncio.gather(*tasks)
        assert order == [*range(50)] * 3

    loop = Counted()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())


async def test_each_goes_on_in_its_own_context() -> None:
    name: ContextVar[str] = ContextVar("name", default="nobody")
    waker = Waker()
    sleepers = {word: Sleeper(waker) for word in ("one", "two")}
    seen: list[str] = []

    async def sleep(word: str) -> None:
        name.set(word)
        await sleepers[word].sleep()
        seen.append(name.get())

    async with anyio.create_task_group() as group:
        for word in sleepers:
            group.start_soon(sleep, word)
        await _asleep([*sleepers.values()])
        for sleeper in sleepers.values():
            sleeper.wake()
    assert seen == ["one", "two"]
    assert name.get() == "nobody"


@pytest.mark.parametrize("woken", [False, True])
async def test_a_wait_that_is_cancelled_ends_and_the_next_one_begins_anew(woken: bool) -> None:
    sleeper = Sleeper(Waker())

    async def sleep() -> str:
        await sleeper.sleep()
        return "woken"

    first = asyncio.ensure_future(sleep())
    await _asleep([sleeper])
    if woken:
        sleeper.wake()
    first.cancel("enough")
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.ensure_future(sleep())
    await _asleep([sleeper])
    sleeper.wake()
    assert await second == "woken"


async def test_a_deadline_ends_a_wait() -> None:
    with anyio.move_on_after(0) as scope:
        await Sleeper(Waker()).sleep()
    assert scope.cancelled_caught


async def test_two_tasks_cannot_wait_for_the_same() -> None:
    sleeper = Sleeper(Waker())

    async def sleep() -> None:
        await sleeper.sleep()

    first = asyncio.ensure_future(sleep())
    await _asleep([sleeper])
    with pytest.raises(RuntimeError, match="two tasks wait for the same news"):
        await sleeper.sleep()
    sleeper.wake()
    await first


def test_a_task_that_ends_the_loop_takes_nobodys_waking_away() -> None:
    woken: list[int] = []
    loop = asyncio.new_event_loop()

    async def begin() -> tuple[list[Sleeper], list[asyncio.Future[None]]]:
        waker = Waker()
        sleepers = [Sleeper(waker) for _ in range(3)]

        async def sleep(index: int) -> None:
            await sleepers[index].sleep()
            if index == 1:
                raise KeyboardInterrupt
            woken.append(index)

        tasks = [asyncio.ensure_future(sleep(index)) for index in range(3)]
        await _asleep(sleepers)
        return sleepers, tasks

    sleepers, tasks = loop.run_until_complete(begin())
    for sleeper in sleepers:
        sleeper.wake()
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(tasks[2])
    loop.run_until_complete(tasks[2])
    assert woken == [0, 2]
    assert isinstance(tasks[1].exception(), KeyboardInterrupt)
    loop.close()


def test_in_another_loop_a_wait_is_refused() -> None:
    async def make() -> Sleeper:
        return Sleeper(Waker())

    async def sleep(sleeper: Sleeper) -> None:
        await sleeper.sleep()

    sleeper = asyncio.run(make())
    with pytest.raises(RuntimeError, match="attached to a different loop"):
        asyncio.run(sleep(sleeper))
