"""A nested supervisor, as the actor its parent sees."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Self

from .actor import Actor
from .errors import Stopped
from .inbox import Inbox
from .message import Message

if TYPE_CHECKING:
    from .supervisor import Supervisor

__all__ = ["Branch"]


class Branch(Actor[Message]):
    """Be one life of a nested supervisor: open it, wait for its failure or a stop, close it."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    async def __aenter__(self) -> Self:
        await self._supervisor.open()
        return self

    async def run(self, inbox: Inbox[Message]) -> None:
        self._supervisor.when_failed(inbox.stop)
        try:
            while True:
                await inbox.get()
        except Stopped:
            if self._supervisor.failure is not None:
                raise self._supervisor.failure from self._supervisor.failure.__cause__
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._supervisor.close(graceful=not isinstance(error, asyncio.CancelledError))
