"""What a program held goes with it, by counting references alone: ten thousand of them leave the collector no work."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

import callboard as cb
from callboard import NullBackend
from callboard.actors.core import Actor, Message, Supervisor

pytestmark = pytest.mark.anyio


@pytest.fixture
def garbage() -> Iterator[Callable[[], list[str]]]:
    """Give what tells the objects of ours that only the collector could free; it is off in between."""
    while gc.collect():  # what other tests have left, and what that has held until it was collected
        pass
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)

    def ours() -> list[str]:
        gc.collect()
        found = [type(one).__name__ for one in gc.garbage if type(one).__module__.startswith("callboard.")]
        gc.garbage.clear()
        return found

    yield ours
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


@cb.function
def plain(s: Any, question: str) -> None:
    s += cb.user(question) + cb.assistant(cb.gen("answer", max_tokens=8))
    s["answer"]


@cb.function
async def waiting(s: Any, question: str) -> None:
    s += question + cb.gen("answer", max_tokens=8)
    await s.aget("answer")


@cb.function
def forking(s: Any, question: str) -> None:
    s += question
    forks = s.fork(3)
    forks += cb.gen("answer", max_tokens=4)
    forks.join()


@pytest.mark.parametrize("program", [plain, waiting, forking], ids=["plain", "async", "fork"])
async def test_a_finished_program_is_gone_with_its_last_reference(
    program: Any, garbage: Callable[[], list[str]]
) -> None:
    async with NullBackend() as backend:
        await program.arun("Why?", backend=backend)
        garbage()  # what a first run leaves behind once
        state = await program.arun("Why?", backend=backend)
        stream = weakref.ref(state._stream)
        await anyio.lowlevel.checkpoint()  # its task has taken its last step
        del state
        assert stream() is None
        assert garbage() == []


async def test_so_is_a_batch(garbage: Callable[[], list[str]]) -> None:
    async with NullBackend() as backend:
        await plain.arun_batch([("Why?",)] * 3, backend=backend)
        garbage()
        states = await plain.arun_batch([("Why?",)] * 20, backend=backend)
        streams = [weakref.ref(state._stream) for state in states]
        await anyio.lowlevel.checkpoint()
        del states
        assert [stream() for stream in streams] == [None] * 20
        assert garbage() == []


async def test_an_actor_that_has_ended_leaves_no_circle(garbage: Callable[[], list[str]]) -> None:
    class Guest(Actor[Message]):
        pass

    async with Supervisor("house") as house:
        ref = await house.spawn(Guest, name="guest", restart="temporary")
        garbage()
        await ref.stop()
        await ref.join()  # its address still answers
        assert ref.statistics().ended
        ref.stop_nowait()
        del ref
        assert garbage() == []
