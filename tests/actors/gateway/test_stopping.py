"""A gateway that is stopped keeps its word to whoever is being answered, for as long as its grace."""

from __future__ import annotations

import anyio
import httpx
import pytest

from .fake_engine import FakeEngine
from .serving import events, serving

pytestmark = pytest.mark.anyio


async def test_what_is_in_progress_is_finished():
    engine = FakeEngine()
    with anyio.fail_after(30):
        async with serving(engine, grace_s=20.0) as served:
            replies: list[httpx.Response] = []

            async def post(stream: bool) -> None:
                replies.append(await served.post("/generate", text="HANG", rid="held", stream=stream))

            async with anyio.create_task_group() as group:
                group.start_soon(post, False)
                group.start_soon(post, True)
                while sum(engine.live.values()) < 2:
                    await anyio.lowlevel.checkpoint()
                held = served.client  # a connection that is open already, to ask on
                group.start_soon(served.ref.stop)
                while (await anyio.to_thread.run_sync(_refused, served.url)) is False:
                    pass
                engine.abort("held")  # the generations end, in their own way, while the gateway drains
            assert sorted(reply.status_code for reply in replies) == [200, 499]
            with pytest.raises(httpx.ConnectError):
                await held.get("/health")
    assert engine.ended == ["failed", "failed"]


def _refused(url: str) -> bool:
    try:
        with httpx.Client(trust_env=False) as client:
            client.get(url + "/live")
    except httpx.TransportError:
        return True
    return False


async def test_what_outlasts_the_grace_is_aborted_and_told_so():
    engine = FakeEngine()
    with anyio.fail_after(30):
        async with serving(engine, grace_s=0.05) as served:
            replies: dict[bool, httpx.Response] = {}

            async def post(stream: bool) -> None:
                replies[stream] = await served.post("/generate", text="HANG", stream=stream)

            async with anyio.create_task_group() as group:
                group.start_soon(post, False)
                group.start_soon(post, True)
                while sum(engine.live.values()) < 2:
                    await anyio.lowlevel.checkpoint()
                await served.ref.stop()
    assert engine.ended == ["closed", "closed"]
    assert replies[False].status_code == 503
    assert replies[False].json()["error"]["code"] == "stopping"
    last = events(replies[True].text)[-1]
    assert last["error"]["code"] == "stopping"


async def test_a_cancelled_block_ends_the_server_and_its_requests():
    engine = FakeEngine()
    with anyio.fail_after(30):
        with anyio.CancelScope() as scope:
            async with serving(engine, grace_s=20.0) as served:
                async with served.client.stream("POST", "/generate", json={"text": "HANG", "stream": True}):
                    scope.cancel()
                    await anyio.sleep_forever()
        assert engine.ended == ["closed"]


async def test_it_can_be_served_from_another_thread():
    """No signal handlers, no need of the main thread."""

    def other() -> str:
        async def main() -> str:
            async with serving(FakeEngine()) as served:
                return (await served.post("/generate", text="hi")).json()["text"]

        return anyio.run(main)

    with anyio.fail_after(30):
        assert await anyio.to_thread.run_sync(other) == "hi"
