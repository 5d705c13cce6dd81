"""Supervisors: every actor lives inside the block of one, and none outlives it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self, TypeVar, get_args

import anyio

from .actor import Actor
from .branch import Branch
from .child import Child, Restart, describe, report_crash
from .errors import ActorDied, DeadLetter, SupervisorClosed
from .home import Home
from .intensity import Intensity
from .job import Job
from .life import Life, wait_for_task
from .message import Message
from .ref import Ref
from .restarts import Restarts, Strategy
from .statistics import Statistics

__all__ = ["Supervisor"]

M = TypeVar("M", bound=Message)

RESTARTS: tuple[Restart, ...] = get_args(Restart)


class Supervisor:
    """Start actors, restart those that crash, and end them all before the block is left.

    strategy: who is restarted when one crashes: it alone (`one_for_one`), it and those started after it
        (`rest_for_one`), or all (`one_for_all`).
    restarts, within: at most so many restarts in so many seconds; one more is RestartLimit.
    grace: seconds that stopping gives the messages at hand, for all children together; then they are cancelled.
        A block left by a cancellation or by an error gives none.
    cleanup: seconds an actor's `__aexit__` may wait for.
    dead_letter: called with each DeadLetter of the whole tree; what it raises, the block raises.
    debug: raise AskCycle where asks would wait for each other in a circle.
    """

    def __init__(
        self,
        name: str,
        *,
        strategy: Strategy = "one_for_one",
        restarts: int = 3,
        within: float = 5.0,
        grace: float = 5.0,
        cleanup: float = 5.0,
        dead_letter: Callable[[DeadLetter], None] | None = None,
        debug: bool = False,
    ) -> None:
        _check_choice("strategy", strategy, get_args(Strategy))
        _check_seconds("grace", grace)
        _check_seconds("cleanup", cleanup)
        self.name = name
        self.grace = grace
        self.cleanup = cleanup
        self.failure: BaseException | None = None
        self.children: dict[Child | Job, None] = {}  # in the order they were started
        self._restarts = Restarts(self, strategy, Intensity(restarts, within))
        self._dead_letter = dead_letter
        self._debug = debug
        self._state: Literal["new", "open", "closing", "closed", "ended"] = "new"
        self._home: Home | None = None
        self._child: Child | None = None  # a nested supervisor's place in its parent
        self._ref: Ref[Message] | None = None
        self._body = anyio.CancelScope()
        self._wake_failed: Callable[[], None] | None = None
        self._waiting_for_open: list[asyncio.Future[None]] = []

    # The block.

    async def __aenter__(self) -> Self:
        if self._state != "new":
            raise RuntimeError(f"supervisor {self.name!r} was entered before; make another")
        self._home = Home(self._dead_letter, self._debug, self.fail)
        self._wake_failed = self._body.cancel
        self._body.__enter__()
        self._state = "open"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        swallowed = self._body.__exit__(kind, error, traceback)
        try:
            await self.close(graceful=error is None or swallowed)
        except asyncio.CancelledError:
            if self.failure is None:
                raise
        finally:
            self.finish_children("stopped" if self.failure is None else describe(self.failure))
            self.home.close()
        if self.failure is not None:
            raise self.failure
        return swallowed

    # What users call inside it.

    async def spawn(
        self, factory: Callable[[], Actor[M]], *, name: str, restart: Restart = "permanent", mailbox: int = 1024
    ) -> Ref[M]:
        """Start an actor, and return its address once its `__aenter__` is done.

        restart: after any end but a stop (`permanent`), after a crash (`transient`), never (`temporary`).
        mailbox: messages it holds at most.
        Raises what the factory or `__aenter__` raises, and SupervisorClosed. Cancelled, it leaves no child.
        Names need not be unique; Down carries them.
        """
        _check_choice("restart", restart, RESTARTS)
        if mailbox < 1:
            raise ValueError(f"mailbox is {mailbox}; it must hold at least 1 message")
        if self._state != "open" or self.failure is not None:
            await self._wait_until_open()
        child = Child(self, factory, name, restart, mailbox)
        ref = child.ref
        await self._add(child)
        return ref

    async def begin(self, job: Job) -> None:
        """Let a job begin; SupervisorClosed if this is not open."""
        if self._state != "open" or self.failure is not None:
            await self._wait_until_open()
        job.supervisor = self
        self.children[job] = None
        job.task = self.home.loop.create_task(job.run(), name=job.name)

    async def supervise(
        self,
        name: str,
        *,
        strategy: Strategy = "one_for_one",
        restarts: int = 3,
        within: float = 5.0,
        grace: float = 5.0,
        cleanup: float = 5.0,
        restart: Restart = "permanent",
    ) -> Supervisor:
        """Start a supervisor inside this one; its RestartLimit is its crash here, and its children's Refs survive it.

        When it is restarted it starts its children again in their order, with their queued messages; temporary ones
        have ended. Its own `ref` can be stopped, watched and joined.
        """
        _check_choice("restart", restart, RESTARTS)
        if self._state != "open" or self.failure is not None:
            await self._wait_until_open()
        nested = Supervisor(name, strategy=strategy, restarts=restarts, within=within, grace=grace, cleanup=cleanup)
        await nested._join(self, restart)
        return nested

    @property
    def ref(self) -> Ref[Message] | None:
        """The address of a nested supervisor; None for the outermost, whose block is its life."""
        return self._ref

    @property
    def dead_letters(self) -> int:
        """Messages that reached nobody so far, in the whole tree this supervisor belongs to."""
        return 0 if self._home is None else self._home.dead_letters

    def statistics(self) -> list[Statistics]:
        """Count what the children have done so far, those of nested supervisors after their supervisor."""
        return [statistics for child in list(self.children) for statistics in child.statistics()]

    # What the rest of the library calls.

    @property
    def home(self) -> Home:
        """The loop and thread of this tree."""
        if self._home is None:
            raise SupervisorClosed(f"supervisor {self.name!r} is new; spawn inside its block")
        return self._home

    async def open(self) -> None:
        """Begin a life of a nested supervisor: start every child it has, in order."""
        self._state = "open"
        self.failure = None
        self._wake_failed = None
        self._restarts.begin()
        for waiting in self._waiting_for_open:
            _settle(waiting)
        self._waiting_for_open.clear()
        try:
            for child in list(self.children):
                if isinstance(child, Child) and not child.mailbox.closed and child.life is None:
                    await self.start_again(child)
        except BaseException:
            await self.close(graceful=False)
            raise

    async def close(self, *, graceful: bool) -> None:
        """End every life, the last started first; a nested supervisor's children may live again."""
        if self._state != "open":
            return
        self._state = "closing"
        try:
            if graceful:
                await self._restarts.end()
                await self.pause(list(self.children))
        finally:
            with anyio.CancelScope(shield=True):
                await self._restarts.end()
                for child in reversed(list(self.children)):
                    if (task := child.pause(None)) is not None:
                        await wait_for_task(task)
            self._state = "closed"
            for child in [child for child in self.children if child.restart == "temporary"]:
                child.finish("stopped")

    def finish_children(self, reason: str) -> None:
        """End every child for good, once no life is left."""
        self._state = "ended"
        for child in reversed(list(self.children)):
            child.finish(reason)
        for waiting in self._waiting_for_open:
            _settle(waiting)

    def when_failed(self, wake: Callable[[], None]) -> None:
        """Call `wake` when this has failed; now if it has."""
        self._wake_failed = wake
        if self.failure is not None:
            wake()

    def fail(self, error: BaseException) -> None:
        """Make the block, or the nested supervisor's life, raise `error`."""
        if self.failure is None:
            self.failure = error
            if self._wake_failed is not None:
                self._wake_failed()

    async def pause(self, children: list[Child | Job]) -> None:
        """End lives, the last started first, cancelling once the grace is over; their children may live again."""
        loop = self.home.loop
        deadline = loop.time() + self.grace
        for child in reversed(children):
            if (task := child.pause(max(0.0, deadline - loop.time()))) is not None:
                await wait_for_task(task)

    async def start_again(self, child: Child) -> None:
        """Begin another life of a child and wait until it is set up, or has been told to stop."""
        try:
            await _start(child)
        except Exception:
            if not child.ending:
                raise
            child.finish("stopped")

    def life_ended(self, child: Child, life: Life, error: BaseException | None) -> None:
        """Decide what follows the end of a child's life."""
        if life.fail_start(error or ActorDied(child.name, None, "stopped while it was starting")):
            return  # whoever waits for the start goes on from there
        if error is not None:
            report_crash(child, error, child.restart)
        if child.ending:
            child.finish(describe(error), error)
        elif life.paused:
            return
        elif child.restart == "temporary" or (child.restart == "transient" and error is None):
            child.finish("returned" if error is None else describe(error), error)
        elif self._state == "open" and self.failure is None:
            self._restarts.restart(child, error)

    async def _join(self, parent: Supervisor, restart: Restart) -> None:
        self._home = parent.home
        self._state = "closed"
        self._child = Child(parent, lambda: Branch(self), self.name, restart, 1, self)
        self._ref = self._child.ref
        await parent._add(self._child)

    async def _add(self, child: Child) -> None:
        self.children[child] = None
        child.starting = True
        try:
            await _start(child)
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                child.ending = True
                while child.life is not None:
                    child.life.cancel()
                    await wait_for_task(child.life.task)
                child.finish(describe(error), error)
            raise
        finally:
            child.starting = False

    async def _wait_until_open(self) -> None:
        """Wait while a nested supervisor is between two lives; raises SupervisorClosed if there is no next one."""
        while self._child is not None and self._state != "ended" and not self._is_open():
            waiting = self.home.loop.create_future()
            self._waiting_for_open.append(waiting)
            await waiting
        if not self._is_open():
            state = self._state if self.failure is None else "failing"
            raise SupervisorClosed(f"supervisor {self.name!r} is {state}; spawn inside its block")

    def _is_open(self) -> bool:
        return self._state == "open" and self.failure is None


async def _start(child: Child) -> None:
    """Begin a life and wait until it is set up; raises what the factory or `__aenter__` raises."""
    started = child.launch().expect_start()
    if started is not None:
        await started


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _check_choice(field: str, given: str, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise ValueError(f"{field} is {given!r}; it must be one of {', '.join(allowed)}")


def _check_seconds(field: str, given: float) -> None:
    if not given >= 0:
        raise ValueError(f"{field} is {given}; it must be 0 seconds or more")
