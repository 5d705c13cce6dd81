"""One HTTP exchange: a bounded body in, one reply or one event stream out."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import anyio
import msgspec
from starlette.types import Receive, Scope, Send

from .options import GatewayOptions
from .refusal import ClientLeft, Refusal

__all__ = ["Exchange"]

_JSON = ((b"content-type", b"application/json"),)
_UNREAD_BYTES = 1 << 20
"""Of a body that a refusal leaves unread, so much is still read: the connection ends otherwise, and a client that has
sent its next request on it by then sees it break.  Over HTTP/2, where others share it, all of it is read."""
_EVENTS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy that collects the stream would undo it
)


class Exchange:
    """The request at hand and the way back to its client.  After `body` or `skip_body`, one task may wait in `left`."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, options: GatewayOptions) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.path_params: dict[str, Any] = scope.get("path_params", {})
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self._shares = scope["http_version"] == "2"  # its connection with other exchanges
        self.status = 0  # of the reply; 0 until it has begun
        self.first_event_at = 0.0  # time.monotonic() of a stream's first event
        self.left_early = False  # whether the client went before its answer was whole
        self.scope = anyio.CancelScope()
        self.tenant = ""  # on whose behalf it is, and whether its client administers: by its key
        self.administers = False
        self._more = True
        self._receive = receive
        self._send = send
        self._options = options

    @property
    def started(self) -> bool:
        """Whether the status line is out, so that an error can only be an event."""
        return self.status != 0

    async def body(self) -> bytes:
        """Read the whole body, piece by piece; Refusal if it is too large or too slow, ClientLeft if it breaks off."""
        declared = self.headers.get(b"content-length", b"0")
        limit = self._options.body_bytes
        if declared.isdigit() and int(declared) > limit:
            await self._discard(limit)
            raise self._too_large()
        pieces: list[bytes] = []
        size = 0
        while (piece := await self._piece()) is not None:
            size += len(piece)
            if size > limit:
                await self._discard(limit)
                raise self._too_large()
            pieces.append(piece)
        return b"".join(pieces)

    async def _piece(self) -> bytes | None:
        if not self._more:
            return None
        with anyio.move_on_after(self._options.body_timeout_s) as scope:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            self._more = message.get("more_body", False)
            return message.get("body", b"")
        assert scope.cancelled_caught
        raise Refusal(
            408, f"the request body paused for more than {self._options.body_timeout_s:g} s", "invalid_request_error"
        )

    async def _discard(self, limit: int) -> None:
        # A client that is cut off in the middle of its body often never reads why; up to a bound, let it finish.
        size = 0
        while (size <= limit or self._shares) and (piece := await self._piece()) is not None:
            size += len(piece)

    async def skip_body(self) -> None:
        """Read a body that nobody needs away, up to a bound and for `body_timeout_s` in all; ClientLeft if it breaks
        off.
        """
        with contextlib.suppress(Refusal), anyio.move_on_after(self._options.body_timeout_s):
            await self._discard(min(_UNREAD_BYTES, self._options.body_bytes))

    def _too_large(self) -> Refusal:
        message = f"the request body is larger than the {self._options.body_bytes} bytes allowed"
        return Refusal(413, message, "invalid_request_error", code="body_too_large")

    async def left(self) -> None:
        """Return when the client has gone or its answer is whole; what it still sends meanwhile is dropped."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def reply(
        self, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = _JSON, *extra: tuple[bytes, bytes]
    ) -> None:
        """Answer, whole."""
        self.status = status
        length = (b"content-length", str(len(body)).encode())
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, length, *extra]})
        await self._send({"type": "http.response.body", "body": body})

    async def reply_json(self, value: Any, status: int = 200) -> None:
        """Answer with `value` as JSON."""
        await self.reply(status, msgspec.json.encode(value))

    async def refuse(self, refusal: Refusal) -> None:
        """Answer with an error; in a stream that has begun, as its last event, with no [DONE] behind it."""
        async with anyio.create_task_group() as group:

            async def leave() -> None:
                # Whoever reads the connection may wait for room for the next piece of a body; somebody must take it.
                await self.left()
                group.cancel_scope.cancel()  # over HTTP/2 a write would wait for ever for a client that is gone

            group.start_soon(leave)
            await self._refuse(refusal)

    async def _refuse(self, refusal: Refusal) -> None:
        if self.started:
            await self.end(b"data: " + refusal.body() + b"\n\n")
        else:
            await self.reply(refusal.status, refusal.body(), _JSON, *refusal.headers)

    async def write(self, events: bytes) -> None:
        """Send server-sent events, one or several, in one write; the first call sends the headers."""
        await self._begin()
        await self._send({"type": "http.response.body", "body": events, "more_body": True})

    async def _begin(self) -> None:
        if not self.started:
            self.status = 200
            self.first_event_at = time.monotonic()
            await self._send({"type": "http.response.start", "status": 200, "headers": list(_EVENTS)})

    async def end(self, events: bytes) -> None:
        """Send the last events and close the stream."""
        await self._begin()
        await self._send({"type": "http.response.body", "body": events})
