"""A program that runs while somebody reads it: left to itself, or owned by a block."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

import anyio

from ..actors.core import Ref
from ..actors.errors import Aborted
from .crossing import await_in, wait_in
from .house import HOUSE
from .performer import Call, Performer
from .state import ProgramState
from .stream import Stream

__all__ = ["Running", "start"]


async def start(call: Call, stream: Stream) -> Ref[Any]:
    """Let a program run, in its backend's loop, and give who runs its body; cancelled, it leaves nothing behind."""
    try:
        await stream.start()  # before its performer, so that a backend that closes stops the performer first
        performer = await call.backend.programs.spawn(
            lambda: Performer(call, stream), name=f"{call.name} (body)", restart="temporary"
        )
    except BaseException as error:
        stream.cancel_nowait(error if isinstance(error, Exception) else Aborted(f"{stream.name} was cancelled"))
        raise
    if not stream.gone:
        stream.performer = performer
    return performer


class Running:
    """Run a program for the length of a block, `async with` or `with`; leaving the block cancels what still runs.

    The block gets the state at once, to read while the program runs.  If the block ends without an error, but the
    program had failed and nobody has seen it, its error is raised behind the block.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stream: Stream | None = None
        self._performer: Ref[Any] | None = None

    async def __aenter__(self) -> ProgramState:
        self._loop = loop = await HOUSE.home(self._call.backend)
        try:
            return await await_in(loop, self._start)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await await_in(loop, self._end)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None
        failure: BaseException | None = None
        with anyio.CancelScope(shield=True):
            failure = await await_in(self._loop, self._end)
        if error is None and failure is not None:
            raise failure

    def __enter__(self) -> ProgramState:
        self._loop = loop = HOUSE.home_blocking(self._call.backend)
        try:
            return wait_in(loop, self._start, "async with program.astream(...)")
        except BaseException:
            if self._stream is not None:
                self._stream.request_cancel()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None
        failure = wait_in(self._loop, self._end, "async with program.astream(...)")
        if error is None and failure is not None:
            raise failure

    async def _start(self) -> ProgramState:
        if self._stream is not None:
            raise RuntimeError("this program was run already; make another")
        self._stream = stream = self._call.open()
        self._performer = await start(self._call, stream)
        return ProgramState(stream, inside=False)

    async def _end(self) -> BaseException | None:
        """Cancel what still runs and wait until nothing of it is left; give an error that nobody has seen."""
        stream = self._stream
        if stream is None:
            return None
        failure = stream.error if stream.over and not stream.seen_outside else None
        stream.cancel_nowait(Aborted(f"{stream.name} was cancelled: the block it ran for was left"))
        if self._performer is not None:
            await self._performer.stop()
        await stream.left()
        return failure
