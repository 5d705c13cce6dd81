"""The server itself: protocols, many streams at once, and the routes that tell."""

from __future__ import annotations

import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from hypercorn.asyncio import serve
from hypercorn.config import Config

from callboard.actors.gateway import Address

from .fake_engine import FakeEngine
from .serving import events, serving

pytestmark = pytest.mark.anyio


async def test_http2_with_prior_knowledge():
    with anyio.fail_after(20):
        async with serving(FakeEngine()) as served:
            async with httpx.AsyncClient(base_url=served.url, http1=False, http2=True, trust_env=False) as client:
                whole = await client.post("/generate", json={"text": "over h2"})
                stream = await client.post("/v1/completions", json={"prompt": "abc", "stream": True})
    assert (whole.http_version, whole.json()["text"]) == ("HTTP/2", "over h2")
    assert events(stream.text)[-1] == "[DONE]"


async def test_many_streams_of_one_http2_connection():
    with anyio.fail_after(60):
        async with serving(FakeEngine()) as served:
            limits = httpx.Limits(max_connections=1)
            async with httpx.AsyncClient(
                base_url=served.url, http1=False, http2=True, limits=limits, timeout=30.0, trust_env=False
            ) as client:
                await _many(client, 100)


async def test_many_streams_of_as_many_connections():
    with anyio.fail_after(60):
        async with serving(FakeEngine()) as served:
            await _many(served.client, 100)


async def _many(client: httpx.AsyncClient, count: int) -> None:
    texts: dict[int, str] = {}

    async def one(index: int) -> None:
        reply = await client.post("/v1/completions", json={"prompt": f"stream {index}", "stream": True})
        *chunks, done = events(reply.text)
        assert done == "[DONE]"
        texts[index] = "".join(chunk["choices"][0]["text"] for chunk in chunks)

    async with anyio.create_task_group() as group:
        for index in range(count):
            group.start_soon(one, index)
    assert texts == {index: f"stream {index}" for index in range(count)}


async def test_one_connection_serves_one_request_after_another():
    with anyio.fail_after(30):
        async with serving(FakeEngine()) as served:
            async with httpx.AsyncClient(
                base_url=served.url, limits=httpx.Limits(max_connections=1), trust_env=False
            ) as client:
                for index in range(30):
                    assert (await client.post("/generate", json={"text": f"{index}"})).json()["text"] == f"{index}"
                    assert (await client.get("/nothing")).status_code == 404


async def test_tls(tmp_path: Path):
    await anyio.run_process(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=tmp_path,
    )  # fmt: skip
    context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    files = {"certfile": str(tmp_path / "cert.pem"), "keyfile": str(tmp_path / "key.pem")}
    with anyio.fail_after(30):
        async with serving(FakeEngine(), **files) as served:
            assert served.url.startswith("https://")
            for http2 in (False, True):
                async with httpx.AsyncClient(
                    base_url=served.url, http2=http2, verify=context, trust_env=False
                ) as client:
                    reply = await client.post("/generate", json={"text": "safe"})
                    assert reply.json()["text"] == "safe"
                    assert reply.http_version == ("HTTP/2" if http2 else "HTTP/1.1")


async def test_health_is_ready_or_503_with_the_reason():
    engine = FakeEngine()
    with anyio.fail_after(20):
        async with serving(engine) as served:
            well = await served.client.get("/health")
            engine.ready = False
            ill = await served.client.get("/health")
            alive = await served.client.get("/live")
    assert (well.status_code, well.json()) == (200, {"live": True, "ready": True, "reason": ""})
    assert (ill.status_code, ill.json()["reason"]) == (503, "the worker restarts")
    assert alive.status_code == 200


async def test_model_and_server_tell_about_themselves():
    with anyio.fail_after(20):
        async with serving(FakeEngine()) as served:
            infos = [(await served.client.get(path)).json() for path in ("/model_info", "/get_model_info")]
            server = (await served.client.get("/server_info")).json()
    assert infos[0] == infos[1]
    assert infos[0]["model_path"] == "fake"
    assert infos[0]["is_generation"] is True
    assert server["served_model_name"] == "fake"
    assert server["statistics"]["requests"]["started"] == 0
    assert server["options"]["choices"] == 128


async def test_metrics_count_exchanges_and_the_engine():
    with anyio.fail_after(20):
        async with serving(FakeEngine()) as served:
            await served.post("/generate", text="x", stream=True)
            await served.post("/generate", text="OVERLOAD")
            page = (await served.client.get("/metrics")).text
        async with serving(FakeEngine()) as other:  # a registry of its own: two gateways do not mix
            second = (await other.client.get("/metrics")).text
    assert 'callboard_http_exchanges_total{route="/generate",status="200"} 1.0' in page
    assert 'callboard_http_exchanges_total{route="/generate",status="429"} 1.0' in page
    assert 'callboard_http_first_event_seconds_count{route="/generate"} 1.0' in page
    assert "callboard_requests_started_total 1.0" in page
    assert "callboard_requests_live 0.0" in page
    assert "callboard_engine_up 1.0" in page
    assert 'route="/generate"' not in second


async def test_tokens_there_and_back():
    with anyio.fail_after(20):
        async with serving(FakeEngine()) as served:
            there = (await served.post("/tokenize", prompt="abc")).json()
            back = (await served.post("/detokenize", tokens=there["tokens"])).json()
            each = (await served.post("/detokenize", tokens=[[97], [98, 99]])).json()
            plain = (await served.post("/detokenize", tokens=[0, 97])).json()
            special = (await served.post("/detokenize", tokens=[0, 97], skip_special_tokens=False)).json()
    assert (plain, special) == ({"text": "a"}, {"text": "\x00a"})
    assert each == {"text": ["a", "bc"]}
    assert there == {"tokens": [97, 98, 99], "count": 3, "max_model_len": 4096}
    assert back == {"text": "abc"}


async def test_the_cache_is_flushed_by_get_and_post():
    with anyio.fail_after(20):
        async with serving(FakeEngine()) as served:
            replies = [await served.client.request(method, "/flush_cache") for method in ("GET", "POST")]
    assert [reply.json() for reply in replies] == [{"success": True, "freed": 12, "held": 3}] * 2


async def test_an_abandoned_stall_of_statistics_does_not_stall_the_page(monkeypatch: pytest.MonkeyPatch):
    engine = FakeEngine()

    async def never() -> dict[str, Any]:
        await anyio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(engine, "statistics", never)
    monkeypatch.setattr("callboard.actors.gateway.information._PATIENCE_S", 0.01)
    with anyio.fail_after(20):
        async with serving(engine) as served:
            page = (await served.client.get("/metrics")).text
    assert "callboard_engine_up 0.0" in page


async def test_a_crashed_gateway_listens_again_on_the_same_port(monkeypatch: pytest.MonkeyPatch):
    engine = FakeEngine()
    crashes = [True]

    async def crash_once(app: Any, config: Config, **arguments: Any) -> None:
        if not crashes:
            return await serve(app, config, **arguments)
        crashes.clear()
        for taken in config.create_sockets().insecure_sockets:
            taken.close()
        raise RuntimeError("the server fell over")

    with anyio.fail_after(30):
        async with serving(engine) as first:
            port = int(first.url.rpartition(":")[2])
        monkeypatch.setattr("callboard.actors.gateway.gateway.serve", crash_once)
        async with serving(engine, port=port) as served:
            while crashes:
                await anyio.lowlevel.checkpoint()
            assert await served.ref.ask(Address()) == served.url == first.url
            assert (await served.post("/generate", text="again")).json()["text"] == "again"


def test_importing_the_gateway_starts_nothing():
    script = (
        "import callboard.actors.gateway, threading, logging; print(threading.active_count(), logging.root.handlers)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.strip() == "1 []"
