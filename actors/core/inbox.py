"""What an actor sees of its mailbox, during one life."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar, cast

from .cycles import enter_ask
from .errors import Stopped
from .mailbox import Entry, Mailbox
from .message import Message
from .reply import Reply

__all__ = ["Inbox"]

M = TypeVar("M", bound=Message)

# After this many messages without waiting, let the rest of the loop run: an actor that posts to itself, or whose
# queue never runs dry, must not starve the others.
STREAK = 128


class Inbox(Generic[M]):
    """Take messages out; control messages come first. Every method raises Stopped once the actor is to stop.

    One task at a time may wait here.
    """

    __slots__ = ("_loop", "_streak", "mailbox", "over", "stopping")

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        self.stopping = False
        self.over = False
        self._loop = mailbox.home.loop
        self._streak = 0

    async def get(self) -> tuple[M, Reply | None]:
        """Wait for one message; its reply is None for a tell."""
        return (await self.batch(1))[0]

    async def batch(self, limit: int | None = None) -> list[tuple[M, Reply | None]]:
        """Wait for at least one message, then take all there are, at most `limit`."""
        if self._streak >= STREAK:  # before anything is taken: a cancellation here loses no message
            self._streak = 0
            await asyncio.sleep(0)
        while not (taken := self.drain(limit)):
            await self.wait()
        self._streak += len(taken)
        return taken

    def drain(self, limit: int | None = None) -> list[tuple[M, Reply | None]]:
        """Take what is there now, at most `limit`; it may be nothing."""
        mailbox = self.mailbox
        if limit is not None and limit < 1:
            raise ValueError(f"limit is {limit}; it must be at least 1, or None for all")
        taken: list[Entry] = []
        while mailbox.urgent or self.over:
            taken.append(self.take_control())
            if len(taken) == limit:
                return cast("list[tuple[M, Reply | None]]", taken)
        data = mailbox.data
        if limit is None or limit - len(taken) >= len(data):
            mailbox.taken += len(data)
            taken.extend(data)
            data.clear()
        else:
            mailbox.taken += limit - len(taken)
            taken.extend([data.popleft() for _ in range(limit - len(taken))])
        if mailbox.room:
            mailbox.grant()
        if mailbox.home.debug and taken:
            enter_ask(mailbox, [reply for _, reply in taken])
        return cast("list[tuple[M, Reply | None]]", taken)

    def take_control(self) -> Entry:
        """Take a control message, to be called when the mailbox is urgent; raises Stopped if that is the reason."""
        if self.stopping or self.over:
            raise Stopped
        mailbox = self.mailbox
        assert mailbox.control
        message = mailbox.control.popleft()
        mailbox.urgent = bool(mailbox.control)
        mailbox.taken += 1
        return message, None

    async def wait(self) -> None:
        """Wait until something is there."""
        mailbox = self.mailbox
        if mailbox.waiter is not None:
            raise RuntimeError(f"two tasks wait at the inbox of {mailbox.name!r}; let one take and hand on")
        mailbox.waiter = future = self._loop.create_future()
        self._streak = 0
        try:
            await future
        finally:
            if mailbox.waiter is future:
                mailbox.waiter = None

    def stop(self) -> None:
        """Let the next look at this inbox raise Stopped, and wake whoever waits here."""
        self.stopping = True
        if not self.over:
            self.mailbox.urgent = True
            self.mailbox.wake()

    def end(self) -> None:
        """Shut this life out of the mailbox."""
        self.over = True
        self.mailbox.urgent = bool(self.mailbox.control)
        self.mailbox.wake()
