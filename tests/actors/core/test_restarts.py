# ruff: noqa: PT012  # what a block raises is raised by leaving it
"""Supervisors: who is started again, and until when."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from callboard.actors.core import (
    Actor,
    ActorDied,
    Inbox,
    Message,
    RestartLimit,
    Supervisor,
)

from .logged import Crash, Logged, Note, Return, Which, settle, spawn_all

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_hang")]


@pytest.mark.parametrize(
    ("restart", "message", "lives"),
    [
        ("permanent", Crash(), 2),
        ("permanent", Return(), 2),
        ("transient", Crash(), 2),
        ("transient", Return(), 1),
        ("temporary", Crash(), 1),
        ("temporary", Return(), 1),
    ],
)
async def test_restart_kinds(restart: Any, message: Message, lives: int) -> None:
    log: list[str] = []
    async with Supervisor("root") as root:
        ref = await root.spawn(lambda: Logged("a", log), name="a", restart=restart)
        await ref.tell(message)
        await settle()
        assert log.count("a+") == lives
        assert ref.statistics().ended == (lives == 1)
        assert len(root.statistics()) == lives - 1


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("one_for_one", ["b-", "b+"]),
        ("rest_for_one", ["b-", "c-", "b+", "c+"]),
        ("one_for_all", ["b-", "c-", "a-", "a+", "b+", "c+"]),
    ],
)
async def test_strategies(strategy: Any, expected: list[str]) -> None:
    log: list[str] = []
    async with Supervisor("root", strategy=strategy) as root:
        refs = await spawn_all(root, log, "abc")
        log.clear()
        await refs[1].tell(Crash())
        await settle()
        assert log == expected


async def test_a_group_restart_ends_temporary_siblings() -> None:
    log: list[str] = []
    async with Supervisor("root", strategy="one_for_all") as root:
        first = await root.spawn(lambda: Logged("a", log), name="a")
        second = await root.spawn(lambda: Logged("b", log), name="b", restart="temporary")
        await first.tell(Crash())
        await second.join()
        await settle()
    assert log == ["a+", "b+", "a-", "b-", "a+", "a-"]


async def test_a_ref_survives_restarts_and_queued_messages_stay() -> None:
    log: list[str] = []
    async with Supervisor("root") as root:
        (ref,) = await spawn_all(root, log, "a")
        for message in (Note("1"), Crash(), Note("2"), Crash(), Note("3")):
            ref.post(message)
        assert await ref.ask(Which()) == 3
    assert log == ["a+", "a:1", "a-", "a+", "a:2", "a-", "a+", "a:3", "a-"]


async def test_an_actor_that_fails_to_start_again_is_a_crash() -> None:
    log: list[str] = []
    failures = [False, True, True, False]
    async with Supervisor("root", restarts=3) as root:
        ref = await root.spawn(lambda: Logged("a", log, lambda: failures.pop(0)), name="a")
        await ref.tell(Crash())
        assert await ref.ask(Which()) == 2
    assert log == ["a+", "a-", "a!", "a!", "a+", "a-"]


async def test_a_sibling_that_fails_to_start_again_is_a_crash_of_the_group() -> None:
    log: list[str] = []
    failures = [False, True, False]
    async with Supervisor("root", strategy="one_for_all") as root:
        first = await root.spawn(lambda: Logged("a", log), name="a")
        await root.spawn(lambda: Logged("b", log, lambda: failures.pop(0)), name="b")
        await first.tell(Crash())
        assert await first.ask(Which()) >= 2
        await settle()
    assert log == ["a+", "b+", "a-", "b-", "a+", "b!", "a-", "a+", "b+", "b-", "a-"]


async def test_restart_limit_comes_out_of_the_block_with_the_last_crash() -> None:
    log: list[str] = []
    with pytest.raises(RestartLimit, match="'root': more than 2 restarts within 5 s") as caught:
        async with Supervisor("root", restarts=2) as root:
            refs = await spawn_all(root, log, "ab")
            for _ in range(3):
                await refs[0].tell(Crash())
            await anyio.sleep_forever()
    assert isinstance(caught.value.__cause__, ValueError)
    assert log.count("a+") == 3
    assert log[-1] == "b-"


async def test_a_factory_that_fails_at_a_restart_counts_as_a_crash() -> None:
    made: list[Actor[Message]] = []

    def factory() -> Actor[Message]:
        if made:
            raise MemoryError("no room")
        made.append(Logged("a", []))
        return made[0]

    with pytest.raises(RestartLimit) as caught:
        async with Supervisor("root") as root:
            ref = await root.spawn(factory, name="a")
            await ref.tell(Crash())
            await anyio.sleep_forever()
    assert isinstance(caught.value.__cause__, MemoryError)


async def test_a_cancellation_from_nowhere_is_a_crash() -> None:
    log: list[str] = []

    class Odd(Logged):
        async def run(self, inbox: Inbox[Message]) -> None:
            await inbox.get()
            raise asyncio.CancelledError

    async with Supervisor("root") as root:
        ref = await root.spawn(lambda: Odd("a", log), name="a")
        with pytest.raises(ActorDied):
            await ref.ask(Which())
        await settle()
        assert log == ["a+", "a-", "a+"]
