"""An answer asks once it is read, ends as a generator does, and leaves nothing running that nobody reads."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import anyio
import pytest

from callboard.actors.answer import Answer
from callboard.actors.core import ActorDied, Message, Supervisor
from callboard.actors.errors import Aborted, GenerationFailed, Overloaded
from callboard.actors.messages import Abort, AbortAll, Delta, Finish, Submit
from callboard.actors.reader import Reader
from callboard.actors.sampling import SamplingParams
from callboard.actors.waker import Waker
from callboard.actors.wires import Wires

from .collector import Collector, until

pytestmark = pytest.mark.anyio
LEFT = Abort(1, "its reader left")


class Stage:
    """An answer to request 1, and what the dispatcher hears of it."""

    def __init__(self, wires: Wires, told: list[Message]) -> None:
        self.wires, self.told = wires, told
        self.waker = Waker()
        self.reader: Reader | None = None

    def answer(self, error: Exception | None = None) -> Answer:
        async def prepare(*, patient: bool):
            if error is not None:
                raise error
            self.reader = Reader(1, self.waker, patient=patient)
            return Submit(1, b"\0" * 8, SamplingParams(), self.reader), None

        return Answer(self.wires, prepare)

    async def asked(self) -> Reader:
        await until(lambda: any(isinstance(message, Submit) for message in self.told))
        assert self.reader is not None
        return self.reader

    def aborted(self) -> int:
        return self.told.count(LEFT)


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    told: list[Message] = []
    wires = Wires()
    async with Supervisor("test") as supervisor:
        wires.dispatcher = await supervisor.spawn(lambda: Collector(told, {Submit: None}), name="dispatcher")
        yield Stage(wires, told)


async def test_nothing_is_asked_before_somebody_reads() -> None:
    async with stage() as made:
        answer = made.answer()
        await answer.aclose()
        del answer
        assert made.told == []


async def test_it_gives_deltas_and_ends_behind_the_last() -> None:
    async with stage() as made:
        got: list[str] = []

        async def read() -> None:
            async for delta in made.answer():
                got.append(delta.text)  # noqa: PERF401  # what came so far is looked at

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            reader = await made.asked()
            reader.push(Delta(text="a", tokens=(1,)))
            await until(lambda: got == ["a"])
            reader.push(Delta(text="b", tokens=(2,), finish=Finish(reason="length")))
        assert got == ["a", "b"]
        assert made.aborted() == 0


@pytest.mark.parametrize("how", ["closed", "cancelled", "dropped", "dropped in a circle"])
async def test_whoever_stops_reading_aborts_once(how: str) -> None:
    async with stage() as made:
        answer = made.answer()
        waiting = asyncio.ensure_future(anext(answer))
        (await made.asked()).push(Delta(text="a", tokens=(1,)))
        assert (await waiting).text == "a"
        if how == "closed":
            async with aclosing(answer):
                pass
        elif how == "cancelled":
            with anyio.move_on_after(0):
                await anext(answer)
            await until(lambda: made.aborted() == 1)
        elif how == "dropped in a circle":
            circle: list[object] = [answer]
            circle.append(circle)
            del circle
        del answer, waiting
        gc.collect()
        await until(lambda: made.aborted() == 1)
        await anyio.lowlevel.checkpoint()
        assert made.aborted() == 1


async def test_who_is_refused_or_finds_nobody_there_is_told_so_and_aborts_nothing() -> None:
    class Refuses(Collector):
        async def receive(self, message: Message) -> None:
            await super().receive(message)
            if isinstance(message, Submit):
                self.reply().fail(Overloaded("no room"))

    told: list[Message] = []
    wires = Wires()
    async with Supervisor("test") as supervisor:
        wires.dispatcher = await supervisor.spawn(lambda: Refuses(told, {Submit: None}), name="dispatcher")
        made = Stage(wires, told)
        with pytest.raises(Overloaded, match="no room"):
            await anext(made.answer())
        await wires.dispatcher.stop()
        with pytest.raises(ActorDied):
            await made.answer().whole()
    assert made.aborted() == 0


async def test_who_finds_the_dispatchers_mailbox_full_is_refused_and_leaves_nothing_there() -> None:
    told: list[Message] = []
    wires = Wires()
    async with Supervisor("test") as supervisor:
        wires.dispatcher = await supervisor.spawn(lambda: Collector(told, {Submit: None}), name="dispatcher", mailbox=1)
        wires.dispatcher.post(AbortAll())
        with pytest.raises(Overloaded, match="behind with its mail"):
            await anext(Stage(wires, told).answer())
        await until(lambda: told == [AbortAll()])
        assert wires.dispatcher.statistics().queued == 0


async def test_whoever_leaves_where_the_dispatchers_mailbox_is_full_aborts_as_soon_as_there_is_room() -> None:
    told: list[Message] = []
    wires = Wires()
    async with Supervisor("test") as supervisor:
        wires.dispatcher = await supervisor.spawn(lambda: Collector(told, {Submit: None}), name="dispatcher", mailbox=1)
        made = Stage(wires, told)
        answer = made.answer()
        waiting = asyncio.ensure_future(anext(answer))
        (await made.asked()).push(Delta(text="a", tokens=(1,)))
        assert (await waiting).text == "a"
        wires.dispatcher.post(AbortAll())
        await answer.aclose()
        await until(lambda: made.aborted() == 1)


async def test_it_stays_as_long_as_somebody_waits_for_it() -> None:
    async with stage() as made:
        waiting = asyncio.ensure_future(anext(made.answer()))
        reader = await made.asked()
        gc.collect()
        await anyio.lowlevel.checkpoint()
        assert made.aborted() == 0
        reader.push(Delta(text="a", tokens=(1,)))
        assert (await waiting).text == "a"
        del waiting
        await until(lambda: made.aborted() == 1)


@pytest.mark.parametrize("kind", ["prepared", "failed", "aborted"])
async def test_an_error_is_raised_once_and_then_it_is_over(kind: str) -> None:
    async with stage() as made:
        answer = made.answer(Overloaded("no room") if kind == "prepared" else None)
        waiting = asyncio.ensure_future(anext(answer))
        if kind != "prepared":
            finish = Finish(reason="error" if kind == "failed" else "abort", message="the reason")
            (await made.asked()).push(Delta(finish=finish))
        with pytest.raises((Overloaded, GenerationFailed, Aborted), match="no room|the reason"):
            await waiting
        with pytest.raises(StopAsyncIteration):
            await anext(answer)
        assert made.aborted() == 0


async def test_what_is_thrown_in_ends_it() -> None:
    async with stage() as made:
        answer = made.answer()
        waiting = asyncio.ensure_future(answer.asend(None))
        (await made.asked()).push(Delta(text="a", tokens=(1,)))
        await waiting
        with pytest.raises(KeyError, match="thrown"):
            await answer.athrow(KeyError("thrown"))
        with pytest.raises(StopAsyncIteration):
            await anext(answer)
        await until(lambda: made.aborted() == 1)


async def test_the_whole_of_it_wakes_its_asker_once() -> None:
    async with stage() as made:
        waiting = asyncio.ensure_future(made.answer().whole())
        reader = await made.asked()
        await until(lambda: reader.sleeps)
        for token in range(100):
            reader.push(Delta(text="x", tokens=(token,)))
            await anyio.lowlevel.checkpoint()
            assert reader.sleeps
        reader.push(Delta(text="!", tokens=(100,), finish=Finish(reason="length")))
        done = await waiting
        assert done.text == "x" * 100 + "!"
        assert done.tokens == tuple(range(101))
        assert done.finish == Finish(reason="length")


async def test_the_whole_of_what_fails_is_the_failure() -> None:
    async with stage() as made:
        waiting = asyncio.ensure_future(made.answer().whole())
        reader = await made.asked()
        reader.push(Delta(text="x", tokens=(1,)))
        reader.fail(GenerationFailed("the reason"))
        with pytest.raises(GenerationFailed, match="the reason"):
            await waiting


async def test_two_tasks_cannot_read_one_answer() -> None:
    async with stage() as made:
        answer = made.answer()
        first = asyncio.ensure_future(anext(answer))
        reader = await made.asked()
        await until(lambda: reader.sleeps)
        with pytest.raises(RuntimeError, match="two tasks wait for the same news"):
            await anext(answer)
        reader.push(Delta(text="a", tokens=(1,), finish=Finish(reason="length")))
        assert (await first).text == "a"
        assert made.aborted() == 0
