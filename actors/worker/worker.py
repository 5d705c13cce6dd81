"""The worker: weights, KV tensors and rows behind a mailbox, in a thread beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.to_thread

from ..core import Actor, MailboxFull, Message
from ..grammar import GrammarCache
from ..messages import Reset, Step, StepDone, ToWorker, WorkerStatistics
from .build import build_runner
from .options import Describe, WorkerDescription, WorkerOptions
from .thread import WorkerThread

__all__ = ["Worker"]


class ThreadFailed(Message, frozen=True):
    """Told by the worker's thread to its actor: nothing runs any more."""


class Worker(Actor[ToWorker | Describe | ThreadFailed]):
    """Run steps, one after the other, and report each result.

    `receive` only queues a step, so two can wait while one runs.  report: called from the worker's thread with each
    StepDone.  Starting loads the model and raises ValueError if it cannot be loaded.  What breaks in a step ends the
    thread and crashes this actor with that cause: KV and rows are in doubt then, and a fresh worker has neither.
    """

    def __init__(
        self, options: WorkerOptions, report: Callable[[StepDone], None], *, grammars: GrammarCache | None = None
    ) -> None:
        self._thread = WorkerThread(lambda: build_runner(options, grammars), report, self._on_failure)
        self._failure: BaseException | None = None
        self._description: WorkerDescription

    async def __aenter__(self) -> Self:
        self._thread.start()
        try:
            self._description = await asyncio.shield(asyncio.wrap_future(self._thread.ready))
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._end()

    async def receive(self, message: ToWorker | Describe | ThreadFailed) -> Any:
        if self._failure is not None:
            raise self._failure
        match message:
            case Step():
                self._thread.submit(message)
            case Reset():
                self._thread.reset()
            case WorkerStatistics():
                return self._thread.statistics()
            case Describe():
                return self._description
            case ThreadFailed():
                return None  # of a life before this one
        return None

    def _on_failure(self, error: BaseException) -> None:
        self._failure = error
        try:
            self.ref.post(ThreadFailed())
        except MailboxFull:  # then a message is there already, and whichever comes first raises
            return

    async def _end(self) -> None:
        self._thread.end()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._thread.join)
