# ruff: noqa: PT012  # what a block raises is raised by leaving it
"""Supervisors of supervisors."""

from __future__ import annotations

import anyio
import pytest

from callboard.actors.core import (
    ActorDied,
    RestartLimit,
    Supervisor,
    SupervisorClosed,
)

from .logged import Crash, Note, Which, settle, spawn_all

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_hang")]


async def test_a_nested_limit_is_a_crash_in_the_parent_and_refs_survive() -> None:
    log: list[str] = []
    async with Supervisor("root", restarts=2) as root:
        nested = await root.supervise("nested", restarts=1)
        first, second = await spawn_all(nested, log, "ab")
        second.post(Note("x"))
        first.post(Crash())
        first.post(Crash())
        assert await second.ask(Which()) >= 1
        await settle()
        assert await first.ask(Which()) == 3
        assert nested.ref is not None
        assert nested.ref.statistics().restarts == 1
        assert log[-4:] == ["a-", "b-", "a+", "b+"]
    assert log[-2:] == ["b-", "a-"]


async def test_limits_go_up_the_tree_and_out() -> None:
    with pytest.raises(RestartLimit, match="'root'") as caught:
        async with Supervisor("root", restarts=1) as root:
            nested = await root.supervise("nested", restarts=0)
            (ref,) = await spawn_all(nested, [], "a")
            ref.post(Crash())
            ref.post(Crash())
            await anyio.sleep_forever()
    cause = caught.value.__cause__
    assert isinstance(cause, RestartLimit)
    assert cause.name == "nested"
    assert isinstance(cause.__cause__, ValueError)


async def test_spawning_waits_while_a_nested_supervisor_is_between_lives() -> None:
    log: list[str] = []
    async with Supervisor("root") as root:
        nested = await root.supervise("nested", restarts=0)
        (ref,) = await spawn_all(nested, log, "a")
        ref.post(Crash())
        while "a-" not in log:
            await anyio.lowlevel.checkpoint()
        await spawn_all(nested, log, "b")
        assert log == ["a+", "a-", "a+", "b+"]


async def test_a_nested_supervisor_can_be_stopped() -> None:
    log: list[str] = []
    async with Supervisor("root") as root:
        nested = await root.supervise("nested")
        refs = await spawn_all(nested, log, "ab")
        assert nested.ref is not None
        await nested.ref.stop()
        assert [ref.statistics().ended for ref in refs] == [True, True]
        assert log == ["a+", "b+", "b-", "a-"]
        with pytest.raises(SupervisorClosed, match="'nested' is ended"):
            await spawn_all(nested, log, "c")
        with pytest.raises(ActorDied):
            await refs[0].ask(Which())


async def test_a_whole_tree_stops_in_reverse_and_is_restarted_in_order() -> None:
    log: list[str] = []
    async with Supervisor("root", strategy="one_for_all") as root:
        (first,) = await spawn_all(root, log, "a")
        nested = await root.supervise("nested")
        await spawn_all(nested, log, "bc")
        await spawn_all(root, log, "d")
        log.clear()
        await first.tell(Crash())
        await settle()
        assert log == ["a-", "d-", "c-", "b-", "a+", "b+", "c+", "d+"]
        log.clear()
    assert log == ["d-", "c-", "b-", "a-"]


async def test_statistics_of_the_tree() -> None:
    async with Supervisor("root") as root:
        nested = await root.supervise("nested")
        await spawn_all(nested, [], "a")
        await spawn_all(root, [], "b")
        assert [one.name for one in root.statistics()] == ["nested", "a", "b"]
