"""What synchronous programs stand on: a loop in a thread, the default backend, and backends to look after."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sys
import threading
from contextvars import Context, copy_context
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import anyio
from anyio.abc import TaskGroup

from ..actors.backend import Backend
from ..actors.core import SupervisorClosed
from ..actors.errors import BackendUnset, InvalidRequest
from .body import Bodies
from .crossing import await_in, wait_in

__all__ = ["HOUSE", "House", "Settings", "backend_of", "home_of", "set_default_backend"]

_LOG = logging.getLogger("callboard.lang")

CLOSING_S = 10.0
"""How long the interpreter waits, when it exits, for the house to close."""


class Settings:
    """What `global_config` tells and sets, but for the default backend."""

    __slots__ = ("parallel_encoding", "precache", "skip_special_tokens", "verbosity")

    def __init__(self) -> None:
        self.skip_special_tokens = True
        self.precache = False
        self.parallel_encoding = True
        self.verbosity = 0


class House:
    """Keep one background loop and the backends that were entered for the user; `close` ends them all.

    A backend the user entered with `async with` is the user's; one that is given un-entered is entered here on
    first use and stays until `leave`, or `close`, which also runs when the interpreter exits.  One that has left is
    not entered again.
    """

    def __init__(self) -> None:
        self.default: Backend | None = None
        self.runtime: Any = None  # the Runtime whose backend the default was given as
        self.settings = Settings()
        self._lock = threading.Lock()
        self._process = 0  # in which the thread runs: it does not in one that was forked from that
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Event | None = None
        self._bodies: WeakKeyDictionary[asyncio.AbstractEventLoop, Bodies] = WeakKeyDictionary()
        self._left: WeakSet[Backend] = WeakSet()  # by `leave`
        self._stays: dict[int, _Stay] = {}  # by the identity of the backend; in the order they came
        self._group: TaskGroup | None = None
        self._context: Context = copy_context()

    # --- for programs ----------------------------------------------------------------------------------------------

    def choose(self, backend: Any) -> Backend:
        """Give the backend to run on: the one given (or a Runtime's), the default, or the embedded engine."""
        if backend is None:
            backend = self.default
        if backend is None:
            with self._lock:
                backend = self.default = self.default or _embedded_engine()
        return backend if isinstance(backend, Backend) else backend_of(backend)

    async def home(self, backend: Backend) -> asyncio.AbstractEventLoop:
        """Give the loop in which the backend lives, entering it here if nobody has."""
        if (loop := home_of(backend)) is not None:
            self._verify_process(loop)
            return loop
        here = self._open()
        await await_in(here, lambda: self._admit(backend))
        return here

    def home_blocking(self, backend: Backend, timeout_s: float | None = None) -> asyncio.AbstractEventLoop:
        """Do what `home` does, for synchronous code; TimeoutError if entering takes longer than it may."""
        if (loop := home_of(backend)) is not None:
            self._verify_process(loop)
            return loop
        here = self._open()
        wait_in(here, lambda: self._admit(backend, timeout_s), "await program.arun(...)")
        return here

    def leave(self, backend: Backend) -> None:
        """Leave a backend that was entered here, and wait until it has ended; RuntimeError in the house's own loop."""
        if (loop := self._loop) is not None:
            wait_in(loop, lambda: self._dismiss(backend), "await of it in another loop")

    def bodies(self, loop: asyncio.AbstractEventLoop) -> Bodies:
        """Give what performs plain functions in a loop."""
        bodies = self._bodies.get(loop)
        if bodies is None:
            bodies = self._bodies[loop] = Bodies()
        return bodies

    # --- its own life ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave every backend entered here, and end the loop; the next program opens it again."""
        with self._lock:
            thread, loop, closing = self._thread, self._loop, self._closing
            self._thread = self._loop = self._closing = None
        if thread is None or loop is None or closing is None:
            return
        if not loop.is_closed():
            loop.call_soon_threadsafe(closing.set)
        thread.join(CLOSING_S)
        atexit.unregister(self.close)

    def _verify_process(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raise RuntimeError in a process that was forked from the one in which the loop runs: nothing would answer."""
        if loop is self._loop and self._process != os.getpid():
            raise RuntimeError(
                "this process was forked from one that uses callboard, in which the backend lives; start processes by "
                "'spawn', or make a backend in each"
            )

    def _open(self) -> asyncio.AbstractEventLoop:
        if self._process not in (0, os.getpid()):  # whatever held the lock when this process was forked
            self._lock, self._loop = threading.Lock(), None
        with self._lock:
            if self._loop is None:
                self._process = os.getpid()
                ready = threading.Event()
                self._thread = threading.Thread(target=self._work, args=(ready,), name="callboard", daemon=True)
                self._thread.start()
                ready.wait()
                atexit.register(self.close)
            assert self._loop is not None
            return self._loop

    def _work(self, ready: threading.Event) -> None:
        """Run the loop, in its thread.  What would exit the interpreter ends the task that raised it, not the loop."""
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            life = loop.create_task(self._live(ready))
            while not life.done():
                try:
                    loop.run_until_complete(life)
                except (SystemExit, KeyboardInterrupt):  # a body's; whoever waits for that task is told
                    continue

    async def _live(self, ready: threading.Event) -> None:
        """Be there for backends, each in a task of its own, and leave them in reverse."""
        self._loop = asyncio.get_running_loop()
        self._closing = closing = asyncio.Event()
        self._stays = stays = {}
        self._context = copy_context()
        failures: list[Exception] = []
        async with anyio.create_task_group() as group:
            self._group = group
            ready.set()
            await closing.wait()
            for stay in reversed(list(stays.values())):
                await stay.end()
                if stay.failure is not None:
                    failures.append(stay.failure)
        if failures:
            raise failures[0]

    async def _admit(self, backend: Backend, timeout_s: float | None = None) -> None:
        if home_of(backend) is not None:
            return
        if backend in self._left:
            raise RuntimeError("this backend was shut down; make another")
        stay = self._stays.get(id(backend))
        if stay is None:
            assert self._group is not None
            stay = self._stays[id(backend)] = _Stay(backend, self._stays)
            self._context.run(self._group.start_soon, stay.live)  # it is nobody's: it sees no caller's variables
        with anyio.move_on_after(timeout_s):
            await stay.entered.wait()
        if not stay.entered.is_set():
            stay.leave()
            raise TimeoutError(f"{type(backend).__name__} was not there after {timeout_s:g} s")
        if stay.refusal is not None:
            raise stay.refusal

    async def _dismiss(self, backend: Backend) -> None:
        if (stay := self._stays.get(id(backend))) is not None:
            self._left.add(backend)
            await stay.end()
            if stay.failure is not None:
                raise stay.failure


class _Stay:
    """One backend in the house, from its entering to its leaving, in one task."""

    def __init__(self, backend: Backend, stays: dict[int, _Stay]) -> None:
        self._backend = backend
        self._stays = stays
        self._leaving = asyncio.Event()
        self._left = asyncio.Event()
        self.entered = asyncio.Event()  # or refused
        self.refusal: Exception | None = None
        self.failure: Exception | None = None

    async def live(self) -> None:
        try:
            async with self._backend:
                self.entered.set()
                await self._leaving.wait()
        except Exception as error:
            if not self.entered.is_set():
                self.refusal = error
            elif self._leaving.is_set():
                self.failure = error
            else:  # in the middle of its life: programs on it get its error, and nobody else is there to be told
                _LOG.error("%s has ended", type(self._backend).__name__, exc_info=error)
        finally:
            self._stays.pop(id(self._backend), None)
            self.entered.set()
            self._left.set()

    def leave(self) -> None:
        """Leave as soon as it was entered."""
        self._leaving.set()

    async def end(self) -> None:
        """Leave, and wait until nothing of it is left."""
        self.leave()
        await self._left.wait()


def home_of(backend: Backend) -> asyncio.AbstractEventLoop | None:
    """Give the loop in which a backend lives; None if it is not entered."""
    programs = getattr(backend, "programs", None)
    if programs is None:
        return None
    try:
        home = programs.home
    except SupervisorClosed:
        return None
    return None if home.closed else home.loop


def _embedded_engine() -> Backend:
    try:
        from ..actors.engine import Engine

        engine = Engine("embedded")
    except (ImportError, OSError, ValueError) as error:
        raise BackendUnset(
            "no backend is set, and the embedded engine cannot start; call set_default_backend(...)"
        ) from error
    sys.stderr.write("callboard: no backend is set; starting the embedded engine\n")
    return engine


HOUSE = House()
"""The one thing here that a whole process shares; it starts nothing until a program needs it."""


def backend_of(given: Any) -> Backend:
    """Give a backend, or that of a Runtime; InvalidRequest for anything else."""
    backend = getattr(given, "endpoint", given)
    if not isinstance(backend, Backend):
        raise InvalidRequest("backend", f"{given!r:.80} is no callboard.Backend")
    return backend


def set_default_backend(backend: Any) -> None:
    """Let programs run on `backend`, or a Runtime, unless they are given another; None is the embedded engine.

    It may be entered already (`async with Engine(...)`), or not: then it is entered on first use, in a background
    loop, and left when the interpreter exits.
    """
    HOUSE.default = None if backend is None else backend_of(backend)
    HOUSE.runtime = None if isinstance(backend, Backend) else backend
