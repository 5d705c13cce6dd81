# ruff: noqa: PT012  # what a block raises is raised by leaving it
"""Supervisors: how they start and stop their children, and what outlives what."""

from __future__ import annotations

from typing import Self

import anyio
import pytest

from callboard.actors.core import (
    Actor,
    Inbox,
    Message,
    Supervisor,
    SupervisorClosed,
)

from .logged import Crash, Logged, Note, Stuck, Which, other_tasks, settle, spawn_all

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_hang")]


# Starting and leaving.


async def test_children_start_in_order_and_stop_in_reverse() -> None:
    log: list[str] = []
    async with Supervisor("root") as root:
        await spawn_all(root, log, "abc")
        assert log == ["a+", "b+", "c+"]
    assert log[3:] == ["c-", "b-", "a-"]


async def test_no_task_outlives_the_block() -> None:
    before = other_tasks()
    async with Supervisor("root", strategy="one_for_all", restarts=10) as root:
        refs = await spawn_all(root, [], "abc")
        nested = await root.supervise("nested")
        await spawn_all(nested, [], "de")
        await refs[1].tell(Crash())
        await settle()
        assert len(other_tasks()) > len(before)
    assert other_tasks() == before


async def test_spawn_raises_what_the_start_raises_and_leaves_no_child() -> None:
    log: list[str] = []
    async with Supervisor("root") as root:
        with pytest.raises(OSError, match="a cannot start"):
            await root.spawn(lambda: Logged("a", log, lambda: True), name="a")
        with pytest.raises(ZeroDivisionError):
            await root.spawn(lambda: Logged(str(1 // 0), log), name="b")
        assert root.statistics() == []
    assert log == ["a!"]


async def test_an_actor_knows_its_address_before_it_is_set_up() -> None:
    names: list[str] = []

    class Knows(Actor[Message]):
        async def __aenter__(self) -> Self:
            names.append(self.ref.name)
            return self

    async with Supervisor("root") as root:
        await root.spawn(Knows, name="itself")
    assert names == ["itself"]


async def test_a_supervisor_refuses_bad_arguments() -> None:
    with pytest.raises(ValueError, match="strategy is 'some'; it must be one of one_for_one"):
        Supervisor("root", strategy="some")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="restarts is -1"):
        Supervisor("root", restarts=-1)
    with pytest.raises(ValueError, match="within is 0"):
        Supervisor("root", within=0)
    with pytest.raises(ValueError, match="grace is -1"):
        Supervisor("root", grace=-1)
    async with Supervisor("root") as root:
        with pytest.raises(ValueError, match="restart is 'never'; it must be one of permanent"):
            await root.spawn(Actor[Message], name="a", restart="never")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="mailbox is 0; it must hold at least 1"):
            await root.spawn(Actor[Message], name="a", mailbox=0)


async def test_an_actor_exists_only_inside_a_block() -> None:
    root = Supervisor("root")
    with pytest.raises(SupervisorClosed, match="'root' is new"):
        await root.spawn(Actor[Message], name="early")
    async with root:
        pass
    with pytest.raises(SupervisorClosed, match="'root' is ended"):
        await root.spawn(Actor[Message], name="late")
    with pytest.raises(RuntimeError, match="entered before"):
        async with root:
            pass


async def test_the_body_s_error_comes_out_as_it_is() -> None:
    log: list[str] = []
    with pytest.raises(KeyError, match="mine"):
        async with Supervisor("root") as root:
            await spawn_all(root, log, "ab")
            raise KeyError("mine")
    assert log[2:] == ["b-", "a-"]


# Stopping.


async def test_stop_overtakes_data_and_waits_for_the_message_at_hand() -> None:
    log: list[str] = []
    gate = anyio.Event()

    class Slow(Logged):
        async def run(self, inbox: Inbox[Message]) -> None:
            while True:
                message, _ = await inbox.get()
                await gate.wait()
                self.log.append(f"handled {message}")

    async with Supervisor("root") as root:
        ref = await root.spawn(lambda: Slow("a", log), name="a")
        ref.post(Note("first"))
        await settle()
        ref.post(Note("second"))
        ref.stop_nowait()
        await settle()
        assert not ref.statistics().ended
        gate.set()
        await ref.join()
        assert root.dead_letters == 1
        assert root.statistics() == []
    assert log == ["a+", "handled Note(text='first')", "a-"]


async def test_a_stopped_actor_is_not_restarted() -> None:
    log: list[str] = []
    async with Supervisor("root") as root:
        (ref,) = await spawn_all(root, log, "a")
        await ref.stop()
        await ref.stop()
        assert log == ["a+", "a-"]


async def test_stop_cancels_after_the_grace_and_exit_still_runs() -> None:
    log: list[str] = []
    async with Supervisor("root", grace=0.01) as root:
        ref = await root.spawn(lambda: Stuck(log), name="stuck")
        await ref.tell(Note("x"))
        await settle()
        await ref.stop()
    assert log == ["at hand", "cancelled"]


async def test_leaving_gives_the_grace_then_cancels() -> None:
    log: list[str] = []
    async with Supervisor("root", grace=0.01) as root:
        ref = await root.spawn(lambda: Stuck(log), name="stuck")
        await ref.tell(Note("x"))
        await settle()
    assert log == ["at hand", "cancelled"]


async def test_a_cancelled_block_gives_no_grace_and_ends_in_reverse() -> None:
    log: list[str] = []
    with anyio.CancelScope() as scope:
        async with Supervisor("root", grace=1e9) as root:
            await spawn_all(root, log, "ab")
            ref = await root.spawn(lambda: Stuck(log), name="stuck")
            await ref.tell(Note("x"))
            await settle()
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert log == ["a+", "b+", "at hand", "cancelled", "b-", "a-"]


async def test_a_cancelled_block_gives_those_below_it_no_grace_either() -> None:
    log: list[str] = []
    with anyio.fail_after(5), anyio.CancelScope() as scope:
        async with Supervisor("root") as root:
            nested = await root.supervise("nested", grace=1e9)
            ref = await nested.spawn(lambda: Stuck(log), name="stuck")
            await ref.tell(Note("x"))
            await settle()
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert log == ["at hand", "cancelled"]


async def test_a_cancel_while_leaving_cuts_the_grace_short() -> None:
    log: list[str] = []
    with anyio.move_on_after(0.01) as scope:
        async with Supervisor("root", grace=1e9) as root:
            ref = await root.spawn(lambda: Stuck(log), name="stuck")
            await ref.tell(Note("x"))
            await settle()
    assert scope.cancelled_caught
    assert log == ["at hand", "cancelled"]


async def test_cleaning_up_has_its_time_and_no_more() -> None:
    class Endless(Actor[Message]):
        async def __aexit__(self, *_: object) -> None:
            await anyio.sleep_forever()

    log: list[str] = []
    async with Supervisor("root", cleanup=0.01) as root:
        watcher = await root.spawn(lambda: Logged("w", log), name="w")
        ref = await root.spawn(Endless, name="endless")
        ref.watch(watcher)
        await ref.stop()
        await watcher.ask(Which())
    assert "TimeoutError: cleaning up took more than 0.01 s" in log[1]


async def test_an_actor_cannot_wait_for_its_own_end_but_can_stop_itself() -> None:
    errors: list[str] = []

    class Weary(Actor[Message]):
        async def receive(self, message: Message) -> None:
            try:
                await self.ref.stop()
            except RuntimeError as error:
                errors.append(str(error))
            self.ref.stop_nowait()

    async with Supervisor("root") as root:
        ref = await root.spawn(Weary, name="weary")
        await ref.tell(Note("x"))
        await ref.join()
    assert errors == ["actor 'weary' cannot wait for its own end; use stop_nowait"]
