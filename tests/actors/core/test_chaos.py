"""Random crashes and random cancels, by the thousand, checked against the rules."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.actors.core import Actor, ActorDied, Ask, Message, RestartLimit, Supervisor, simulate


class Work(Ask[int], frozen=True):
    number: int
    crash: bool = False


class Life(Message, frozen=True):
    """Begin or end of an actor's life, as the log keeps it."""

    place: int
    begins: bool


class Worker(Actor[Message]):
    def __init__(self, place: int, log: list[Life | str]) -> None:
        self.place = place
        self.log = log

    async def __aenter__(self) -> Self:
        await anyio.lowlevel.checkpoint()
        self.log.append(Life(self.place, True))
        return self

    async def receive(self, message: Message) -> Any:
        assert isinstance(message, Work)
        await anyio.lowlevel.checkpoint()
        if message.crash:
            self.log.append(f"crash {self.place}")
            raise ValueError("told to")
        return message.number

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await anyio.lowlevel.checkpoint()
        self.log.append(Life(self.place, False))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A thousand tracebacks are of no use to anybody."""
    logger = logging.getLogger("callboard.actors.core")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


def expected(strategy: str, place: int, places: int) -> list[Life]:
    """What a single crash makes a supervisor do."""
    group = {"one_for_one": [place], "rest_for_one": range(place, places), "one_for_all": range(places)}[strategy]
    others = [other for other in reversed(group) if other != place]
    return [
        Life(place, False),
        *(Life(other, False) for other in others),
        *(Life(other, True) for other in group),
    ]


@pytest.mark.parametrize("strategy", ["one_for_one", "rest_for_one", "one_for_all"])
def test_a_thousand_crashes_under_load_follow_the_strategy_exactly(strategy: Any) -> None:
    crashes, places = 340, 4

    async def main() -> tuple[list[Life | str], int, int]:
        log: list[Life | str] = []
        answered = died = 0
        async with Supervisor("root", strategy=strategy, restarts=crashes, within=10**9) as root:
            refs = [await root.spawn(lambda p=place: Worker(p, log), name=f"{place}") for place in range(places)]

            async def load(key: int) -> None:
                nonlocal answered, died
                while not over:
                    try:
                        assert await refs[key % places].ask(Work(key)) == key
                        answered += 1
                    except ActorDied:
                        died += 1
                    await anyio.sleep(0.01)

            over = False
            async with anyio.create_task_group() as tasks:
                for key in range(8):
                    tasks.start_soon(load, key)
                choose = random.Random(7)
                for _ in range(crashes):
                    place = choose.randrange(places)
                    log.append("next")
                    with pytest.raises(ActorDied) as caught:
                        await refs[place].ask(Work(0, crash=True))
                    assert isinstance(caught.value.__cause__, ValueError)
                    await anyio.sleep(0.1)  # virtual: until the repair is done
                over = True
            log.append("next")
        return log, answered, died

    log, answered, _ = simulate.run(main, seed=11).value
    rounds: list[list[Life | str]] = [[]]
    for entry in log:
        if entry == "next":
            rounds.append([])
        else:
            rounds[-1].append(entry)
    assert len(rounds) == crashes + 2
    for events in rounds[1:-1]:
        assert isinstance(events[0], str)
        assert events[1:] == expected(strategy, int(events[0].split()[1]), places)
    assert answered > crashes


@settings(max_examples=60, deadline=None)
@given(
    restarts=st.integers(0, 4),
    gaps=st.lists(st.floats(0.01, 3).map(lambda gap: round(gap, 2)), min_size=1, max_size=12),
    seed=st.integers(0, 1000),
)
def test_the_limit_is_reached_exactly_where_it_is_due(restarts: int, gaps: list[float], seed: int) -> None:
    within = 4.0

    async def main() -> int | None:
        """Crash after each gap; return at which crash the limit came, None if never."""
        crashed = 0
        try:
            async with Supervisor("root", restarts=restarts, within=within) as root:
                ref = await root.spawn(lambda: Worker(0, []), name="worker")
                for gap in gaps:
                    await anyio.sleep(gap)
                    with pytest.raises(ActorDied):
                        await ref.ask(Work(0, crash=True))
                    crashed += 1
                    await anyio.sleep(0.001)
        except RestartLimit:
            return crashed
        return None

    times: list[float] = []
    now, due = 0.0, None
    for number, gap in enumerate(gaps, 1):
        now += gap
        if len([time for time in times if time > now - within]) >= restarts:
            due = number
            break
        times.append(now)
        now += 0.001
    assert simulate.run(main, seed=seed).value == due


@pytest.mark.anyio
async def test_ten_thousand_cancels_leave_no_task_and_no_thread() -> None:
    tasks_before = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
    threads_before = set(threading.enumerate())
    choose = random.Random(3)
    cancelled = 0
    with anyio.fail_after(60):
        async with Supervisor("root", restarts=10**6) as root:
            ref = await root.spawn(lambda: Worker(0, []), name="worker", mailbox=4)

            async def one(delay: int) -> None:
                nonlocal cancelled
                with anyio.CancelScope() as scope:
                    asyncio.get_running_loop().call_soon(later, scope, delay)
                    if delay % 8 == 0:
                        async with Supervisor("inner", grace=0) as inner:
                            other = await inner.spawn(lambda: Worker(1, []), name="other")
                            await other.ask(Work(1))
                    else:
                        await ref.ask(Work(delay))
                cancelled += scope.cancel_called

            def later(scope: anyio.CancelScope, delay: int) -> None:
                if delay:
                    asyncio.get_running_loop().call_soon(later, scope, delay - 1)
                else:
                    scope.cancel()

            for _ in range(100):
                async with anyio.create_task_group() as tasks:
                    for _ in range(100):
                        tasks.start_soon(one, choose.randrange(24))
            assert await ref.ask(Work(5)) == 5
            (child,) = root.children
            assert not child.mailbox.asks
            assert child.mailbox.places == 4
            assert not child.mailbox.room
    assert cancelled > 5000
    gc.collect()
    assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} == tasks_before
    assert set(threading.enumerate()) == threads_before
