"""A bounded deque with one waiter: the queue between an actor and everybody who writes to it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterator
from operator import length_hint
from threading import get_ident
from typing import TYPE_CHECKING, Any

from .errors import DeadLetter, MailboxFull
from .message import Down
from .reply import Reply

if TYPE_CHECKING:
    from .home import Home

__all__ = ["STREAK", "Entry", "Mailbox", "Ticket"]

# A message that was told, or the Reply of one that was asked, which holds it: a pair for each would cost a tuple.
Entry = Any


# Far below what tickets still give back, so that one comparison on the way in tells full and closed alike.
CLOSED = -(1 << 60)

# After this many messages without waiting an actor lets the rest of the loop run: one that posts to itself, or whose
# queue never runs dry, must not starve the others.
STREAK = 256


class Ticket:
    """One place in the line for room; granted, it is the right to put exactly one message."""

    __slots__ = ("future", "granted", "thread")

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.thread = get_ident()
        self.granted = False

    def grant(self) -> None:
        self.granted = True
        if get_ident() == self.thread:
            self._wake()
            return
        try:
            self.future.get_loop().call_soon_threadsafe(self._wake)
        except RuntimeError:  # its loop is closed; whoever waited has withdrawn or will never run again
            return

    def _wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class Mailbox:
    """Hold an actor's messages over all its lives.

    # reserved = limit - places      granted to tickets, not yet put
    # len(data) <= places            while open; a closed mailbox has less than no places
    # room is not empty  =>  len(data) == places
    # asks: sent and unanswered, in the data lane or taken out of it

    Everything here belongs to the home thread, but for `admit_foreign`.
    """

    __slots__ = (
        "alert", "asks", "cause", "closed", "control", "data", "dead_letters", "home", "inbound", "limit",
        "name", "places", "reason", "room", "streak", "taken", "thread", "urgent", "waiter",
    )  # fmt: skip

    def __init__(self, name: str, bound: int, home: Home) -> None:
        self.name = name
        self.limit = bound
        self.places = bound
        self.home = home
        self.thread = home.thread
        self.data: deque[Entry] = deque()
        self.control: deque[Down] | None = None
        self.asks: set[Reply] = set()
        self.room: OrderedDict[Ticket | _Parked, None] | None = None
        self.inbound = 0  # accepted from other threads, not yet put; guarded by home.lock
        self.taken = 0
        self.streak: Iterator[int] | None = None  # steps once a message taken by Actor.run, cheaper than counting
        self.dead_letters = 0
        self.urgent = False  # control messages wait, or the life at hand is to stop
        self.alert = home.debug  # urgent, or somebody waits for room, or debug mode: one look tells there is more to do
        self.waiter: asyncio.Future[None] | None = None
        self.closed = False
        self.cause: BaseException | None = None
        self.reason = "stopped"

    def begin_streak(self) -> Iterator[int]:
        """Return an iterator of STREAK steps; each step counts as one message taken, until `end_streak`."""
        self.end_streak()
        self.streak = streak = iter(range(STREAK))
        return streak

    def end_streak(self) -> None:
        self.taken = self.count_taken()
        self.streak = None

    def count_taken(self) -> int:
        """Count the messages taken so far, in all lives."""
        return self.taken if self.streak is None else self.taken + STREAK - length_hint(self.streak)

    def put(self, entry: Entry) -> None:
        """Append an entry whose room is certain; a dead letter if the mailbox is closed."""
        if self.closed:
            self.refuse(entry)
            return
        self.data.append(entry)
        if self.waiter is not None:
            self.wake()

    def wake(self) -> None:
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def put_control(self, down: Down) -> None:
        """Append to the control lane, which has no bound: at most one message for each actor watched."""
        if self.closed:
            return
        if self.control is None:
            self.control = deque()
        self.control.append(down)
        self.urgent = self.alert = True
        self.wake()

    def refuse(self, entry: Entry) -> None:
        """Turn away an entry: fail its ask, or bury it as a dead letter."""
        if isinstance(entry, Reply):
            self.asks.discard(entry)
            entry.abandon(self.cause, self.reason)
        else:
            self.dead_letters += 1
            self.home.bury(DeadLetter(self.name, entry))

    def check_room(self) -> None:
        """Raise MailboxFull if not one message more fits now."""
        if not self.closed and len(self.data) >= self.places:
            raise MailboxFull(self.name, self.limit)

    async def wait_for_room(self) -> None:
        """Reserve one place in the home thread, waiting in line; a closed mailbox always has room to refuse."""
        if self.closed:
            self.places -= 1
            return
        ticket = Ticket()
        self.enter_line(ticket)
        try:
            await ticket.future
        except BaseException:
            self.leave_line(ticket)
            raise

    def enter_line(self, ticket: Ticket | _Parked) -> None:
        if self.room is None:
            self.room = OrderedDict()
        self.room[ticket] = None
        self.alert = True
        self.grant()

    def leave_line(self, ticket: Ticket) -> None:
        """Give a ticket back, granted or not."""
        if ticket.granted:
            ticket.granted = False
            self.places += 1
            self.grant()
        elif self.room is not None:
            self.room.pop(ticket, None)

    def grant(self) -> None:
        """Give free places to those first in line."""
        while self.room and (self.closed or len(self.data) < self.places):
            ticket, _ = self.room.popitem(last=False)
            self.places -= 1
            if isinstance(ticket, Ticket):
                ticket.grant()
            else:
                self.put_reserved(ticket.entry)

    def put_reserved(self, entry: Entry) -> None:
        """Put an entry in the place reserved for it."""
        self.places += 1
        self.put(entry)

    def admit_foreign(self, entry: Entry) -> bool:
        """Take an entry from another thread if there is room for it; what finds no home any more is refused."""
        with self.home.lock:
            if not self.closed and (self.room or len(self.data) + self.inbound >= self.places):
                return False
            self.inbound += 1
            if self.home.call_locked(self._land, entry):
                return True
            self.inbound -= 1
        self.refuse(entry)
        return True

    def _land(self, entry: Entry) -> None:
        with self.home.lock:
            self.inbound -= 1
        if isinstance(entry, Reply):
            self.asks.add(entry)
        if self.closed or len(self.data) < self.places:
            self.put(entry)
        else:  # the home thread filled the last place meanwhile
            self.enter_line(_Parked(entry))

    def abandon_taken(self, cause: BaseException | None, reason: str) -> None:
        """Fail every ask that was taken out and not answered; queued ones stay for the next life."""
        if not self.asks:
            return
        queued = {entry for entry in self.data if isinstance(entry, Reply)}
        if self.room:
            queued.update(one.entry for one in self.room if isinstance(one, _Parked) and isinstance(one.entry, Reply))
        for reply in [reply for reply in self.asks if reply not in queued]:
            self.asks.discard(reply)
            reply.abandon(cause, reason)

    def close(self, cause: BaseException | None, reason: str) -> None:
        """End for good: refuse what is queued, let every teller through to be refused."""
        self.abandon_taken(cause, reason)
        self.closed, self.cause, self.reason = True, cause, reason
        self.places = CLOSED
        self.control = None
        self.grant()
        entries = list(self.data)
        self.data.clear()
        for entry in entries:
            self.refuse(entry)


class _Parked:
    """An entry from another thread that waits in line itself, because its sender has gone on."""

    __slots__ = ("entry",)

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
