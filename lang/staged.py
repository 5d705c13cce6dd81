"""The stream of a program that is one of many: it performs the body itself, so that most need no second task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

import anyio

from .body import Bodies
from .performer import Call, reason_to_end
from .state import ProgramState
from .stream import Stream
from .tracks import acting

__all__ = ["StagedStream"]


class Leaving(Protocol):
    """Whoever is told that a stream has left, and has what performs bodies in its loop."""

    bodies: Bodies

    def leave(self, staged: StagedStream) -> None: ...


class StagedStream(Stream):
    """Perform a plain body in the stream's own task, then execute what it said.

    Only once the body waits does a second task execute its steps beside it.
    """

    __slots__ = ("_acting", "_beside", "_body", "_called_off", "_crowd", "failure", "index")

    def __init__(self, call: Call, index: int, crowd: Leaving) -> None:
        """crowd: told once, when neither body nor stream nor branch is left; `failure` tells what the run raises."""
        super().__init__(call.name, call.backend, call.defaults)
        self.index = index
        self.failure: BaseException | None = None
        self._crowd: Leaving | None = crowd
        self._body: Callable[[], Any] | None = partial(call.body, ProgramState(self), *call.arguments, **call.keywords)
        self._acting: asyncio.Task[Any] | None = None  # performs the body
        self._beside: asyncio.Task[None] | None = None  # executes, while that waits
        self._called_off = False

    def call_off(self, error: BaseException) -> None:
        """End now, wherever the body waits."""
        self.cancel_nowait(error)
        if self._acting is not None:
            self._called_off = True
            self._acting.cancel()

    def interrupt(self) -> None:
        """Cancel what the body waits for, or, behind it, the step at hand."""
        if self._acting is None:
            super().interrupt()
        else:
            self._acting.cancel()

    def leave(self) -> None:
        """Have ended, body and all."""
        super().leave()
        crowd, self._crowd, self._body, self._beside = self._crowd, None, None, None
        if crowd is not None:
            if self.failure is None:
                self.failure = self.error
            crowd.leave(self)

    def _act(self) -> Awaitable[None] | None:
        """Give what performs the body, once."""
        body, self._body = self._body, None
        return None if body is None else self._perform(body)

    async def _perform(self, body: Callable[[], Any]) -> None:
        assert self._crowd is not None
        self._acting = task = self.task
        try:
            with acting(self.track):
                self.returned = await self._crowd.bodies.perform(body, self._go_on_beside)
            self.submit_end()
            if self._beside is not None:
                await asyncio.wait([self._beside])
        except Exception as error:
            self.failure = error
            self.break_off(error)
        except asyncio.CancelledError as error:
            self.break_off(reason_to_end(self.name, error))
            if not self._called_off:
                raise
            assert task is not None
            task.uncancel()
        except BaseException as error:  # for whoever waits for the batch: raised here, it would end the loop
            self.failure = error
            self.break_off(reason_to_end(self.name, error))
        finally:
            self._acting = None
            if self._beside is not None and not self._beside.done():
                with anyio.CancelScope(shield=True):
                    await asyncio.wait([self._beside])

    def _go_on_beside(self) -> None:
        self._beside = self.loop.create_task(self.run(), name=f"{self.name} (steps)")
