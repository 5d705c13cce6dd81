# ruff: noqa: PT012  # what a block raises is raised by leaving it
"""Supervisors: starts, stops, restarts, and what outlives what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import anyio
import pytest

from callboard.actors.core import (
    Actor,
    ActorDied,
    Ask,
    Down,
    Inbox,
    Message,
    Ref,
    RestartLimit,
    Supervisor,
    SupervisorClosed,
)

pytestmark = pytest.mark.anyio


class Note(Message, frozen=True):
    text: str


class Crash(Message, frozen=True):
    pass


class Which(Ask[int], frozen=True):
    pass


class Return(Message, frozen=True):
    pass


class Logged(Actor[Message]):
    """Logs its lives as `name+` and `name-`; tells which of its lives this is."""

    def __init__(self, name: str, log: list[str], fails: Callable[[], bool] = lambda: False) -> None:
        self.name = name
        self.log = log
        self.fails = fails

    async def __aenter__(self) -> Self:
        await anyio.lowlevel.checkpoint()
        if self.fails():
            self.log.append(f"{self.name}!")
            raise OSError(f"{self.name} cannot start")
        self.log.append(f"{self.name}+")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await anyio.lowlevel.checkpoint()
        self.log.append(f"{self.name}-")

    async def run(self, inbox: Inbox[Message]) -> None:
        while True:
            message, reply = await inbox.get()
            match message:
                case Crash():
                    raise ValueError(f"{self.name} was told to")
                case Return():
                    return
                case Which() if reply is not None:
                    reply.answer(self.log.count(f"{self.name}+"))
                case Note(text):
                    self.log.append(f"{self.name}:{text}")
                case _:
                    self.log.append(f"{self.name} got {message}")


class Stuck(Actor[Message]):
    """Waits forever at its first message; logs how it ended."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    async def receive(self, message: Message) -> None:
        self.log.append("at hand")
        await anyio.sleep_forever()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await anyio.lowlevel.checkpoint()
        self.log.append("cancelled" if isinstance(error, asyncio.CancelledError) else "ended")


@pytest.fixture(autouse=True)
async def no_hang() -> Any:
    with anyio.fail_after(30):
        yield


async def settle() -> None:
    for _ in range(60):
        await anyio.lowlevel.checkpoint()


async def spawn_all(root: Supervisor, log: list[str], names: str) -> list[Ref[Message]]:
    return [await root.spawn(lambda name=name: Logged(name, log), name=name) for name in names]


def other_tasks() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


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


# Restarts.


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


# Watching.


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


# Nested supervisors.


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
