"""A client that leaves aborts its request, whatever it asked for and however it speaks."""

from __future__ import annotations

from typing import Any

import anyio
import h2.connection
import h2.events
import msgspec
import pytest
from anyio.abc import SocketStream

from .fake_engine import FakeEngine
from .serving import serving

pytestmark = pytest.mark.anyio

# where a client may be when it leaves: before the first token, or within the output
REQUESTS: list[tuple[str, dict[str, Any], int]] = [
    ("/generate", {"text": "SILENT"}, 1),
    ("/generate", {"text": "HANG"}, 1),
    ("/generate", {"text": "SILENT", "stream": True}, 1),
    ("/generate", {"text": "HANG", "stream": True}, 1),
    ("/generate", {"text": ["HANG a", "SILENT b"]}, 2),
    ("/generate", {"text": ["HANG a", "SILENT b"], "stream": True}, 2),
    ("/generate", {"text": "HANG", "sampling_params": {"n": 3}}, 3),
    ("/v1/completions", {"prompt": "HANG"}, 1),
    ("/v1/completions", {"prompt": "HANG", "n": 2}, 2),
    ("/v1/completions", {"prompt": ["HANG", "HANG"], "stream": True}, 2),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "HANG"}]}, 1),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "HANG"}], "n": 2, "stream": True}, 2),
]


async def test_closing_the_connection_aborts():
    with anyio.fail_after(60):
        engine = FakeEngine()
        async with serving(engine) as served:
            for path, body, count in REQUESTS:
                before = len(engine.ended)
                engine.quiet = anyio.Event()
                async with anyio.create_task_group() as group:

                    async def post(path: str = path, body: dict[str, Any] = body) -> None:
                        await served.client.post(path, json=body)

                    group.start_soon(post)
                    while sum(engine.live.values()) < count:
                        await anyio.lowlevel.checkpoint()
                    group.cancel_scope.cancel()
                await engine.quiet.wait()
                assert engine.ended[before:] == ["closed"] * count, (path, body)
            assert (await served.post("/generate", text="fine")).json()["text"] == "fine"


async def test_resetting_an_http2_stream_aborts_and_leaves_the_connection():
    with anyio.fail_after(60):
        engine = FakeEngine()
        async with serving(engine) as served:
            async with await anyio.connect_tcp("127.0.0.1", int(served.url.rpartition(":")[2])) as socket:
                client = Http2(socket)
                await client.begin()
                for path, body, count in REQUESTS:
                    before = len(engine.ended)
                    engine.quiet = anyio.Event()
                    stream = await client.send(path, body)
                    while sum(engine.live.values()) < count:
                        await anyio.lowlevel.checkpoint()
                    await client.reset(stream)
                    await engine.quiet.wait()
                    assert engine.ended[before:] == ["closed"] * count, (path, body)
                stream = await client.send("/generate", {"text": "fine"})
                assert msgspec.json.decode(await client.read(stream))["text"] == "fine"


class Http2:
    """As much of an HTTP/2 client as it takes to reset a stream, which httpx does not do."""

    def __init__(self, socket: SocketStream) -> None:
        self._socket = socket
        self._connection = h2.connection.H2Connection()

    async def begin(self) -> None:
        self._connection.initiate_connection()
        await self._flush()

    async def send(self, path: str, body: dict[str, Any]) -> int:
        stream = self._connection.get_next_available_stream_id()
        headers = [(":method", "POST"), (":path", path), (":scheme", "http"), (":authority", "x")]
        self._connection.send_headers(stream, [*headers, ("content-type", "application/json")])
        self._connection.send_data(stream, msgspec.json.encode(body), end_stream=True)
        await self._flush()
        return stream

    async def reset(self, stream: int) -> None:
        self._connection.reset_stream(stream)
        await self._flush()

    async def read(self, stream: int) -> bytes:
        body = b""
        while True:
            for event in self._connection.receive_data(await self._socket.receive()):
                if isinstance(event, h2.events.DataReceived) and event.stream_id == stream:
                    body += event.data
                if isinstance(event, h2.events.StreamEnded) and event.stream_id == stream:
                    return body

    async def _flush(self) -> None:
        await self._socket.send(self._connection.data_to_send())


async def test_leaving_in_the_middle_of_the_body_starts_nothing():
    async def pieces():
        yield b'{"text": "x"'
        await anyio.sleep_forever()

    engine = FakeEngine()
    with anyio.fail_after(20):
        async with serving(engine) as served:
            async with anyio.create_task_group() as group:

                async def post() -> None:
                    await served.client.post(
                        "/generate", content=pieces(), headers={"content-type": "application/json"}
                    )

                group.start_soon(post)
                while "callboard_http_live 2.0" not in (await served.client.get("/metrics")).text:
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            while "callboard_http_live 1.0" not in (await served.client.get("/metrics")).text:
                await anyio.lowlevel.checkpoint()
    assert engine.started == 0


async def test_a_client_that_does_not_read_holds_up_nobody():
    """Its stream stalls on its own connection; others are served, and when it leaves its request ends."""
    engine = FakeEngine()
    engine.limits = engine.limits._replace(context_length=1 << 24)
    with anyio.fail_after(60):
        async with serving(engine) as served:
            port = int(served.url.rpartition(":")[2])
            stream = await anyio.connect_tcp("127.0.0.1", port)
            # 2,000 cumulative events of up to 2 kB: more than the sockets' buffers hold
            body = b'{"stream": true, "sampling_params": {"max_new_tokens": 8000}, "text": "%s"}' % (b"z" * 8000)
            head = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            await stream.send(head % len(body) + body)
            await engine.busy.wait()
            for _ in range(20):
                assert (await served.post("/generate", text="fine")).json()["text"] == "fine"
            assert sum(engine.live.values()) == 1
            await stream.aclose()
            while +engine.live:
                await anyio.lowlevel.checkpoint()
    assert engine.ended.count("closed") == 1
