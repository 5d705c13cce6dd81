# ruff: noqa: PT012  # what a block raises is raised by leaving it
"""A Ref works from another thread, with a loop of its own or without one."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.to_thread
import pytest

from callboard.actors.core import (
    Actor,
    ActorDied,
    Ask,
    DeadLetter,
    Down,
    MailboxFull,
    Message,
    Ref,
    Reply,
    Supervisor,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_hang")]


class Note(Message, frozen=True):
    number: int


class Double(Ask[int], frozen=True):
    number: int


class Where(Ask[int], frozen=True):
    pass


class Crash(Ask[None], frozen=True):
    pass


class Later(Ask[int], frozen=True):
    pass


class Server(Actor[Message]):
    def __init__(self, seen: list[Any], gate: anyio.Event | None = None) -> None:
        self.seen = seen
        self.gate = gate

    async def receive(self, message: Message) -> Any:
        if self.gate is not None:
            await self.gate.wait()
        self.seen.append(message)
        match message:
            case Double(number):
                return 2 * number
            case Where():
                return threading.get_ident()
            case Crash():
                raise ValueError("told to")
            case Later():
                self.seen.append(self.reply())
            case _:
                pass
        return None


async def in_thread(body: Callable[[], Awaitable[Any]]) -> Any:
    """Run a coroutine in a loop of its own, in another thread."""
    return await anyio.to_thread.run_sync(lambda: anyio.run(body))


async def test_ask_from_another_loop_is_answered_there_and_handled_here() -> None:
    async with Supervisor("root") as root:
        ref = await root.spawn(lambda: Server([]), name="server")

        async def elsewhere() -> tuple[int, int]:
            return await ref.ask(Double(4)), await ref.ask(Where())

        assert await in_thread(elsewhere) == (8, threading.get_ident())


async def test_a_crash_reaches_an_asker_in_another_loop() -> None:
    async with Supervisor("root") as root:
        ref = await root.spawn(lambda: Server([]), name="server")

        async def elsewhere() -> BaseException | None:
            with pytest.raises(ActorDied) as caught:
                await ref.ask(Crash())
            return caught.value.__cause__

        assert isinstance(await in_thread(elsewhere), ValueError)


async def test_tell_from_many_threads_keeps_each_sender_s_order_and_the_bound() -> None:
    seen: list[Any] = []
    most = 0

    class Watchful(Server):
        async def receive(self, message: Message) -> Any:
            nonlocal most
            most = max(most, self.ref.statistics().queued)
            return await super().receive(message)

    async with Supervisor("root") as root:
        ref = await root.spawn(lambda: Watchful(seen), name="server", mailbox=3)

        def sender(start: int) -> Callable[[], Awaitable[None]]:
            async def elsewhere() -> None:
                for number in range(start, start + 100):
                    await ref.tell(Note(number))

            return elsewhere

        async with anyio.create_task_group() as tasks:
            for start in (0, 1000, 2000):
                tasks.start_soon(in_thread, sender(start))
            await sender(3000)()
        await ref.ask(Double(0))
    assert most <= 3
    for start in (0, 1000, 2000, 3000):
        numbers = [note.number for note in seen if isinstance(note, Note) and start <= note.number < start + 1000]
        assert numbers == list(range(start, start + 100))


async def test_post_from_a_plain_thread_raises_at_the_bound() -> None:
    gate = anyio.Event()
    seen: list[Any] = []
    async with Supervisor("root") as root:
        ref = await root.spawn(lambda: Server(seen, gate), name="server", mailbox=2)

        def plain() -> int:
            posted = 0
            with pytest.raises(MailboxFull, match="holds 2"):
                for number in range(9):
                    ref.post(Note(number))
                    posted += 1
            return posted

        posted = await anyio.to_thread.run_sync(plain)
        gate.set()
        await ref.ask(Double(0))
    assert 2 <= posted <= 3  # one may have been taken to be handled meanwhile
    assert [note.number for note in seen[:-1]] == list(range(posted))


async def test_a_cancelled_tell_from_another_loop_was_not_sent() -> None:
    gate = anyio.Event()
    seen: list[Any] = []
    async with Supervisor("root") as root:
        ref = await root.spawn(lambda: Server(seen, gate), name="server", mailbox=1)
        await ref.tell(Note(0))
        await anyio.lowlevel.checkpoint()
        await ref.tell(Note(1))

        async def elsewhere() -> bool:
            with anyio.move_on_after(0.01) as limit:
                await ref.tell(Note(2))
            return limit.cancelled_caught

        assert await in_thread(elsewhere)
        gate.set()
        await ref.tell(Note(3))
        await ref.ask(Double(0))
    assert [note.number for note in seen] == [0, 1, 3, 0]


async def test_a_cancelled_ask_from_another_loop_drops_its_answer() -> None:
    seen: list[Any] = []
    async with Supervisor("root") as root:
        ref = await root.spawn(lambda: Server(seen), name="server")

        async def elsewhere() -> bool:
            with anyio.move_on_after(0.01) as limit:
                await ref.ask(Later())
            return limit.cancelled_caught

        assert await in_thread(elsewhere)
        reply = seen[1]
        assert isinstance(reply, Reply)
        assert reply.cancelled
        reply.answer(1)  # to a loop that is closed
        assert await ref.ask(Double(1)) == 2


async def test_a_reply_can_be_answered_from_another_thread() -> None:
    seen: list[Any] = []
    async with Supervisor("root") as root:
        ref = await root.spawn(lambda: Server(seen), name="server")
        answers: list[int] = []

        async def ask() -> None:
            answers.append(await ref.ask(Later()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            while len(seen) < 2:
                await anyio.lowlevel.checkpoint()
            await anyio.to_thread.run_sync(seen[1].answer, 9)
    assert answers == [9]


async def test_stop_join_and_watch_from_another_loop() -> None:
    seen: list[Any] = []
    async with Supervisor("root") as root:
        watcher = await root.spawn(lambda: Server(seen), name="watcher")
        ref: Ref[Message] = await root.spawn(lambda: Server([]), name="server")

        async def elsewhere() -> bool:
            ref.watch(watcher)
            await ref.stop()
            await ref.join()
            return ref.statistics().ended

        assert await in_thread(elsewhere)
        await watcher.ask(Double(0))
    assert seen[0] == Down("server", "stopped")


async def test_what_another_thread_sends_after_the_end_is_refused() -> None:
    letters: list[DeadLetter] = []
    async with Supervisor("root", dead_letter=letters.append) as root:
        ref = await root.spawn(lambda: Server([]), name="server")

    async def elsewhere() -> None:
        ref.post(Note(1))
        await ref.tell(Note(2))
        await ref.join()
        ref.stop_nowait()
        with pytest.raises(ActorDied):
            await ref.ask(Double(1))

    await in_thread(elsewhere)
    assert root.dead_letters == 2
    assert [letter.message.number for letter in letters] == [1, 2]


async def test_askers_in_another_loop_never_hang_when_the_tree_closes() -> None:
    outcomes: list[str] = []
    started = threading.Event()
    async with Supervisor("root", grace=0) as root:
        ref = await root.spawn(lambda: Server([], anyio.Event()), name="server", mailbox=2)

        async def one() -> None:
            try:
                await ref.ask(Double(1))
            except ActorDied:
                outcomes.append("died")

        async def elsewhere() -> None:
            async with anyio.create_task_group() as tasks:
                for _ in range(8):
                    tasks.start_soon(one)
                await anyio.lowlevel.checkpoint()
                started.set()

        thread = threading.Thread(target=anyio.run, args=(elsewhere,))
        thread.start()
        await anyio.to_thread.run_sync(started.wait)
    await anyio.to_thread.run_sync(thread.join)
    assert outcomes == ["died"] * 8
