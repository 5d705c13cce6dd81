"""Delivery within a process: straight into the mailbox, or through its home's door from another thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

from .cycles import leave_ask
from .errors import MailboxFull
from .mailbox import Entry, Mailbox, Ticket
from .message import Ask, Down, Message
from .ref import Ref
from .reply import Asker, Reply
from .statistics import Statistics

if TYPE_CHECKING:
    from .child import Child

__all__ = ["LocalRef"]

M_contra = TypeVar("M_contra", bound=Message, contravariant=True)
R = TypeVar("R")


class LocalRef(Ref[M_contra]):
    """Reach an actor of this process. The asker's thread and loop need not be the actor's."""

    __slots__ = ("_child", "_mailbox")

    def __init__(self, child: Child, mailbox: Mailbox) -> None:
        self.name = mailbox.name
        self._child = child
        self._mailbox = mailbox

    async def tell(self, message: M_contra) -> None:
        mailbox = self._mailbox
        if mailbox.thread != get_ident():
            await self._send_foreign(message)
        elif len(mailbox.data) < mailbox.places:
            mailbox.data.append(message)
            if mailbox.waiter is not None:
                mailbox.wake()
        else:
            await mailbox.wait_for_room()
            mailbox.put_reserved(message)

    def post(self, message: M_contra) -> None:
        mailbox = self._mailbox
        if mailbox.thread != get_ident():
            if not mailbox.admit_foreign(message):
                raise MailboxFull(mailbox.name, mailbox.limit)
        elif len(mailbox.data) < mailbox.places:
            mailbox.data.append(message)
            if mailbox.waiter is not None:
                mailbox.wake()
        else:
            mailbox.check_room()
            mailbox.refuse(message)

    async def ask(self, message: Ask[R]) -> R:
        mailbox = self._mailbox
        thread = get_ident()
        at_home = thread == mailbox.thread
        loop = mailbox.home.loop if at_home else asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        reply = Reply(message, future, mailbox, thread)
        if mailbox.home.debug:
            reply.chain = leave_ask(mailbox)
        try:
            if at_home and len(mailbox.data) < mailbox.places:
                self._put_ask(reply)
            else:
                await self._send_ask(reply)
            return await future
        except asyncio.CancelledError:
            mailbox.asks.discard(reply)
            if not future.cancel() and not future.cancelled():
                future.exception()  # an error that came too late counts as seen
            raise

    def ask_nowait(self, message: Ask[Any], asker: Asker) -> None:
        mailbox, thread = self._mailbox, get_ident()
        reply = Reply(message, asker, mailbox, thread)
        if mailbox.home.debug:
            reply.chain = ()  # nobody stands still for it
        if mailbox.thread != thread:
            if not mailbox.admit_foreign(reply):
                raise MailboxFull(mailbox.name, mailbox.limit)
        elif len(mailbox.data) < mailbox.places:
            self._put_ask(reply)
        else:
            mailbox.check_room()
            mailbox.refuse(reply)

    def _put_ask(self, reply: Reply) -> None:
        """Put an ask, whose room is certain, into the mailbox."""
        mailbox = self._mailbox
        mailbox.asks.add(reply)
        mailbox.data.append(reply)
        if mailbox.waiter is not None:
            mailbox.wake()

    async def _send_ask(self, reply: Reply) -> None:
        """Put an ask from another thread, or once there is room."""
        mailbox = self._mailbox
        if mailbox.thread != get_ident():
            await self._send_foreign(reply)
            return
        await mailbox.wait_for_room()
        mailbox.asks.add(reply)
        mailbox.put_reserved(reply)

    async def _send_foreign(self, entry: Entry) -> None:
        mailbox, home = self._mailbox, self._mailbox.home
        if mailbox.admit_foreign(entry):
            return
        ticket = Ticket()
        if not home.call(mailbox.enter_line, ticket):
            mailbox.refuse(entry)
            return
        try:
            await ticket.future
        except BaseException:
            home.call(mailbox.leave_line, ticket)
            raise
        if not home.call(_put_granted, mailbox, entry):
            mailbox.refuse(entry)

    def watch(self, watcher: Ref[Any]) -> None:
        self._at_home(self._child.watch, watcher)

    def notify(self, down: Down) -> None:
        self._at_home(self._mailbox.put_control, down)

    def stop_nowait(self) -> None:
        self._at_home(self._child.request_stop)

    async def stop(self) -> None:
        if self._child.is_current_task():
            raise RuntimeError(f"actor {self.name!r} cannot wait for its own end; use stop_nowait")
        await super().stop()

    async def join(self) -> None:
        if self._mailbox.closed:
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def ended() -> None:
            try:
                loop.call_soon_threadsafe(_settle, future)
            except RuntimeError:  # the loop that waited is closed
                return

        joined = (lambda: _settle(future)) if get_ident() == self._mailbox.thread else ended
        self._at_home(self._child.when_ended, joined)
        try:
            await future
        finally:
            self._at_home(self._child.forget, joined)

    def statistics(self) -> Statistics:
        mailbox = self._mailbox
        return Statistics(
            name=mailbox.name,
            bound=mailbox.limit,
            queued=len(mailbox.data),
            taken=mailbox.count_taken(),
            restarts=self._child.restarts,
            dead_letters=mailbox.dead_letters,
            ended=mailbox.closed,
        )

    def _at_home(self, function: Callable[..., None], *arguments: Any) -> None:
        home = self._mailbox.home
        if get_ident() == home.thread or not home.call(function, *arguments):
            function(*arguments)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _put_granted(mailbox: Mailbox, entry: Entry) -> None:
    if isinstance(entry, Reply):
        mailbox.asks.add(entry)
    mailbox.put_reserved(entry)
