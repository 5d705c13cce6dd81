"""Running a program: its body, its stream, and what holds the two together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio

from ..actors.backend import Backend
from ..actors.core import Actor, Inbox, Message, Stopped
from ..actors.errors import Aborted
from .house import HOUSE
from .sampling_arguments import Defaults
from .state import ProgramState
from .stream import Stream
from .tracks import acting

__all__ = ["Call", "Performer", "play", "reason_to_end"]


class Call:
    """One call of a program: which body, with which arguments, on which backend, with which defaults."""

    __slots__ = ("arguments", "asynchronous", "backend", "body", "defaults", "keywords", "name")

    def __init__(
        self, body: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any], backend: Backend,
        defaults: Defaults, *, asynchronous: bool,
    ) -> None:  # fmt: skip
        self.body = body
        self.asynchronous = asynchronous
        self.name = getattr(body, "__name__", "program")
        self.arguments = arguments
        self.keywords = keywords
        self.backend = backend
        self.defaults = defaults

    def open(self) -> Stream:
        """Make the program's stream, in the loop where the backend lives."""
        return Stream(self.name, self.backend, self.defaults)


async def play(call: Call, stream: Stream) -> ProgramState:
    """Run a program to its end, in the backend's loop, and give its state; raises what the body or the stream raised.

    Cancelled, it leaves neither stream nor branch nor generation behind.
    """
    state = ProgramState(stream)
    try:
        if stream.supervisor is None:
            await stream.start()
        with acting(stream.track):
            if call.asynchronous:
                stream.returned = await call.body(state, *call.arguments, **call.keywords)
            else:
                body = partial(call.body, state, *call.arguments, **call.keywords)
                stream.returned = await HOUSE.bodies(stream.loop).perform(body)
        await stream.end_and_wait()
        stream.check()
    except BaseException as error:
        with anyio.CancelScope(shield=True):
            await stream.cancel_and_wait(reason_to_end(stream.name, error))
        raise
    return state


def reason_to_end(name: str, error: BaseException) -> Exception:
    """Say why a stream ends whose body was left by `error`."""
    if isinstance(error, Exception):
        return error
    if isinstance(error, asyncio.CancelledError):
        return Aborted(f"{name} was cancelled")
    reason = Aborted(f"{name}: its body raised {error!r}")  # as sys.exit() does
    reason.__cause__ = error
    return reason


class Performer(Actor[Message]):
    """Run a program for somebody who does not wait for it: a run with stream=True."""

    def __init__(self, call: Call, stream: Stream) -> None:
        self._call = call
        self._stream = stream

    async def run(self, inbox: Inbox[Message]) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._play, group.cancel_scope)
            try:
                await inbox.get()
            except Stopped:
                group.cancel_scope.cancel()

    async def _play(self, scope: anyio.CancelScope) -> None:
        try:
            await play(self._call, self._stream)
        except SystemExit:
            # Every reader of the state gets Aborted, whose cause it is; the loop is not this body's to end.
            return
        except Exception as error:
            if self._stream.error is not error:  # else every reader of the state gets it from there
                raise
        finally:
            self._stream.performer = None
            scope.cancel()
