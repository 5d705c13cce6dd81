"""The way back from an actor to whoever asked it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

from .errors import ActorDied

if TYPE_CHECKING:
    from .mailbox import Mailbox

__all__ = ["Asker", "Reply"]

WAITING, ANSWERED, ABANDONED = range(3)


class Asker(Protocol):
    """What is given an answer; an asyncio future is one.  cancelled, done: whether it wants none any more."""

    def get_loop(self) -> asyncio.AbstractEventLoop: ...

    def cancelled(self) -> bool: ...

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, exception: Any, /) -> None: ...


class Reply:
    """Answer one ask, from any thread, now or later; an answer that comes too late is dropped.

    Made in the asker's task; in the mailbox it stands for its message. As long as it is unanswered it is among the
    mailbox's `asks`, so that a crash of the actor reaches every asker.
    """

    __slots__ = ("_asker", "_mailbox", "_state", "_thread", "chain", "message")

    chain: tuple[Mailbox, ...]
    """In debug mode only: the actors that wait for this answer."""

    def __init__(self, message: Any, asker: Asker, mailbox: Mailbox, thread: int) -> None:
        self.message = message
        self._asker = asker
        self._mailbox = mailbox
        self._thread = thread
        self._state = WAITING

    @property
    def cancelled(self) -> bool:
        """Whether the asker has stopped waiting."""
        return self._asker.cancelled()

    def answer(self, value: Any) -> None:
        """Give the asker its answer. Raises RuntimeError if this ask was answered before."""
        if self._take():
            asker = self._asker
            if get_ident() == self._thread:
                if not asker.done():
                    asker.set_result(value)
            else:
                self._send(_set_result, value)

    def fail(self, error: BaseException) -> None:
        """Raise an error at the asker; the actor lives on. Raises RuntimeError if this ask was answered before."""
        if self._take():
            self._raise(error)

    def abandon(self, cause: BaseException | None, reason: str) -> None:
        """Raise ActorDied at the asker, unless it was answered: for the library, when the actor ends."""
        if self._state == WAITING:
            self._state = ABANDONED
            self._raise(ActorDied(self._mailbox.name, cause, reason))

    def _take(self) -> bool:
        if self._state == WAITING:
            self._state = ANSWERED
            self._mailbox.asks.discard(self)
            return True
        if self._state == ANSWERED:
            raise RuntimeError(f"this ask of {self._mailbox.name!r} was answered before")
        return False  # abandoned: the actor that held it has died, its late answer is dropped

    def _raise(self, error: BaseException) -> None:
        if get_ident() == self._thread:
            _set_exception(self._asker, error)
        else:
            self._send(_set_exception, error)

    def _send(self, settle: Callable[[Asker, Any], None], value: Any) -> None:
        try:
            self._asker.get_loop().call_soon_threadsafe(settle, self._asker, value)
        except RuntimeError:  # the asker's loop is closed: nobody waits any more
            return


def _set_result(asker: Asker, value: Any) -> None:
    if not asker.done():
        asker.set_result(value)


def _set_exception(asker: Asker, error: BaseException) -> None:
    if not asker.done():
        asker.set_exception(error)
