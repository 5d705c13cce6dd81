"""Watching: who is told of an end, and what of it."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from callboard.actors.core import (
    Actor,
    Down,
    Message,
    Supervisor,
)

from .logged import Crash, Logged, Note, Return, Which, settle, spawn_all

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_hang")]


async def test_down_overtakes_data() -> None:
    log: list[str] = []
    gate = anyio.Event()

    class Slow(Actor[Message]):
        async def receive(self, message: Message) -> None:
            await gate.wait()
            log.append(type(message).__name__)

    async with Supervisor("root") as root:
        watcher = await root.spawn(Slow, name="watcher")
        ref = await root.spawn(Actor[Message], name="a")
        ref.watch(watcher)
        watcher.post(Note("1"))
        await settle()
        watcher.post(Note("2"))
        await ref.stop()
        gate.set()
        await settle()
    assert log == ["Note", "Down", "Note"]


@pytest.mark.parametrize(
    ("restart", "message", "reason"),
    [
        ("temporary", Return(), "returned"),
        ("temporary", Crash(), "ValueError: a was told to"),
        ("permanent", None, "stopped"),
    ],
)
async def test_down_tells_why(restart: Any, message: Message | None, reason: str) -> None:
    log: list[str] = []
    async with Supervisor("root") as root:
        watcher = await root.spawn(lambda: Logged("w", log), name="w")
        ref = await root.spawn(lambda: Logged("a", []), name="a", restart=restart)
        ref.watch(watcher)
        if message is None:
            await ref.stop()
        else:
            await ref.tell(message)
            await ref.join()
        ref.watch(watcher)  # too late: told at once
        await watcher.ask(Which())
    assert log.count(f"w got {Down('a', reason)}") == 2


async def test_a_restart_is_no_end() -> None:
    log: list[str] = []
    async with Supervisor("root") as root:
        watcher = await root.spawn(lambda: Logged("w", log), name="w")
        (ref,) = await spawn_all(root, [], "a")
        ref.watch(watcher)
        await ref.tell(Crash())
        await ref.ask(Which())
        await watcher.ask(Which())
        assert log == ["w+"]


async def test_watchers_that_ended_are_forgotten() -> None:
    async with Supervisor("root") as root:
        (ref,) = await spawn_all(root, [], "a")
        for _ in range(300):
            watcher = await root.spawn(Actor[Message], name="w")
            ref.watch(watcher)
            await watcher.stop()
        (child,) = root.children
        assert len(child._watchers) < 100
