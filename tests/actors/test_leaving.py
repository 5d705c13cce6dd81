"""Who leaves does not wait for room, from whatever thread it is let go of."""

from __future__ import annotations

import asyncio

import anyio.to_thread
import pytest

from callboard.actors.core import Message, Supervisor
from callboard.actors.leaving import leave
from callboard.actors.messages import Abort, AbortAll
from callboard.actors.wires import Wires

from .collector import Collector, Full, until

pytestmark = pytest.mark.anyio


async def test_a_thread_that_finds_no_room_has_the_loop_try_again() -> None:
    told: list[Message] = []
    wires, full = Wires(), Full()
    asyncio.get_running_loop().set_debug(True)  # in which what only its own thread may do is refused to others
    async with Supervisor("test") as supervisor:
        dispatcher = await supervisor.spawn(lambda: Collector(told), name="dispatcher")
        wires.dispatcher = full  # type: ignore[assignment]
        await anyio.to_thread.run_sync(leave, wires, 7, asyncio.get_running_loop())
        assert not told
        wires.dispatcher = dispatcher
        dispatcher.post(AbortAll())
        await until(lambda: told == [AbortAll(), Abort(7, "its reader left")])
