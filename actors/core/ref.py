"""An actor's address."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from .message import Ask, Down, Message
from .reply import Asker
from .statistics import Statistics

__all__ = ["Ref"]

M_contra = TypeVar("M_contra", bound=Message, contravariant=True)
R = TypeVar("R")


class Ref(ABC, Generic[M_contra]):
    """Reach an actor, wherever it lives: an address, not a life, so it survives restarts.

    A way of delivery is a class derived from this one; `LocalRef` delivers within this process, from any of its
    threads. All of it may be called from any thread; the awaited ones from any asyncio loop.
    """

    __slots__ = ("name",)

    name: str

    @abstractmethod
    async def tell(self, message: M_contra) -> None:
        """Send a message, waiting for room. If it raises, the message was not sent."""

    @abstractmethod
    def post(self, message: M_contra) -> None:
        """Send a message at once. Raises MailboxFull if there is no room."""

    @abstractmethod
    async def ask(self, message: Ask[R]) -> R:
        """Send a message, waiting for room, and wait for its answer.

        Raises what the actor gave to `Reply.fail`, or ActorDied if it ended or crashed before it answered.
        Cancelled, for instance by `fail_after`, it drops the late answer; the message may still be handled.
        """

    @abstractmethod
    def ask_nowait(self, message: Ask[Any], asker: Asker) -> None:
        """Send a message at once; `asker`, of this thread's loop, is given the answer, or what `ask` would raise.

        Raises MailboxFull if there is no room.
        """

    @abstractmethod
    def watch(self, watcher: Ref[Any]) -> None:
        """Tell `watcher` Down, on its control lane, when this actor ends for good; at once if it has."""

    @abstractmethod
    def notify(self, down: Down) -> None:
        """Put Down on this actor's control lane: for the library."""

    @abstractmethod
    def stop_nowait(self) -> None:
        """Ask the actor to end for good: after the message at hand, before any other; cancelled after the grace."""

    async def stop(self) -> None:
        """Do what `stop_nowait` does, and wait until it has ended."""
        self.stop_nowait()
        await self.join()

    @abstractmethod
    async def join(self) -> None:
        """Wait until the actor has ended for good."""

    @abstractmethod
    def statistics(self) -> Statistics:
        """Count what it has done so far."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"
