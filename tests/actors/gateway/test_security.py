"""Who may do what, and what is never told."""

from __future__ import annotations

from typing import Any

import anyio
import httpx
import msgspec
import pytest
from starlette.types import ASGIApp

from callboard.actors.gateway.options import GatewayOptions
from callboard.actors.gateway.room import Room
from callboard.actors.gateway.routes import ROUTES, RouteEntry, make_app

from .fake_engine import FakeEngine
from .serving import serving

pytestmark = pytest.mark.anyio

KEY, ADMIN = "sk-user-key", "sk-admin-key"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_a_refusal_that_needs_no_body_leaves_the_connection_whole():
    """A client goes on with its connection; one that the server ended would lose the request behind the refusal."""
    body = b'{"text": "' + b"x" * 100_000 + b'"}'
    head = b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % len(body)
    with anyio.fail_after(30):
        async with serving(FakeEngine(), api_key=KEY) as served:
            url = served.client.base_url
            async with await anyio.connect_tcp(url.host, url.port or 80) as stream:
                heard = b""
                await stream.send(head + b"\r\n")
                for _ in range(50):  # the server has the head, and could refuse by it alone
                    await anyio.wait_all_tasks_blocked()
                await stream.send(body)
                while b"invalid_api_key" not in heard:
                    heard += await stream.receive()
                assert heard.startswith(b"HTTP/1.1 401")
                assert b"connection: close" not in heard.lower()
                await stream.send(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
                assert (await stream.receive()).startswith(b"HTTP/1.1 200")


async def test_every_route_asks_for_what_its_level_says():
    levels = {"open": 0, "key": 1, "admin": 2}
    with anyio.fail_after(30):
        async with serving(FakeEngine(), api_key=KEY, admin_api_key=ADMIN) as served:
            for entry in ROUTES:
                assert entry.level is not None
                path = entry.path.replace("{name:path}", "fake")
                for rank, headers in enumerate(({}, bearer(KEY), bearer(ADMIN))):
                    reply = await served.client.request(entry.methods[0], path, json={"text": "x"}, headers=headers)
                    allowed = rank >= levels[entry.level]
                    assert (reply.status_code != 401) == allowed, (path, rank)
                for wrong in ({"authorization": KEY}, {"authorization": f"Basic {KEY}"}, bearer("x")):
                    reply = await served.client.request(entry.methods[0], path, headers=wrong)
                    assert (reply.status_code == 401) == (entry.level != "open"), (path, wrong)


async def test_a_refusal_says_how_to_give_the_key_and_reads_no_body():
    with anyio.fail_after(20):
        async with serving(FakeEngine(), api_key=KEY) as served:
            reply = await served.post("/generate", text="x")
            flush = await served.client.post("/flush_cache", headers=bearer(KEY))
    assert reply.headers["www-authenticate"] == "Bearer"
    assert reply.json()["error"]["type"] == "authentication_error"
    assert flush.json() == {"success": True, "freed": 12, "held": 3}  # one key alone is the administrator's too


async def test_a_route_without_a_level_fails_the_start():
    room = Room(FakeEngine(), GatewayOptions())
    forgotten = RouteEntry("/new", ("GET",), None, ROUTES[0].handler)
    with pytest.raises(ValueError, match="route /new: level None is none of"):
        make_app(room, (*ROUTES, forgotten))


async def test_no_route_tells_a_key_or_a_path():
    with anyio.fail_after(20):
        async with serving(FakeEngine(), api_key=KEY, admin_api_key=ADMIN) as served:
            for entry in ROUTES:
                if "GET" in entry.methods:
                    path = entry.path.replace("{name:path}", "fake")
                    reply = await served.client.get(path, headers=bearer(ADMIN))
                    assert reply.status_code == 200, path
                    assert KEY not in reply.text
                    assert ADMIN not in reply.text
            info = (await served.client.get("/server_info", headers=bearer(KEY))).json()
    assert info["guarded"] is True
    assert not {"api_key", "admin_api_key", "certfile", "keyfile"} & set(info["options"])


async def test_what_a_browser_sends_unasked_is_not_taken():
    with anyio.fail_after(20):
        async with serving(FakeEngine()) as served:
            body = msgspec.json.encode({"text": "x"})
            for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
                headers = {"content-type": kind} if kind else {}
                reply = await served.client.post("/generate", content=body, headers=headers)
                assert reply.status_code == 415, kind
            plain = await served.client.post("/generate", content=body, headers={"content-type": "application/json"})
            asked = await served.client.options("/generate", headers={"origin": "https://evil.example"})
    assert plain.status_code == 200
    assert not [name for name in (*plain.headers, *asked.headers) if name.startswith("access-control-")]


async def test_requests_of_unknown_names_are_not_told_from_known_ones():
    with anyio.fail_after(20):
        async with serving(FakeEngine()) as served:
            names = {(await served.post("/generate", text="x")).json()["meta_info"]["id"] for _ in range(20)}
            reply = await served.post("/abort_request", rid="nobody")
    assert len(names) == 20
    assert min(map(len, names)) >= 32
    assert (reply.status_code, reply.json()) == (200, {"success": True})


async def test_a_websocket_is_closed():
    with anyio.fail_after(20):
        async with serving(FakeEngine()) as served:
            upgrade = {
                "connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13",
                "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
            }  # fmt: skip
            reply = await served.client.get("/generate", headers=upgrade)
            assert (await served.post("/generate", text="x")).status_code == 200
    assert reply.status_code in (400, 403)


async def test_a_refusal_over_http2_leaves_the_other_requests_of_its_connection():
    """A proxy sends many people's requests over one connection: what one of them does wrong is no other's loss."""
    engine = FakeEngine()
    kind = {"content-type": "application/json"}
    with anyio.fail_after(30):
        async with serving(engine, api_key=KEY) as served:
            async with httpx.AsyncClient(base_url=served.url, http2=True, http1=False, trust_env=False) as client:
                async with client.stream(
                    "POST", "/generate", json={"text": "HANG", "stream": True}, headers=bearer(KEY)
                ):
                    refused = await client.post("/generate", content=b"x" * (3 << 20), headers=kind)
                    assert refused.status_code == 401
                    assert (await client.get("/health")).status_code == 200
                    assert engine.ended == []


class Connection:
    """What a server knows of one request: pieces of its body that never end, room for one of them, and the answer."""

    def __init__(self) -> None:
        self._sent, self._received = anyio.create_memory_object_stream[dict[str, Any]](1)
        self.answer: list[dict[str, Any]] = []

    async def upload(self, *, whole: anyio.Event) -> None:
        while not whole.is_set():
            await self._sent.send({"type": "http.request", "body": b"", "more_body": True})

    async def ask(self, app: ASGIApp, path: str) -> None:
        """Hand a request to the application; return once it and whoever reads the connection have ended."""
        scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": path, "headers": []}
        whole = anyio.Event()

        async def send(message: Any) -> None:
            self.answer.append(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                whole.set()
                await self._sent.send({"type": "http.disconnect"})  # behind the pieces that wait

        async def reading() -> None:
            await self.upload(whole=whole)

        async with self._sent, self._received, anyio.create_task_group() as group:
            group.start_soon(reading)
            await app(scope, self._received.receive, send)


@pytest.mark.parametrize("path", ["/generate", "/health", "/nowhere"])
async def test_who_is_refused_stays_no_longer_than_a_body_may_pause(path: str):
    """However slowly it uploads; and whoever reads its connection never waits for ever with a piece in hand."""
    connection = Connection()
    with anyio.fail_after(20):
        app = make_app(Room(FakeEngine(), GatewayOptions(api_key=KEY, body_timeout_s=0.05)))
        await connection.ask(app, path)
    assert connection.answer[0]["status"] == {"/generate": 401, "/health": 405, "/nowhere": 404}[path]


async def test_a_refusal_that_nobody_is_there_to_take_is_given_up():
    """Over HTTP/2 a write waits for the client's leave to send, and for ever if that is gone."""
    sent, received = anyio.create_memory_object_stream[dict[str, Any]](2)
    scope = {"type": "http", "http_version": "2", "method": "GET", "path": "/nowhere", "headers": []}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sent.send_nowait({"type": "http.disconnect"})
            await anyio.sleep_forever()

    room = Room(FakeEngine(), GatewayOptions())
    with sent, received, anyio.fail_after(20):
        sent.send_nowait({"type": "http.request", "body": b"", "more_body": False})
        await make_app(room)(scope, received.receive, send)
    assert not room.live


async def test_a_body_is_kept_for_those_alone_who_have_a_key():
    with anyio.fail_after(20):
        async with serving(FakeEngine(), api_key=KEY, body_bytes=1000) as served:
            for path, status in (("/nowhere", 404), ("/health", 405), ("/generate", 401)):
                assert (await served.client.post(path, content=b"x" * 2000)).status_code == status
