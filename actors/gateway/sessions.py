"""Programs that run at clients elsewhere: each has a lease of the engine's, for as long as its client is connected.

A client opens a session (`POST /programs`), whose reply is a stream that stays open, and names its programs in requests
by numbers of its own.  When the stream ends, however it does, all of its programs are over; a client tells of those
that are over before then (`POST /programs/end`).  A session is its tenant's: for others there is none of that name.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from ..errors import Overloaded
from .service import Service

__all__ = ["Session", "Sessions"]

PAUSE_S = 0.05
"""How long nothing of a program is asked for before it is taken to wait on its own world; its KV then goes first."""
SESSIONS = 256
"""How many a tenant may have open."""
PROGRAMS = 16_384
"""How many a session may have known at once; of more, the longest idle is forgotten."""


class _Known:
    """A program: its lease, how many requests of it are live, whether it is over, and when it is taken to wait."""

    __slots__ = ("lease", "over", "timer", "uses")

    def __init__(self, lease: int) -> None:
        self.lease = lease
        self.uses = 0
        self.over = False
        self.timer: asyncio.TimerHandle | None = None


class Session:
    """The programs of one client.  closing: set once it is to end, by either side."""

    def __init__(self, service: Service, tenant: str) -> None:
        self.tenant = tenant
        self.token = secrets.token_hex(16)
        self.closing = anyio.Event()
        self._service = service
        self._known: OrderedDict[int, _Known] = OrderedDict()  # the longest idle first
        self._closed = False

    @contextmanager
    def using(self, *numbers: int) -> Iterator[list[int]]:
        """Give the leases of programs; none is given up inside the block, whatever ends meanwhile."""
        used = [self._use(number) for number in numbers]
        try:
            yield [one.lease for one in used]
        finally:
            for one in used:
                self._unuse(one)

    def end(self, numbers: list[int]) -> None:
        """Give up what these programs hold, once nothing of them is live; unknown ones are ignored."""
        for number in numbers:
            if (one := self._known.pop(number, None)) is not None:
                self._forget(one)

    def close(self) -> None:
        """End all programs, and the stream."""
        self._closed = True
        self.end(list(self._known))
        self.closing.set()

    def _use(self, number: int) -> _Known:
        one = self._known.get(number)
        if one is None:
            one = _Known(self._service.lease())
            if self._closed:  # between this request's coming and now
                one.over = True
            else:
                self._known[number] = one
                self._make_room()
        else:
            self._known.move_to_end(number)
        one.uses += 1
        _stop_timer(one)
        return one

    def _make_room(self) -> None:
        if len(self._known) > PROGRAMS:
            idle = next((number for number, one in self._known.items() if not one.uses), None)
            if idle is not None:
                self.end([idle])

    def _unuse(self, one: _Known) -> None:
        one.uses -= 1
        if one.uses:
            return
        if one.over:
            self._service.release(one.lease)
        else:
            one.timer = asyncio.get_running_loop().call_later(PAUSE_S, self._service.pause, one.lease, b"")

    def _forget(self, one: _Known) -> None:
        one.over = True
        _stop_timer(one)
        if not one.uses:  # else whoever uses it last gives it up: the engine must not hear of it behind its end
            self._service.release(one.lease)


def _stop_timer(one: _Known) -> None:
    if one.timer is not None:
        one.timer.cancel()
        one.timer = None


class Sessions:
    """All that are open, by tenant and name."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._open: dict[tuple[str, str], Session] = {}
        self._count: Counter[str] = Counter()
        self._stopping = False

    @contextmanager
    def open(self, tenant: str) -> Iterator[Session]:
        """Hold a session open for a block; Overloaded if its tenant has too many."""
        if self._count[tenant] >= SESSIONS:
            raise Overloaded(f"{SESSIONS} of your sessions are open, the most there may be")
        session = Session(self._service, tenant)
        self._open[tenant, session.token] = session
        self._count[tenant] += 1
        if self._stopping:
            session.closing.set()
        try:
            yield session
        finally:
            del self._open[tenant, session.token]
            self._count[tenant] -= 1
            session.close()

    def find(self, tenant: str, token: str) -> Session | None:
        """Give a tenant's session; None if it has none of that name, or it has ended."""
        return self._open.get((tenant, token))

    def stop(self) -> None:
        """Let every session end, and those that are opened from now on."""
        self._stopping = True
        for session in self._open.values():
            session.closing.set()
