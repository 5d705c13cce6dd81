"""What every route of one gateway shares."""

from __future__ import annotations

import secrets
import time

import anyio

from .authority import Authority
from .metrics import Metrics
from .options import GatewayOptions
from .pace import Pace
from .service import Service
from .sessions import Sessions
from .token_text import TokenText

__all__ = ["Room"]


class Room:
    """The engine, the options, the figures, and the exchanges that are live."""

    def __init__(self, service: Service, options: GatewayOptions) -> None:
        self.service = service
        self.options = options
        self.token_text = TokenText(service)
        self.authority = Authority(options)
        self.metrics = Metrics(tenants={one.tenant for one in options.api_keys})
        self.pace = Pace(options.stream_interval_ms)
        self.sessions = Sessions(service)
        self.began = int(time.time())
        self.stopping = False
        self.live: set[anyio.CancelScope] = set()
        self._empty = anyio.Event()

    def new_id(self) -> str:
        """Give a name that nobody can guess: knowing a request's name is enough to abort it."""
        return secrets.token_hex(16)

    def enter(self, scope: anyio.CancelScope) -> None:
        """Note an exchange that begins."""
        self.live.add(scope)
        self.metrics.live.inc()

    def leave(self, scope: anyio.CancelScope) -> None:
        """Note that it has ended."""
        self.live.discard(scope)
        self.metrics.live.dec()
        if self.stopping and not self.live:
            self._empty.set()

    async def drain(self, grace_s: float) -> None:
        """Take no more requests; give those in progress `grace_s` seconds, then cancel them."""
        self.stopping = True
        self.sessions.stop()  # they would go on for ever
        if not self.live:
            return
        try:
            with anyio.move_on_after(grace_s):
                await self._empty.wait()
        finally:
            for scope in tuple(self.live):
                scope.cancel()
