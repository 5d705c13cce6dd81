"""Cancellation at every await: each operation is cancelled after k steps, for every k until it finishes first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import anyio
import pytest

from callboard.actors.core import Actor, Ask, Inbox, Message, Supervisor, simulate

SEEDS = range(4)


class Note(Message, frozen=True):
    number: int


class Echo(Ask[int], frozen=True):
    number: int


class Crash(Message, frozen=True):
    pass


class Slow(Actor[Message]):
    """Takes a few steps for everything: to start, to handle, to end."""

    def __init__(self, log: list[Any], pace: int = 3) -> None:
        self.log = log
        self.pace = pace

    async def __aenter__(self) -> Self:
        self.log.append("enter")
        await steps(3)
        self.log.append("entered")
        return self

    async def receive(self, message: Message) -> Any:
        self.log.append(message)
        await steps(self.pace)
        match message:
            case Echo(number):
                return number
            case Crash():
                raise ValueError("told to")
            case _:
                return None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await steps(3)
        self.log.append("exited")


async def steps(number: int) -> None:
    for _ in range(number):
        await anyio.lowlevel.checkpoint()


async def cut(operation: Callable[[], Awaitable[Any]], after: int) -> bool:
    """Run an operation and cancel it after so many steps; True if it was cancelled, False if it finished first."""
    done = False
    async with anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()

        async def run() -> None:
            nonlocal done
            with scope:
                await operation()
                done = True

        tasks.start_soon(run)
        await steps(after)
        scope.cancel()
    return not done


def at_every_step(scenario: Callable[[int], Awaitable[bool]]) -> None:
    """Play a scenario with a cancellation after 0, 1, 2, ... steps until it finishes first, on several seeds."""
    for seed in SEEDS:
        after = 0
        while simulate.run(lambda after=after: scenario(after), seed=seed).value:
            after += 1
            assert after < 500
        assert after > 1, "it was never cancelled half-way"


def test_a_cancelled_tell_was_not_sent_and_a_finished_one_was_sent_once() -> None:
    async def scenario(after: int) -> bool:
        log: list[Any] = []
        async with Supervisor("root", grace=100) as root:
            ref = await root.spawn(lambda: Slow(log, 20), name="slow", mailbox=1)
            await ref.tell(Note(0))
            await ref.tell(Note(1))
            cancelled = await cut(lambda: ref.tell(Note(2)), after)
            await ref.ask(Echo(3))
        assert log.count(Note(2)) == (0 if cancelled else 1)
        assert [log.count(Note(number)) for number in (0, 1)] == [1, 1]
        return cancelled

    at_every_step(scenario)


def test_a_cancelled_ask_leaves_no_trace() -> None:
    async def scenario(after: int) -> bool:
        log: list[Any] = []
        async with Supervisor("root", grace=100) as root:
            ref = await root.spawn(lambda: Slow(log), name="slow", mailbox=1)
            await ref.tell(Note(0))
            cancelled = await cut(lambda: ref.ask(Echo(2)), after)
            assert await ref.ask(Echo(3)) == 3
            assert log.count(Echo(2)) <= 1
            (child,) = root.children
            assert not child.mailbox.asks
            assert ref.statistics().restarts == 0
        return cancelled

    at_every_step(scenario)


def test_an_ask_cancelled_while_its_actor_crashes_is_only_cancelled() -> None:
    async def scenario(after: int) -> bool:
        async with Supervisor("root", grace=100) as root:
            ref = await root.spawn(lambda: Slow([]), name="slow")
            await ref.tell(Crash())

            async def ask() -> None:
                await ref.ask(Echo(2))

            cancelled = await cut(ask, after)
            assert await ref.ask(Echo(3)) == 3
        return cancelled

    at_every_step(scenario)


def test_a_cancelled_spawn_leaves_no_half_started_child() -> None:
    async def scenario(after: int) -> bool:
        log: list[Any] = []
        async with Supervisor("root", grace=100) as root:
            cancelled = await cut(lambda: root.spawn(lambda: Slow(log), name="slow"), after)
            assert len(root.statistics()) == (0 if cancelled else 1)
            assert log.count("exited") == (log.count("entered") if cancelled else 0)
        assert log.count("exited") == log.count("entered")
        return cancelled

    at_every_step(scenario)


def test_a_cancelled_supervise_leaves_no_half_started_supervisor() -> None:
    async def scenario(after: int) -> bool:
        async with Supervisor("root", grace=100) as root:

            async def supervise() -> None:
                nested = await root.supervise("nested")
                await nested.spawn(lambda: Slow([]), name="slow")

            cancelled = await cut(supervise, after)
            assert len(root.statistics()) == 2 or cancelled
        assert root.statistics() == []
        return cancelled

    at_every_step(scenario)


@pytest.mark.parametrize("operation", ["stop", "join"])
def test_a_cancelled_wait_for_the_end_changes_nothing(operation: str) -> None:
    async def scenario(after: int) -> bool:
        log: list[Any] = []
        async with Supervisor("root", grace=100) as root:
            ref = await root.spawn(lambda: Slow(log), name="slow")
            await ref.tell(Note(0))

            async def both() -> None:
                if operation == "join":
                    ref.stop_nowait()
                    await ref.join()
                else:
                    await ref.stop()

            cancelled = await cut(both, after)
            await ref.stop()
            assert ref.statistics().ended
        assert log.count("exited") == log.count("entered") == 1
        return cancelled

    at_every_step(scenario)


@pytest.mark.parametrize("strategy", ["one_for_one", "rest_for_one", "one_for_all"])
def test_a_block_can_be_cancelled_at_every_step(strategy: Any) -> None:
    async def scenario(after: int) -> bool:
        log: list[Any] = []

        async def block() -> None:
            async with Supervisor("root", grace=100, strategy=strategy) as root:
                first = await root.spawn(lambda: Slow(log), name="first")
                nested = await root.supervise("nested", restarts=0)
                second = await nested.spawn(lambda: Slow(log), name="second")
                await second.tell(Crash())
                await first.tell(Crash())
                await second.ask(Echo(1))
                await first.ask(Echo(1))

        cancelled = await cut(block, after)
        assert log.count("exited") == log.count("entered")
        return cancelled

    at_every_step(scenario)


def test_cancelling_an_inbox_loses_no_message() -> None:
    async def scenario(after: int) -> bool:
        seen: list[int] = []

        class Taker(Actor[Note]):
            async def run(self, inbox: Inbox[Note]) -> None:
                async def take() -> None:
                    taken = await inbox.get()
                    seen.append(taken[0].number)

                self.cancelled = await cut(take, after)
                while len(seen) < 2:
                    seen.extend(message.number for message, _ in await inbox.batch())
                outcome.append(self.cancelled)

        outcome: list[bool] = []
        async with Supervisor("root") as root:
            ref = await root.spawn(Taker, name="taker", restart="temporary")
            await steps(4)
            await ref.tell(Note(0))
            await ref.tell(Note(1))
            await ref.join()
        assert seen == [0, 1]
        return outcome[0]

    at_every_step(scenario)
