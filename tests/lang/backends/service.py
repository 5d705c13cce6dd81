"""A service on a real port that follows a script: what it answers, where it breaks, and who has left it."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, cast

import anyio
import msgspec
from hypercorn.asyncio import serve
from hypercorn.config import Config

__all__ = ["CUT", "HANG", "Act", "Service", "serving", "stream"]

HANG = object()
"""Say nothing more until the client leaves."""
CUT = object()
"""Break the connection."""

_LOG = logging.getLogger("tests.service")


class Act(NamedTuple):
    """One answer: a status and headers, then pieces of the body: bytes, HANG, CUT, or something to await."""

    pieces: tuple[Any, ...] = ()
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    silent: bool = False  # no status either


def stream(*pieces: Any) -> Act:
    return Act(pieces, headers=(("content-type", "text/event-stream"),))


class Asked(NamedTuple):
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class Service:
    """Answer GETs from `pages`, and each POST by the next act of `script`, or, when it is done, by `speak(body)`."""

    def __init__(
        self, speak: Callable[[dict[str, Any]], Act], *script: Act, pages: dict[str, Any] | None = None
    ) -> None:
        self.speak = speak
        self.script = list(script)
        self.pages = pages or {}
        self.asked: list[Asked] = []
        self.url = ""
        self.live = 0
        self.most = 0
        self.left = 0
        self.hanging = anyio.Event()  # set once an act hangs
        self.gone = anyio.Event()  # set once a client has left a hanging act

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        data = b""
        while True:
            message = await receive()
            data += message.get("body", b"")
            if not message.get("more_body"):
                break
        if scope["method"] == "GET":
            page = self.pages.get(scope["path"])
            act = Act((msgspec.json.encode(page),)) if page is not None else Act((b"no such page",), 404)
        else:
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            body = cast("dict[str, Any]", msgspec.json.decode(data))
            self.asked.append(Asked(scope["path"], headers, body))
            act = self.script.pop(0) if self.script else self.speak(body)
        self.live += 1
        self.most = max(self.most, self.live)
        try:
            await self._answer(act, receive, send)
        finally:
            self.live -= 1

    async def _answer(self, act: Act, receive: Any, send: Any) -> None:
        if not act.silent:
            headers = [(name.encode(), value.encode()) for name, value in act.headers]
            await send({"type": "http.response.start", "status": act.status, "headers": headers})
        for piece in act.pieces:
            if piece is HANG:
                self.hanging.set()
                while (await receive())["type"] != "http.disconnect":
                    pass
                self.left += 1
                self.gone.set()
                return
            if piece is CUT:
                raise ConnectionAbortedError("cut on purpose")
            if isinstance(piece, bytes):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            else:
                await piece()
        await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def serving(service: Service) -> AsyncIterator[Service]:
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    service.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    config = Config()
    config.bind = [f"fd://{listening.detach()}"]
    config.errorlog = _LOG
    config.accesslog = None
    config.graceful_timeout = 0.1
    config.shutdown_timeout = 0.1
    stop = anyio.Event()
    _LOG.disabled = True  # a cut connection is an error to Hypercorn, and what these tests want

    async def run() -> None:
        with anyio.CancelScope(shield=True):  # Hypercorn closes its connections if it is told to stop, not if cancelled
            await serve(cast("Any", service), config, shutdown_trigger=stop.wait)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        try:
            yield service
        finally:
            stop.set()
