# ruff: noqa: PT012  # what a block raises is raised by leaving it
"""Tell, post and ask: order, bounds, answers, and what a cancellation leaves behind."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import msgspec
import pytest

from callboard.actors.core import (
    Actor,
    ActorDied,
    Ask,
    AskCycle,
    DeadLetter,
    Inbox,
    MailboxFull,
    Message,
    Ref,
    Reply,
    Stopped,
    Supervisor,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_hang")]


class Note(Message, frozen=True):
    number: int


class Double(Ask[int], frozen=True):
    number: int


class Crash(Message, frozen=True):
    pass


class Later(Ask[int], frozen=True):
    pass


class Refuse(Ask[int], frozen=True):
    pass


class Recorder(Actor[Message]):
    """Writes down what it handles; waits at an open gate, if it has one, before each message."""

    def __init__(self, seen: list[Any], gate: anyio.Event | None = None) -> None:
        self.seen = seen
        self.gate = gate
        self.held: list[Reply] = []

    async def receive(self, message: Message) -> Any:
        if self.gate is not None:
            await self.gate.wait()
        self.seen.append(message)
        match message:
            case Double(number):
                return 2 * number
            case Crash():
                raise ValueError("told to")
            case Later():
                self.held.append(self.reply())
            case Refuse():
                self.reply().fail(LookupError("not here"))
            case Note():
                while self.held:
                    self.held.pop(0).answer(message.number)
            case _:
                pass
        return None


async def settle() -> None:
    """Let every other task run until it waits."""
    for _ in range(20):
        await anyio.lowlevel.checkpoint()


async def test_messages_of_a_sender_arrive_in_order() -> None:
    seen: list[Any] = []
    async with Supervisor("root") as root:
        ref = await root.spawn(lambda: Recorder(seen), name="recorder", mailbox=4)
        for number in range(50):
            await ref.tell(Note(number))
        await ref.ask(Double(0))
    assert [note.number for note in seen[:-1]] == list(range(50))


async def test_ask_returns_what_receive_returns() -> None:
    async with Supervisor("root") as root:
        ref = await root.spawn(lambda: Recorder([]), name="recorder")
        assert await ref.ask(Double(21)) == 42


async def test_an_ask_may_be_answered_later() -> None:
    async with Supervisor("root") as root:
        ref = await root.spawn(lambda: Recorder([]), name="recorder")
        answers: list[int] = []

        async def ask() -> None:
            answers.append(await ref.ask(Later()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await settle()
            assert answers == []
            await ref.tell(Note(7))
        assert answers == [7]


async def test_fail_raises_at_the_asker_and_the_actor_lives_on() -> None:
    async with Supervisor("root") as root:
        ref = await root.spawn(lambda: Recorder([]), name="recorder")
        with pytest.raises(LookupError, match="not here"):
            await ref.ask(Refuse())
        assert await ref.ask(Double(1)) == 2
        assert ref.statistics().restarts == 0


async def test_reply_needs_an_ask_at_hand() -> None:
    class Wrong(Actor[Message]):
        async def receive(self, message: Message) -> None:
            self.reply()

    async with Supervisor("root") as root:
        ref = await root.spawn(Wrong, name="wrong", restart="temporary")
        await ref.tell(Note(1))
        await ref.join()
        with pytest.raises(ActorDied) as caught:
            await ref.ask(Double(1))
    assert isinstance(caught.value.__cause__, LookupError)


async def test_an_ask_is_answered_once() -> None:
    errors: list[BaseException] = []

    class Twice(Actor[Message]):
        async def receive(self, message: Message) -> None:
            reply = self.reply()
            reply.answer(1)
            with pytest.raises(RuntimeError, match="answered before") as caught:
                reply.answer(2)
            errors.append(caught.value)

    async with Supervisor("root") as root:
        ref = await root.spawn(Twice, name="twice")
        assert await ref.ask(Later()) == 1
        await settle()
    assert len(errors) == 1


async def test_post_raises_at_the_bound() -> None:
    gate = anyio.Event()
    async with Supervisor("root") as root:
        ref = await root.spawn(lambda: Recorder([], gate), name="slow", mailbox=3)
        await ref.tell(Note(0))
        await settle()  # it is at hand, no longer in the mailbox
        for number in range(1, 4):
            ref.post(Note(number))
        with pytest.raises(MailboxFull, match="'slow' holds 3 messages"):
            ref.post(Note(4))
        gate.set()


async def test_tell_waits_for_room_and_waiting_tellers_keep_their_order() -> None:
    seen: list[Any] = []
    gate = anyio.Event()
    async with Supervisor("root") as root:
        ref = await root.spawn(lambda: Recorder(seen, gate), name="slow", mailbox=1)
        await ref.tell(Note(0))
        await settle()
        async with anyio.create_task_group() as tasks:
            for number in range(1, 6):
                tasks.start_soon(ref.tell, Note(number))
                await settle()
            assert ref.statistics().queued == 1
            with pytest.raises(MailboxFull):
                ref.post(Note(9))
            gate.set()
        await ref.ask(Double(0))
    assert [note.number for note in seen] == [0, 1, 2, 3, 4, 5, 0]


async def test_a_cancelled_tell_was_not_sent_and_gives_its_place_on() -> None:
    seen: list[Any] = []
    gate = anyio.Event()
    async with Supervisor("root") as root:
        ref = await root.spawn(lambda: Recorder(seen, gate), name="slow", mailbox=1)
        await ref.tell(Note(0))
        await settle()
        await ref.tell(Note(1))
        async with anyio.create_task_group() as tasks:
            with anyio.move_on_after(0):
                await ref.tell(Note(2))
            tasks.start_soon(ref.tell, Note(3))
            await settle()
            gate.set()
        await ref.ask(Double(0))
    assert [note.number for note in seen] == [0, 1, 3, 0]


async def test_a_late_answer_is_dropped() -> None:
    seen: list[Any] = []
    async with Supervisor("root") as root:
        ref = await root.spawn(lambda: Recorder(seen), name="recorder")
        with anyio.move_on_after(0) as limit:
            await ref.ask(Later())
        assert limit.cancelled_caught
        await ref.tell(Note(1))  # answers it, too late
        assert await ref.ask(Double(2)) == 4
        assert ref.statistics().restarts == 0


async def test_an_answer_goes_to_whoever_asked_without_waiting() -> None:
    loop = asyncio.get_running_loop()
    gate = anyio.Event()
    async with Supervisor("test") as supervisor:
        ref = await supervisor.spawn(lambda: Recorder([], gate), name="a", mailbox=2)
        doubled, refused = loop.create_future(), loop.create_future()
        ref.ask_nowait(Double(4), doubled)
        await settle()  # it stands at the gate with the first
        ref.ask_nowait(Refuse(), refused)
        ref.post(Note(1))
        with pytest.raises(MailboxFull):
            ref.ask_nowait(Double(5), loop.create_future())
        assert not doubled.done()
        gate.set()
        assert await doubled == 8
        with pytest.raises(LookupError, match="not here"):
            await refused


@pytest.mark.parametrize("how", ["crashes", "ends", "has ended"])
async def test_who_asks_without_waiting_is_told_that_nobody_will_answer(how: str) -> None:
    gone = asyncio.get_running_loop().create_future()
    gate = anyio.Event()
    async with Supervisor("test") as supervisor:
        ref = await supervisor.spawn(lambda: Recorder([], gate), name="a", restart="temporary")
        if how == "has ended":
            await ref.stop()
        elif how == "crashes":
            ref.post(Crash())
        ref.ask_nowait(Double(4), gone)
        gate.set()
        if how == "ends":
            ref.stop_nowait()
        with pytest.raises(ActorDied):
            await gone


async def test_a_reply_knows_that_its_asker_has_gone() -> None:
    replies: list[Reply] = []

    class Keeper(Actor[Message]):
        async def receive(self, message: Message) -> None:
            replies.append(self.reply())

    async with Supervisor("root") as root:
        ref = await root.spawn(Keeper, name="keeper")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ref.ask, Later())
            await settle()
            assert not replies[0].cancelled
            tasks.cancel_scope.cancel()
        assert replies[0].cancelled


async def test_a_crash_fails_the_ask_at_hand_with_its_cause() -> None:
    class Breaks(Actor[Message]):
        async def receive(self, message: Message) -> None:
            raise ZeroDivisionError("by zero")

    async with Supervisor("root") as root:
        ref = await root.spawn(Breaks, name="breaks")
        with pytest.raises(ActorDied, match="'breaks' ended before it answered") as caught:
            await ref.ask(Double(1))
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert ref.statistics().restarts == 1


async def test_a_crash_fails_every_ask_taken_and_keeps_what_is_queued() -> None:
    seen: list[Any] = []
    outcomes: dict[int, Any] = {}
    gate = anyio.Event()

    class Holds(Actor[Message]):
        async def receive(self, message: Message) -> Any:
            seen.append(message)
            match message:
                case Later():
                    self.reply()
                case Crash():
                    await gate.wait()
                    raise ValueError("told to")
                case Double(number):
                    return number
                case _:
                    pass
            return None

    async with Supervisor("root") as root:
        ref = await root.spawn(Holds, name="holds")

        async def ask(key: int, message: Ask[int]) -> None:
            try:
                outcomes[key] = await ref.ask(message)
            except ActorDied as died:
                outcomes[key] = died.__cause__

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, 0, Later())
            tasks.start_soon(ask, 1, Later())
            await settle()
            await ref.tell(Crash())
            tasks.start_soon(ask, 2, Double(5))
            await settle()
            gate.set()
    assert isinstance(outcomes[0], ValueError)
    assert isinstance(outcomes[1], ValueError)
    assert outcomes[2] == 5


async def test_what_is_sent_after_the_end_is_a_dead_letter_and_an_ask_raises() -> None:
    letters: list[DeadLetter] = []
    async with Supervisor("root", dead_letter=letters.append) as root:
        ref = await root.spawn(lambda: Recorder([]), name="gone")
        await ref.stop()
        await ref.tell(Note(1))
        ref.post(Note(2))
        with pytest.raises(ActorDied, match="'gone'"):
            await ref.ask(Double(1))
        assert root.dead_letters == 2
        assert ref.statistics().dead_letters == 2
    assert [(letter.name, letter.message.number) for letter in letters] == [("gone", 1), ("gone", 2)]


async def test_what_is_queued_at_the_end_is_dead_and_waiting_tellers_go_on() -> None:
    letters: list[DeadLetter] = []
    gate = anyio.Event()
    async with Supervisor("root", dead_letter=letters.append) as root:
        ref = await root.spawn(lambda: Recorder([], gate), name="slow", mailbox=1)
        await ref.tell(Note(0))
        await settle()
        await ref.tell(Note(1))
        died: list[ActorDied] = []

        async def ask() -> None:
            with pytest.raises(ActorDied) as caught:
                await ref.ask(Double(1))
            died.append(caught.value)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ref.tell, Note(2))
            tasks.start_soon(ask)
            await settle()
            ref.stop_nowait()
            gate.set()
        assert len(died) == 1
    assert [letter.message.number for letter in letters] == [1, 2]


async def test_a_dead_letter_callback_can_make_the_block_fail() -> None:
    def fail(letter: DeadLetter) -> None:
        raise letter

    with pytest.raises(DeadLetter, match="Note for 'gone' reached nobody"):
        async with Supervisor("root", dead_letter=fail) as root:
            ref = await root.spawn(lambda: Recorder([]), name="gone")
            await ref.stop()
            ref.post(Note(1))


async def test_an_actor_can_take_by_the_batch() -> None:
    batches: list[int] = []

    class Batches(Actor[Message]):
        async def run(self, inbox: Inbox[Message]) -> None:
            assert inbox.drain() == []
            while True:
                batch = await inbox.batch(limit=3)
                batches.append(len(batch))
                for message, reply in batch:
                    if reply is not None:
                        assert isinstance(message, Double)
                        reply.answer(message.number)

    async with Supervisor("root") as root:
        ref = await root.spawn(Batches, name="batches")
        await settle()
        for number in range(7):
            ref.post(Note(number))
        assert await ref.ask(Double(5)) == 5
    assert batches == [3, 3, 2]


async def test_what_an_actor_discards_is_no_dead_letter() -> None:
    letters: list[DeadLetter] = []
    begun = anyio.Event()

    class Leaving(Actor[Message]):
        async def run(self, inbox: Inbox[Message]) -> None:
            begun.set()
            try:
                await anyio.sleep_forever()
            finally:
                inbox.discard()

    async def asks(ref: Ref[Any]) -> None:
        with pytest.raises(ActorDied):
            await ref.ask(Double(5))

    async with Supervisor("root", grace=0, dead_letter=letters.append) as root, anyio.create_task_group() as group:
        ref = await root.spawn(Leaving, name="leaving", mailbox=2)
        await begun.wait()
        ref.post(Note(1))
        group.start_soon(asks, ref)
        group.start_soon(ref.tell, Note(2))  # waits for room
        await settle()
        await ref.stop()
    assert ref.statistics().taken == 2
    assert [letter.message for letter in letters] == [Note(2)]


async def test_get_takes_one_and_a_cancelled_get_loses_nothing() -> None:
    seen: list[int] = []

    class Impatient(Actor[Note]):
        async def run(self, inbox: Inbox[Note]) -> None:
            while len(seen) < 500:
                with anyio.move_on_after(0):
                    message, reply = await inbox.get()
                    assert reply is None
                    seen.append(message.number)
                await anyio.lowlevel.checkpoint()

    async with Supervisor("root") as root:
        ref = await root.spawn(Impatient, name="impatient", restart="temporary")
        for number in range(500):
            await ref.tell(Note(number))
        await ref.join()
    assert seen == list(range(500))


async def test_drain_wants_a_limit_of_at_least_one() -> None:
    class Wrong(Actor[Note]):
        async def run(self, inbox: Inbox[Note]) -> None:
            inbox.drain(0)

    async with Supervisor("root") as root:
        ref = await root.spawn(Wrong, name="wrong", restart="temporary")
        with pytest.raises(ActorDied, match="limit is 0; it must be at least 1"):
            await ref.ask(Double(1))


async def test_two_tasks_cannot_wait_at_one_inbox() -> None:
    class Crowd(Actor[Note]):
        async def run(self, inbox: Inbox[Note]) -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(inbox.get)
                tasks.start_soon(inbox.get)

    async with Supervisor("root") as root:
        ref = await root.spawn(Crowd, name="crowd", restart="temporary")
        await ref.join()
        with pytest.raises(ActorDied) as caught:
            await ref.ask(Double(1))
    assert isinstance(caught.value.__cause__, ExceptionGroup)
    assert caught.value.__cause__.subgroup(lambda error: "two tasks wait at the inbox of 'crowd'" in str(error))


async def test_an_actor_that_posts_to_itself_lets_others_run() -> None:
    class Spinner(Actor[Note]):
        async def receive(self, message: Note) -> None:
            self.ref.post(message)

    async with Supervisor("root") as root:
        spinner = await root.spawn(Spinner, name="spinner")
        await spinner.tell(Note(0))
        other = await root.spawn(lambda: Recorder([]), name="other")
        assert await other.ask(Double(2)) == 4


async def test_a_message_without_a_handler_is_a_crash() -> None:
    async with Supervisor("root") as root:
        ref = await root.spawn(Actor[Message], name="plain")
        with pytest.raises(ActorDied, match="Actor handles no Double"):
            await ref.ask(Double(1))


async def test_an_inbox_of_a_past_life_takes_nothing() -> None:
    inboxes: list[Inbox[Message]] = []
    seen: list[Any] = []

    class Leaky(Recorder):
        async def run(self, inbox: Inbox[Message]) -> None:
            inboxes.append(inbox)
            await super().run(inbox)

    async with Supervisor("root") as root:
        ref = await root.spawn(lambda: Leaky(seen), name="leaky")
        await ref.tell(Crash())
        await ref.ask(Double(1))
        ref.post(Note(5))
        with pytest.raises(Stopped):
            inboxes[0].drain()
        await ref.ask(Double(1))
    assert Note(5) in seen


class Forward(Actor[Message]):
    """Asks the next one, whatever it is asked."""

    def __init__(self, following: list[Ref[Message]]) -> None:
        self.following = following

    async def receive(self, message: Message) -> Any:
        assert isinstance(message, Double)
        return await self.following[0].ask(message) if self.following else message.number


async def test_debug_mode_raises_on_a_cycle_of_asks() -> None:
    async with Supervisor("root", debug=True) as root:
        following: list[Ref[Message]] = []
        first = await root.spawn(lambda: Forward(following), name="first")
        second = await root.spawn(lambda: Forward([first]), name="second")
        following.append(second)
        with pytest.raises(ActorDied) as caught:
            await first.ask(Double(1))
        cause = caught.value.__cause__
        assert isinstance(cause, ActorDied)
        assert isinstance(cause.__cause__, AskCycle)
        assert cause.__cause__.names == ["first", "second", "first"]


async def test_debug_mode_lets_a_pipeline_pass() -> None:
    async with Supervisor("root", debug=True) as root:
        last = await root.spawn(lambda: Forward([]), name="last")
        first = await root.spawn(lambda: Forward([last]), name="first")
        assert await first.ask(Double(3)) == 3
        assert await last.ask(Double(4)) == 4


async def test_debug_mode_sees_a_cycle_through_an_actor_that_takes_by_the_batch() -> None:
    class Selfish(Actor[Message]):
        async def run(self, inbox: Inbox[Message]) -> None:
            message, _ = await inbox.get()
            assert isinstance(message, Double)
            await self.ref.ask(message)

    async with Supervisor("root", debug=True) as root:
        ref = await root.spawn(Selfish, name="selfish")
        with pytest.raises(ActorDied) as caught:
            await ref.ask(Double(1))
        assert isinstance(caught.value.__cause__, AskCycle)


async def test_statistics_count() -> None:
    gate = anyio.Event()
    async with Supervisor("root") as root:
        ref = await root.spawn(lambda: Recorder([], gate), name="slow", mailbox=5)
        for number in range(3):
            await ref.tell(Note(number))
        await settle()
        statistics = ref.statistics()
        gate.set()
        assert (statistics.name, statistics.bound, statistics.queued, statistics.taken) == ("slow", 5, 2, 1)
        assert (statistics.restarts, statistics.dead_letters, statistics.ended) == (0, 0, False)
        assert [one.name for one in root.statistics()] == ["slow"]
    assert ref.statistics().ended


async def test_messages_cross_a_wire_by_their_class_names() -> None:
    union = Note | Crash
    encoded = msgspec.msgpack.encode(Note(3))
    assert msgspec.msgpack.decode(encoded, type=union) == Note(3)
