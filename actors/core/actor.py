"""What every actor derives from, and the loop that feeds it."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from .inbox import Inbox
from .message import Message
from .ref import Ref
from .reply import Reply

__all__ = ["Actor"]

M = TypeVar("M", bound=Message)


class Actor(Generic[M]):
    """Own some state and handle messages one at a time; nothing else touches the state.

    Give it to `Supervisor.spawn` as a factory: a restart makes a new object.
    """

    ref: Ref[M]
    """Its own address, set before `__aenter__`."""

    _asked: Reply | None = None

    async def __aenter__(self) -> Self:
        """Set up. What it raises fails the start, and `__aexit__` is then not called."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Clean up: also after a crash, and after a cancel, with the supervisor's `cleanup` seconds to wait in."""

    async def receive(self, message: M) -> Any:
        """Handle one message; what this returns answers an ask. What it raises is a crash."""
        raise TypeError(f"{type(self).__name__} handles no {type(message).__name__}: define receive, or run")

    async def run(self, inbox: Inbox[M]) -> None:
        """Handle messages until told to stop; override it to take them by the batch. Returning ends the actor."""
        mailbox = inbox.mailbox
        data = mailbox.data
        create_future = mailbox.home.loop.create_future
        receive = self.receive
        while True:
            for _ in mailbox.begin_streak():
                if mailbox.alert:
                    entry = inbox.take()
                elif data:
                    entry = data.popleft()
                else:
                    entry = None
                if entry is None:
                    mailbox.taken -= 1  # this step of the streak took nothing
                    mailbox.waiter = future = create_future()
                    await future
                elif type(entry) is not Reply:
                    await receive(entry)
                else:
                    self._asked = entry
                    answer = await receive(entry.message)
                    if self._asked is entry:
                        self._asked = None
                        entry.answer(answer)
            await asyncio.sleep(0)

    def reply(self) -> Reply:
        """Take over the ask at hand, to answer it later or to fail it; what receive returns is then not sent.

        Raises LookupError where there is none: for a tell, outside receive, or when taken over already.
        """
        reply, self._asked = self._asked, None
        if reply is None:
            raise LookupError(f"{type(self).__name__} has no ask at hand")
        return reply
