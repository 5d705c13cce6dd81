"""What an actor sees of its mailbox, during one life."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from .cycles import enter_ask
from .errors import Stopped
from .mailbox import STREAK, Entry, Mailbox
from .message import Down, Message
from .reply import Reply

__all__ = ["Inbox"]

M = TypeVar("M", bound=Message)


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
        while (mailbox.urgent or self.over) and len(taken) != limit:
            taken.append(self._take_control())
        data = mailbox.data
        if limit is None or limit - len(taken) >= len(data):
            taken.extend(data)
            data.clear()
        else:
            taken.extend([data.popleft() for _ in range(limit - len(taken))])
        mailbox.taken += len(taken)
        if mailbox.alert:
            self._look_after([entry for entry in taken if type(entry) is Reply])
        return [(entry.message, entry) if type(entry) is Reply else (entry, None) for entry in taken]

    def discard(self) -> None:
        """Drop what is there, also once the actor is to stop; dropped messages are no dead letters, asks fail."""
        mailbox = self.mailbox
        mailbox.taken += len(mailbox.data)
        mailbox.data.clear()
        mailbox.grant()

    def take(self) -> Entry | None:
        """Take one entry from the mailbox, which is alert; None if there is none. For `Actor.run`."""
        mailbox = self.mailbox
        if self.stopping or self.over:
            mailbox.taken -= 1  # the step of the streak that led here takes nothing
            raise Stopped
        if mailbox.urgent:
            entry = self._take_control()
        elif mailbox.data:
            entry = mailbox.data.popleft()
        else:
            entry = None
        self._look_after([entry] if type(entry) is Reply else [])
        return entry

    def _take_control(self) -> Down:
        if self.stopping or self.over:
            raise Stopped
        mailbox = self.mailbox
        assert mailbox.control
        message = mailbox.control.popleft()
        mailbox.urgent = bool(mailbox.control)
        return message

    def _look_after(self, asks: list[Reply]) -> None:
        """Do what the alert asks for, after something was taken, and take the alert back if that was all."""
        mailbox = self.mailbox
        if mailbox.room:
            mailbox.grant()
        debug = mailbox.home.debug
        if debug:
            enter_ask(mailbox, asks)
        mailbox.alert = debug or mailbox.urgent or bool(mailbox.room)

    async def wait(self) -> None:
        """Wait until something is there."""
        mailbox = self.mailbox
        if mailbox.waiter is not None and not mailbox.waiter.done():
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
            self.mailbox.urgent = self.mailbox.alert = True
            self.mailbox.wake()

    def end(self) -> None:
        """Shut this life out of the mailbox."""
        self.over = True
        self.mailbox.end_streak()
        self.mailbox.urgent = bool(self.mailbox.control)
        self.mailbox.alert = True
        self.mailbox.wake()
