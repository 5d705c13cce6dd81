"""An answer: one generation as its asker reads it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Protocol, Self

from .completion import Completion
from .core import MailboxFull
from .errors import Overloaded
from .healing import Healing
from .leaving import leave
from .messages import Delta, Finish, Submit
from .reader import Reader
from .wires import Wires

__all__ = ["Answer", "Prepare"]


class Prepare(Protocol):
    """Give what to submit, its reader included; called once, when somebody begins to read."""

    async def __call__(self, *, patient: bool) -> tuple[Submit, Healing | None]: ...


class Answer(AsyncGenerator[Delta, None]):
    """Ask once somebody reads, give deltas as they come, and abort the request as soon as nobody reads on.

    It ends as a generator does: behind its last delta, an error, a wait that was cancelled, or `aclose`; or once it is
    dropped.  It is none, because a generator's frame would be one more to go through for each token.
    """

    __slots__ = ("_healing", "_over", "_patient", "_prepare", "_reader", "_recorded", "_wires")

    def __init__(self, wires: Wires, prepare: Prepare) -> None:
        self._wires = wires
        self._prepare: Prepare | None = prepare
        self._reader: Reader | None = None  # from when it is asked until it is over
        self._healing: Healing | None = None
        self._recorded = False
        self._patient = False
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        try:
            reader = self._reader or await self._ask()
            while (delta := reader.news) is None:
                if reader.over:
                    raise reader.end()
                await reader.sleep()
            if reader.several is None:  # as with one who keeps up
                reader.news = None
            else:
                delta = reader.take()
            if self._healing is not None:
                delta = await self._healing.read(delta)
        except BaseException:
            if self._reader is None or self._reader.callback is None:  # else another task reads on
                self._end(None)
            raise
        if delta.finish is not None:
            self._end(delta.finish)
        return delta

    async def whole(self) -> Completion:
        """Give all of it once it is there.  Whoever waits here is woken once, and not by every token."""
        self._patient = True
        return Completion.of([delta async for delta in self])

    async def asend(self, value: None, /) -> Delta:  # noqa: ARG002  # nothing can be sent
        return await self.__anext__()

    async def athrow(self, typ: Any, val: Any = None, tb: Any = None, /) -> Delta:
        self._end(None)
        error: BaseException = typ if isinstance(typ, BaseException) else typ() if val is None else val
        raise error.with_traceback(tb)

    async def aclose(self) -> None:
        """Abort the request, unless it is over."""
        self._end(None)

    def __del__(self) -> None:
        if self._reader is not None:  # of whatever thread the collector is in, with whatever locks it holds
            with suppress(RuntimeError):  # the loop is closed, and whoever would have to know has ended
                close = _close, self._wires, self._reader, self._recorded, None
                self._reader.waker.loop.call_soon_threadsafe(*close)

    async def _ask(self) -> Reader:
        if self._over:
            raise StopAsyncIteration
        prepare, self._prepare = self._prepare, None
        if prepare is None:
            raise RuntimeError("two tasks ask for the same answer; let one of them read and hand on")
        submit, self._healing = await prepare(patient=self._patient)
        self._reader = submit.reader
        self._recorded = self._wires.recorded.asked(submit.request)
        try:
            self._wires.dispatcher.ask_nowait(submit, submit.reader)  # a refusal comes as all news do
        except MailboxFull:
            submit.reader.fail(Overloaded("the dispatcher is behind with its mail"))
        return submit.reader

    def _end(self, finish: Finish | None) -> None:
        self._over = True
        reader, self._reader = self._reader, None
        if reader is not None:
            _close(self._wires, reader, self._recorded, finish)


def _close(wires: Wires, reader: Reader, recorded: bool, finish: Finish | None) -> None:
    """Let go of a request, and abort it if it is not over."""
    if recorded:
        wires.recorded.answered(reader.request, finish)
    if not reader.over:  # it was left early, and an abort behind its submit always finds it
        leave(wires, reader.request, reader.waker.loop)
