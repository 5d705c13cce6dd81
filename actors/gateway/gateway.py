"""The gateway: an actor that serves an engine over HTTP."""

from __future__ import annotations

import logging
import math
import socket
import ssl
from types import TracebackType
from typing import Any, Self, cast

import anyio
from hypercorn.asyncio import serve
from hypercorn.config import Config

from ..core import Actor, Ask, Inbox, Stopped
from .options import GatewayOptions
from .room import Room
from .routes import make_app
from .service import Service

__all__ = ["Address", "Gateway", "check"]

_LOG = logging.getLogger("callboard.gateway")
_CLOSING_S = 2.0  # for connections to close once their exchanges have ended


class Address(Ask[str], frozen=True):
    """Tell the URL to speak to, such as http://127.0.0.1:30000."""


class Gateway(Actor[Address]):
    """Serve `service` until told to stop: HTTP/1.1, and HTTP/2 with prior knowledge or over TLS.

    It listens once spawned.  A stop takes no more requests and gives those in progress options.grace_s seconds; the
    supervisor's own grace must be longer than that by a few.  Raises OSError if the address is taken, ValueError if
    an option is out of range or no certificate.  It installs no signal handler.
    """

    def __init__(self, service: Service, options: GatewayOptions | None = None) -> None:
        self._options = options or GatewayOptions()
        self._options.verify()
        self._room = Room(service, self._options)
        self._app = make_app(self._room)
        self._socket: socket.socket | None = None
        self._stop = anyio.Event()
        self._url = ""

    async def __aenter__(self) -> Self:
        _check_certificate(self._options)
        self._socket = await _listen(self._options)
        host, port = self._socket.getsockname()[:2]
        scheme = "http" if self._options.certfile is None else "https"
        self._url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._socket is not None:
            self._socket.close()

    async def run(self, inbox: Inbox[Address]) -> None:
        """Answer for the address while the server runs beside; then stop it with grace."""
        stopped: Stopped | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._serve)
            try:
                while True:
                    _, reply = await inbox.get()
                    if reply is not None:
                        reply.answer(self._url)
            except Stopped as error:
                stopped = error
            finally:
                self._stop.set()
                await self._room.drain(self._options.grace_s)
        if stopped is not None:
            raise stopped

    async def _serve(self) -> None:
        # Shielded: Hypercorn closes its connections only if it is told to stop, not if it is cancelled.  `run` tells
        # it, also when it is cancelled itself, and what it still does then is bounded by graceful_timeout.
        with anyio.CancelScope(shield=True):
            app = cast("Any", self._app)  # Starlette and Hypercorn each type ASGI in their own words
            await serve(app, self._config(), shutdown_trigger=self._stop.wait)
        if not self._stop.is_set():
            raise RuntimeError("the HTTP server ended by itself")

    def _config(self) -> Config:
        assert self._socket is not None
        options = self._options
        config = Config()
        # Hypercorn owns the socket from here on: when it stops, nobody else may keep the port listening.
        config.bind = [f"fd://{self._socket.detach()}"]
        config.certfile, config.keyfile = options.certfile, options.keyfile
        config.errorlog = _LOG
        config.accesslog = None
        config.include_server_header = False
        config.h11_max_incomplete_size = options.header_bytes
        config.h2_max_header_list_size = options.header_bytes
        config.h2_max_concurrent_streams = options.streams_per_connection
        config.keep_alive_timeout = options.keep_alive_s
        config.keep_alive_max_requests = 1 << 40  # a long-lived client is no reason to hang up
        config.backlog = options.backlog
        config.graceful_timeout = math.ceil(options.grace_s + _CLOSING_S)
        return config


async def check(options: GatewayOptions) -> None:
    """Raise what a gateway's start would: OSError for an address, ValueError for the rest.  Nothing stays bound.

    For whoever has slow work to do first (a model to load): a slip should not wait for it.
    """
    options.verify()
    _check_certificate(options)
    (await _listen(options)).close()


def _check_certificate(options: GatewayOptions) -> None:
    certfile, keyfile = options.certfile, options.keyfile
    if certfile is None or keyfile is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, keyfile)
    except ssl.SSLError as error:
        told = f"certfile, keyfile: {certfile} and {keyfile} are not a PEM certificate and its key"
        raise ValueError(told) from error
    except OSError as error:
        raise ValueError(f"certfile, keyfile: {certfile} or {keyfile} cannot be read: {error.strerror}") from error


async def _listen(options: GatewayOptions) -> socket.socket:
    """Bind and listen, so that a taken address fails the start and port 0 is known at once."""
    try:
        found = await anyio.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise OSError(error.errno, f"cannot listen on host {options.host!r}: {error.strerror}") from error
    family, kind, protocol, _, address = found[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bound.setblocking(False)
        bound.bind(address)
        bound.listen(options.backlog)
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"cannot listen on {options.host}:{options.port}: {error.strerror}") from error
    return bound
