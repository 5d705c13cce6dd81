"""What synchronous programs stand on: a loop in a thread, the default backend, and backends to look after."""

from __future__ import annotations

import asyncio
import atexit
import sys
import threading
from contextlib import AsyncExitStack
from weakref import WeakKeyDictionary

from ..actors.backend import Backend
from ..actors.core import SupervisorClosed
from ..actors.errors import BackendUnset, InvalidRequest
from .body import Bodies
from .crossing import await_in, wait_in

__all__ = ["HOUSE", "House", "home_of", "set_default_backend"]

CLOSING_S = 10.0
"""How long the interpreter waits, when it exits, for the house to close."""


class House:
    """Keep one background loop and the backends that were entered for the user; `close` ends them all.

    A backend the user entered with `async with` is the user's; one that is given un-entered is entered here on
    first use and stays until `close`, which also runs when the interpreter exits.
    """

    def __init__(self) -> None:
        self.default: Backend | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Event | None = None
        self._bodies: WeakKeyDictionary[asyncio.AbstractEventLoop, Bodies] = WeakKeyDictionary()
        self._wanted: asyncio.Queue[tuple[Backend, asyncio.Future[None]]] | None = None

    # --- for programs ----------------------------------------------------------------------------------------------

    def choose(self, backend: Backend | None) -> Backend:
        """Give the backend to run on: the one given, the default, or the embedded engine."""
        if backend is None:
            backend = self.default
        if backend is None:
            with self._lock:
                backend = self.default = self.default or _embedded_engine()
        if not isinstance(backend, Backend):
            raise InvalidRequest("backend", f"{backend!r:.80} is no callboard.Backend")
        return backend

    async def home(self, backend: Backend) -> asyncio.AbstractEventLoop:
        """Give the loop in which the backend lives, entering it here if nobody has."""
        if (loop := home_of(backend)) is not None:
            return loop
        here = self._open()
        await await_in(here, lambda: self._admit(backend))
        return here

    def home_blocking(self, backend: Backend) -> asyncio.AbstractEventLoop:
        """Do what `home` does, for synchronous code."""
        if (loop := home_of(backend)) is not None:
            return loop
        here = self._open()
        wait_in(here, lambda: self._admit(backend), "await program.arun(...)")
        return here

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

    def _open(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                ready = threading.Event()
                self._thread = threading.Thread(
                    target=lambda: asyncio.run(self._live(ready)), name="callboard", daemon=True
                )
                self._thread.start()
                ready.wait()
                atexit.register(self.close)
            assert self._loop is not None
            return self._loop

    async def _live(self, ready: threading.Event) -> None:
        """Enter backends as they come, one after the other, and leave them in reverse: all in this one task."""
        self._loop = asyncio.get_running_loop()
        self._closing = closing = asyncio.Event()
        self._wanted = wanted = asyncio.Queue()
        ready.set()
        async with AsyncExitStack() as stack:
            closed = asyncio.ensure_future(closing.wait())
            while not closing.is_set():
                want = asyncio.ensure_future(wanted.get())
                await asyncio.wait((want, closed), return_when=asyncio.FIRST_COMPLETED)
                if not want.done():
                    want.cancel()
                    break
                backend, entered = want.result()
                await _enter(stack, backend, entered)
            await closed

    async def _admit(self, backend: Backend) -> None:
        if home_of(backend) is None:
            assert self._wanted is not None
            entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._wanted.put_nowait((backend, entered))
            await entered


async def _enter(stack: AsyncExitStack, backend: Backend, entered: asyncio.Future[None]) -> None:
    error: BaseException | None = None
    if home_of(backend) is None:  # else another program asked for it as well, and was first
        try:
            await stack.enter_async_context(backend)
        except Exception as caught:
            error = caught
    if entered.done():  # whoever asked has gone
        return
    if error is None:
        entered.set_result(None)
    else:
        entered.set_exception(error)


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


def set_default_backend(backend: Backend | None) -> None:
    """Let programs run on `backend` unless they are given another; None goes back to the embedded engine.

    It may be entered already (`async with Engine(...)`), or not: then it is entered on first use, in a background
    loop, and left when the interpreter exits.
    """
    if backend is not None and not isinstance(backend, Backend):
        raise InvalidRequest("backend", f"{backend!r:.80} is no callboard.Backend")
    HOUSE.default = backend
