# ruff: noqa: SLF001  # a loop and its handles share their private parts; asyncio has no public way to do this
"""A seeded asyncio loop with a virtual clock: the same seed runs the same way, to the last step.

    result = simulate.run(main, seed=7, faults=Faults(delay=0.2, crash=0.01))

Callbacks that are ready together run in an order drawn from the seed, so a thousand seeds try a thousand
interleavings; timers cost no time. Threads cannot be used inside, nor anything else that waits for the world
outside (sockets, processes): nothing would advance the clock for them.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Awaitable, Callable
from contextvars import Context
from threading import get_ident
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
import msgspec

from .faults import Faults, FaultyRef, SimulatedCrash
from .local import LocalRef
from .mailbox import Mailbox
from .ref import Ref

if TYPE_CHECKING:
    from .child import Child

__all__ = ["Deadlock", "Faults", "Result", "SimulatedCrash", "SimulatedLoop", "ThreadInSimulation", "run"]

T = TypeVar("T")


class Deadlock(RuntimeError):
    """Raised when every task waits and no timer is left, so that nothing could ever happen again."""


class ThreadInSimulation(RuntimeError):
    """Raised when code in a simulation calls into the loop from another thread, or asks it for one."""


class Result(msgspec.Struct, Generic[T], frozen=True):
    """What a simulation came to."""

    value: T
    trace: list[tuple[float, str]]
    """Every step and fault, with its virtual time in seconds. Equal for equal seeds."""
    now: float
    """The virtual time at the end, in seconds from 0."""


def run(main: Callable[[], Awaitable[T]], *, seed: int, faults: Faults | None = None) -> Result[T]:
    """Run `main` in a loop of its own, drawing every choice from `seed`.

    Raises what `main` raises, and Deadlock.
    """
    loop = SimulatedLoop(seed, faults)
    value = anyio.run(main, backend="asyncio", backend_options={"loop_factory": lambda: loop})  # type: ignore[arg-type]
    return Result(value, loop.trace, loop.ended_at)  # type: ignore[arg-type]


class SimulatedLoop(asyncio.BaseEventLoop):
    """Run ready callbacks in seeded order, and jump to the next timer when none is ready."""

    def __init__(self, seed: int, faults: Faults | None = None) -> None:
        super().__init__()
        self.trace: list[tuple[float, str]] = []
        self.ended_at = 0.0
        self._now = 0.0
        self._order = random.Random(seed)  # noqa: S311  # a simulation wants repeatable numbers
        self._faults_random = random.Random(seed ^ 0x5EED)  # noqa: S311
        self._faults = faults
        self._home_thread = get_ident()
        self._labels: dict[asyncio.Task[Any], tuple[int, str]] = {}
        self._tasks_made = 0
        self._finished = False

    def time(self) -> float:
        return self._now

    def make_ref(self, child: Child, mailbox: Mailbox) -> Ref[Any]:
        """Make the address of an actor that lives in this loop."""
        if self._faults is None:
            return LocalRef(child, mailbox)
        return FaultyRef(child, mailbox, self._faults, self._faults_random, self._note)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:  # type: ignore[override]
        task = super().create_task(coro, name=name, context=context)
        # Numbered here, because asyncio's own numbers go on from one loop to the next.
        self._tasks_made += 1
        self._labels[task] = (self._tasks_made, f"{self._tasks_made} {name or getattr(coro, '__qualname__', 'task')}")
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._labels.pop(task, None)

    def run_until_complete(self, future: Any) -> Any:
        try:
            return super().run_until_complete(future)
        finally:
            if not self._finished:  # what the runner does to tidy up is no part of the simulation
                self._finished = True
                self.ended_at = self._now

    def _run_once(self) -> None:
        """Run everything that is ready, in seeded order; if nothing is, let time pass."""
        timers: list[Any] = self._scheduled  # type: ignore[attr-defined]
        ready: Any = self._ready  # type: ignore[attr-defined]
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
        if not ready:
            if not timers:
                waiting = "every task waits (perhaps for a thread) and no timer is left"
                raise Deadlock(f"at {self._now:g} s {waiting}: {self._waiting()}")
            self._now = max(self._now, timers[0].when())
        while timers and timers[0].when() <= self._now:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            ready.append(timer)
        # Sorted before it is shuffled: some of these come out of sets, in an order that differs from run to run.
        steps = [(self._label(handle), handle) for handle in ready if not handle._cancelled]
        ready.clear()
        steps.sort(key=_label_of)
        self._order.shuffle(steps)
        for (_, label), handle in steps:
            if not handle._cancelled:
                if not self._finished:
                    self.trace.append((self._now, label))
                handle._run()

    def _label(self, handle: Any) -> tuple[int, str]:
        callback = handle._callback
        owner = getattr(callback, "__self__", None)
        if isinstance(owner, asyncio.Task) and owner in self._labels:
            return self._labels[owner]
        return 0, getattr(callback, "__qualname__", type(callback).__name__)

    def _note(self, event: str) -> None:
        self.trace.append((self._now, event))

    def _waiting(self) -> str:
        names = [label for task, (_, label) in self._labels.items() if not task.done()]
        return ", ".join(names[:16]) + (", ..." if len(names) > 16 else "")

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        if get_ident() != self._home_thread:
            raise ThreadInSimulation("a thread called into a simulated loop; simulate.run cannot use threads")
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # noqa: ARG002
        raise ThreadInSimulation("run_in_executor needs a thread; simulate.run cannot use threads")

    def _process_events(self, event_list: Any) -> None:
        """Nothing from outside ever happens."""

    def _write_to_self(self) -> None:
        """Nobody outside needs to wake this loop."""


def _label_of(step: tuple[tuple[int, str], Any]) -> tuple[int, str]:
    return step[0]
