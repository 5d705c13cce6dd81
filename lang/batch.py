"""Many calls of a program at once."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, Self

import anyio

from ..actors.backend import Backend
from ..actors.core import Actor, Inbox, Message, Ref, Stopped
from ..actors.errors import InvalidRequest
from .bell import Bell
from .crossing import await_in, wait_in
from .crowd import Crowd
from .house import HOUSE
from .performer import Call
from .precaching import precache
from .progress import Progress
from .state import ProgramState
from .stream import Stream

__all__ = ["AT_ONCE", "Batch", "Items"]

AT_ONCE = 2048
"""How many programs of a batch run at once if nobody says otherwise."""


class Items:
    """How a batch is run: how many at once, in which order it gives states, and what an error does."""

    def __init__(self, num_threads: int | str, order: str, on_error: str, progress_bar: bool) -> None:
        if num_threads == "auto":
            num_threads = AT_ONCE
        if isinstance(num_threads, bool) or not isinstance(num_threads, int) or num_threads < 1:
            raise InvalidRequest("num_threads", f"{num_threads!r:.80} is neither 'auto' nor a number of at least 1")
        if order not in ("input", "completion"):
            raise InvalidRequest("order", f"{order!r:.80} is neither 'input' nor 'completion'")
        if on_error not in ("raise", "return"):
            raise InvalidRequest("on_error", f"{on_error!r:.80} is neither 'raise' nor 'return'")
        self.at_once = num_threads
        self.in_order = order == "input"
        self.raises = on_error == "raise"
        self.progress_bar = progress_bar


class Batch:
    """Await it for the list of states in the items' order; iterate it, async or not, for one state after the other.

    Nothing starts before that, and it can be done once.
    """

    def __init__(self, calls: list[Call], backend: Backend, items: Items, *, precache: bool = False) -> None:
        self._calls = calls  # let go of one by one as they begin
        self._size = len(calls)
        self._precache = precache
        self._backend = backend
        self._items = items
        self._started = False

    def __await__(self) -> Generator[Any, None, list[ProgramState]]:
        return self.collect().__await__()

    def __aiter__(self) -> BatchIterator:
        return BatchIterator(self)

    def __len__(self) -> int:
        return self._size

    def collect_blocking(self) -> list[ProgramState]:
        """Do what awaiting does, for synchronous code."""
        loop = HOUSE.home_blocking(self._backend)
        return wait_in(loop, self._collect_here, "await program.arun_batch(...)")

    def iterate(self) -> Iterator[ProgramState]:
        """Do what `async for` does, for synchronous code; leaving early cancels what still runs."""
        loop = HOUSE.home_blocking(self._backend)
        instead = "async for state in program.arun_batch(...)"
        feed = wait_in(loop, self.feed, instead)
        try:
            while (state := wait_in(loop, feed.next, instead)) is not None:
                yield state
        finally:
            if not sys.is_finalizing():  # else the house has closed, and this with it
                wait_in(loop, feed.close, instead)

    async def collect(self) -> list[ProgramState]:
        """Do what awaiting does, as a coroutine."""
        return await await_in(await HOUSE.home(self._backend), self._collect_here)

    async def _collect_here(self) -> list[ProgramState]:
        states: dict[int, ProgramState] = {}
        await self._run(states.__setitem__, None)
        return [states[index] for index in range(self._size)]

    async def feed(self) -> Feed:
        """Start it for somebody who takes the states one by one, in the backend's loop."""
        feed = Feed(self._run, self._size, self._items)
        feed.address = await self._backend.programs.spawn(lambda: feed, name="batch", restart="temporary")
        return feed

    @property
    def home(self) -> Any:
        return HOUSE.home(self._backend)

    async def _run(self, give: Callable[[int, ProgramState], None], room: Callable[[], Any] | None) -> None:
        """Run every call, `at_once` at a time; the first error cancels the rest if errors are raised."""
        if self._started:
            raise RuntimeError("this batch was run already; make another")
        self._started = True
        calls = self._calls
        if self._precache and len(calls) > 1:
            await precache(calls)
        calls.reverse()
        failure: list[BaseException] = []
        with Progress(self._size, shown=self._items.progress_bar) as progress, anyio.CancelScope() as feeding:

            def ended(index: int, stream: Stream, error: BaseException | None) -> None:
                if error is not None and (self._items.raises or not isinstance(error, Exception)):
                    failure.append(error)
                    feeding.cancel()
                else:
                    progress.advance()
                    give(index, ProgramState(stream))

            crowd = Crowd(self._items.at_once, ended)
            try:
                for index in range(self._size):
                    if room is not None:
                        await room()
                    await crowd.admit(index, calls.pop())
                await crowd.gone()
            finally:
                crowd.cancel()
                with anyio.CancelScope(shield=True):
                    await crowd.gone()
        if failure:
            raise failure[0]


class Feed(Actor[Message]):
    """Run a batch and hold its states until they are taken; it lets no more run than may be held."""

    def __init__(self, run: Callable[..., Any], size: int, items: Items) -> None:
        self._run = run
        self._items = items
        self._size = size
        self._given = 0
        self._taken = 0
        self._ready: deque[ProgramState] = deque()
        self._early: dict[int, ProgramState] = {}  # states whose turn has not come
        self._turn = 0
        self._held = 0
        self._error: BaseException | None = None
        self._bell = Bell()
        self.address: Ref[Message] | None = None

    async def run(self, inbox: Inbox[Message]) -> None:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._produce, group.cancel_scope)
                try:
                    await inbox.get()
                except Stopped:
                    group.cancel_scope.cancel()
        finally:
            if self._given < self._size and self._error is None:
                self._error = RuntimeError("the batch was ended before all of it had run")
            self._bell.ring()

    async def _produce(self, scope: anyio.CancelScope) -> None:
        try:
            await self._run(self._give, self._room)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # for whoever takes the states: raised here, it would end the loop
            self._error = error
        finally:
            self._bell.ring()
            scope.cancel()

    async def _room(self) -> None:
        while self._held >= 2 * self._items.at_once:
            await self._bell.wait()
        self._held += 1

    def _give(self, index: int, state: ProgramState) -> None:
        self._given += 1
        if self._items.in_order:
            self._early[index] = state
            while (due := self._early.pop(self._turn, None)) is not None:
                self._ready.append(due)
                self._turn += 1
        else:
            self._ready.append(state)
        self._bell.ring()

    async def next(self) -> ProgramState | None:
        """Take the next state; None behind the last."""
        while not self._ready:
            if self._taken == self._size:
                return None
            if self._error is not None:
                raise self._error
            await self._bell.wait()
        self._taken += 1
        self._held -= 1
        self._bell.ring()
        return self._ready.popleft()

    async def close(self) -> None:
        """End it, with whatever still runs."""
        if self.address is not None:
            await self.address.stop()


class BatchIterator:
    """Take the states of a batch in async code. Leaving early, or dropping it, cancels what still runs."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._feed: Feed | None = None
        self._loop: Any = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ProgramState:
        if self._feed is None:
            self._loop = await self._batch.home
            self._feed = await await_in(self._loop, self._batch.feed)
        try:
            state = await await_in(self._loop, self._feed.next)
        except Exception:
            await self.aclose()
            raise
        if state is None:
            await self.aclose()
            raise StopAsyncIteration
        return state

    async def aclose(self) -> None:
        """End the batch."""
        if self._feed is not None:
            await await_in(self._loop, self._feed.close)

    def __del__(self) -> None:
        if self._feed is not None and self._feed.address is not None:
            self._feed.address.stop_nowait()
