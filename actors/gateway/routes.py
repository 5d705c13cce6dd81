"""The route table, and what happens to every exchange: authority, body, answer, errors, a client that leaves."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Literal

import anyio
import msgspec
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from . import information
from .chat import chat
from .completions import completions
from .exchange import Exchange
from .native import generate
from .programs import end_programs, open_programs
from .reasoning import separate_reasoning
from .refusal import ClientLeft, Refusal, as_refusal
from .room import Room

__all__ = ["ROUTES", "Handler", "Level", "RouteEntry", "make_app"]

Level = Literal["open", "key", "admin"]
Handler = Callable[[Room, Exchange, bytes], Awaitable[None]]

_LOG = logging.getLogger("callboard.gateway")
_FAREWELL_S = 1.0  # to tell a client why its request was cut off when the gateway stops
_BROWSER_TYPES = (b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data")


class RouteEntry(msgspec.Struct, frozen=True):
    """One route.  level: `open` to all, `key` to holders of an API key, `admin` to holders of the administrator's."""

    path: str
    methods: tuple[str, ...]
    level: Level | None
    handler: Handler


ROUTES = (
    RouteEntry("/generate", ("POST", "PUT"), "key", generate),
    RouteEntry("/v1/completions", ("POST",), "key", completions),
    RouteEntry("/v1/chat/completions", ("POST",), "key", chat),
    RouteEntry("/v1/models", ("GET",), "key", information.models),
    RouteEntry("/v1/models/{name:path}", ("GET",), "key", information.model),
    RouteEntry("/health", ("GET",), "open", information.health),
    RouteEntry("/ready", ("GET",), "open", information.health),
    RouteEntry("/live", ("GET",), "open", information.live),
    RouteEntry("/model_info", ("GET",), "key", information.model_info),
    RouteEntry("/get_model_info", ("GET",), "key", information.model_info),
    RouteEntry("/server_info", ("GET",), "key", information.server_info),
    RouteEntry("/get_server_info", ("GET",), "key", information.server_info),
    RouteEntry("/metrics", ("GET",), "key", information.metrics),
    RouteEntry("/tokenize", ("POST",), "key", information.tokenize),
    RouteEntry("/v1/tokenize", ("POST",), "key", information.tokenize),
    RouteEntry("/detokenize", ("POST",), "key", information.detokenize),
    RouteEntry("/v1/detokenize", ("POST",), "key", information.detokenize),
    RouteEntry("/separate_reasoning", ("POST",), "key", separate_reasoning),
    RouteEntry("/programs", ("POST",), "key", open_programs),
    RouteEntry("/programs/end", ("POST",), "key", end_programs),
    RouteEntry("/abort_request", ("POST",), "key", information.abort_request),
    RouteEntry("/flush_cache", ("GET", "POST"), "admin", information.flush_cache),
)


def make_app(room: Room, entries: tuple[RouteEntry, ...] = ROUTES) -> ASGIApp:
    """Give the ASGI application; ValueError if a route does not say who may use it."""
    for entry in entries:
        if entry.level not in ("open", "key", "admin"):
            raise ValueError(f"route {entry.path}: level {entry.level!r} is none of 'open', 'key', 'admin'")
    # The router alone, without Starlette's middleware: each layer would cost a call for every event of a stream.
    routes = [Route(entry.path, _Endpoint(room, entry)) for entry in entries]
    unknown = RouteEntry("", (), "open", _unknown)
    return Router(routes, redirect_slashes=False, default=_Endpoint(room, unknown))


async def _unknown(room: Room, exchange: Exchange, body: bytes) -> None:
    del room, body
    path = exchange.path
    misses_v1 = any(entry.path == f"/v1{path}" for entry in ROUTES)
    hint = "OpenAI's clients are given an address that ends in /v1; " if misses_v1 else ""
    told = f"there is no route {path!r:.80}; {hint}docs/gateway.md lists them"
    raise Refusal(404, told, "not_found_error", code="unknown_route")


class _Endpoint:
    """One route as an ASGI application."""

    def __init__(self, room: Room, entry: RouteEntry) -> None:
        self._room = room
        self._entry = entry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # a WebSocket: closed before it is accepted
            await receive()
            await send({"type": "websocket.close", "code": 1000})
            return
        room = self._room
        exchange = Exchange(scope, receive, send, room.options)
        began = time.monotonic()
        room.enter(exchange.scope)
        try:
            with exchange.scope:
                await self._answer(exchange)
            if exchange.scope.cancelled_caught and room.stopping and not exchange.left_early:
                with anyio.move_on_after(_FAREWELL_S):
                    await exchange.refuse(_stopping())
        finally:
            room.leave(exchange.scope)
            seconds = time.monotonic() - began
            room.metrics.ended(self._entry.path or "unknown", exchange.status, seconds, exchange.tenant)
            if exchange.first_event_at:
                room.metrics.first_event(self._entry.path, exchange.first_event_at - began)

    async def _answer(self, exchange: Exchange) -> None:
        try:
            try:
                self._admit(exchange)
            except Refusal:
                await exchange.skip_body()
                raise
            body = await self._body(exchange)
            await self._watched(exchange, body)
        except ClientLeft:
            exchange.left_early = True
        except Exception as error:  # the last place where an error can become an answer
            refusal = as_refusal(error)
            if refusal is None:
                number = self._room.new_id()[:8]
                _LOG.exception("error %s on %s", number, self._entry.path)
                refusal = Refusal(
                    500, f"internal error {number}; the server's log says more", "server_error", code="internal"
                )
            await exchange.refuse(refusal)

    def _admit(self, exchange: Exchange) -> None:
        room = self._room
        if self._entry.methods and exchange.method not in self._entry.methods:
            allowed = ", ".join(self._entry.methods)
            raise Refusal(
                405, f"{exchange.method} is not one of the methods of this route: {allowed}", "invalid_request_error",
                code="method_not_allowed", headers=((b"allow", allowed.encode()),),
            )  # fmt: skip
        _authorize(room, self._entry.level, exchange)
        if self._entry.level == "open":
            return
        if room.stopping:
            raise _stopping()
        if len(room.live) > room.options.live_requests:
            raise Refusal(
                503, f"{room.options.live_requests} requests are in progress, the most there may be",
                "overloaded_error", code="overloaded", headers=((b"retry-after", b"1"),),
            )  # fmt: skip

    async def _body(self, exchange: Exchange) -> bytes:
        if exchange.method not in ("POST", "PUT") or self._entry.level == "open":  # who has no key fills no memory
            await exchange.skip_body()
            return b""
        body = await exchange.body()
        kind = exchange.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if body and (not kind or kind in _BROWSER_TYPES):
            # A page in somebody's browser may send these to a local server unasked; JSON it may not.
            raise Refusal(
                415, "the body must be JSON, with the header Content-Type: application/json", "invalid_request_error",
                code="unsupported_media_type",
            )  # fmt: skip
        return body

    async def _watched(self, exchange: Exchange, body: bytes) -> None:
        """Answer, and stop at once if the client leaves: closing the generations aborts them."""
        answered = False

        async def watch() -> None:
            await exchange.left()
            if not answered:
                exchange.left_early = True
                group.cancel_scope.cancel()

        failure: Exception | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            try:
                await self._entry.handler(self._room, exchange, body)
                answered = True  # the watch ends by itself
            except Exception as error:  # raised again outside of the group, bare
                failure = error
                group.cancel_scope.cancel()
        if failure is not None and not exchange.left_early:
            raise failure


def _authorize(room: Room, level: Level | None, exchange: Exchange) -> None:
    """Let an exchange know on whose behalf it is; Refusal if that has no right to be here."""
    if level == "open":
        return
    caller = room.authority.caller(exchange.headers.get(b"authorization", b""))
    if caller is None or (level == "admin" and not caller.administers):
        options = room.options
        guarded = options.admin_api_key or options.api_keys
        needed = "the administrator's API key" if level == "admin" and guarded else "an API key"
        raise Refusal(
            401, f"{needed} is needed: Authorization: Bearer KEY", "authentication_error", code="invalid_api_key",
            headers=((b"www-authenticate", b"Bearer"),),
        )  # fmt: skip
    exchange.tenant, exchange.administers = caller


def _stopping() -> Refusal:
    return Refusal(
        503, "the server is stopping", "overloaded_error", code="stopping", headers=((b"retry-after", b"5"),)
    )
