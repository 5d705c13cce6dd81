"""A client's requests that nobody waits for any more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from callboard.actors.client import Client
from callboard.actors.core import Message, Supervisor
from callboard.actors.messages import Abort, AbortAll
from callboard.actors.wires import Wires

from .collector import Collector, until

pytestmark = pytest.mark.anyio


async def test_who_is_cancelled_in_the_line_for_the_dispatcher_is_cancelled_and_aborts_once_there_is_room() -> None:
    told: list[Message] = []
    wires = Wires()
    unused: Any = None
    async with Supervisor("test") as supervisor:
        wires.dispatcher = await supervisor.spawn(lambda: Collector(told), name="dispatcher", mailbox=1)
        wires.dispatcher.post(AbortAll())
        asking = Client(wires, unused, unused).look_ahead(b"\0" * 8, unused)
        asking.send(None)  # it stands in line
        with pytest.raises(asyncio.CancelledError):
            asking.throw(asyncio.CancelledError())
        await until(lambda: told == [AbortAll(), Abort(1, "its reader left")])
