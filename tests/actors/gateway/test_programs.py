"""Programs of clients elsewhere have leases while their client is connected, whatever it says or does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from callboard.actors.gateway import ApiKey, sessions

from ..collector import until
from .fake_engine import FakeEngine
from .serving import Served, serving

pytestmark = pytest.mark.anyio

A, B = "key-of-alice-0001", "key-of-bob-000002"
KEYS = (ApiKey("alice", A), ApiKey("bob", B))


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


@asynccontextmanager
async def session(served: Served, key: str = "") -> AsyncIterator[str]:
    """Open one, and leave it as a client that vanishes does."""
    async with served.client.stream("POST", "/programs", json={}, headers=bearer(key)) as reply:
        assert reply.status_code == 200
        async for line in reply.aiter_lines():
            yield line.removeprefix('data: {"session":"').removesuffix('"}')
            break


async def ask(served: Served, token: str, number: Any, key: str = "", text: Any = "x", **more: Any) -> Any:
    named = {"session": token, "number": number, **more}
    return await served.client.post("/generate", json={"text": text, "program": named}, headers=bearer(key))


async def test_programs_have_leases_until_they_end_or_their_client_vanishes():
    engine = FakeEngine()
    with anyio.fail_after(20):
        async with serving(engine) as served:
            async with session(served) as token:
                for number, more in ((7, {}), (7, {"branch": 8}), (7, {"branch": 9}), (10, {})):
                    assert (await ask(served, token, number, **more)).status_code == 200
                assert engine.programs == [1, 1, 1, 4]
                assert engine.held == [1, 2, 3, 4]
                assert engine.leases == {1, 2, 3, 4}
                await served.post("/programs/end", session=token, numbers=[8, 99, 8])
                assert engine.leases == {1, 3, 4}
            await until(lambda: not engine.leases)
            assert (await ask(served, token, 7)).status_code == 200, "a session that is over is nobody's"
            assert (engine.programs[-1], engine.leases) == (0, set())
            assert (await served.post("/programs/end", session=token, numbers=[7])).json() == {"success": True}


async def test_a_lease_in_use_is_given_up_behind_its_last_request():
    engine = FakeEngine()
    with anyio.fail_after(20):
        async with serving(engine) as served, anyio.create_task_group() as group:
            async with session(served) as token:
                group.start_soon(lambda: ask(served, token, 1, text="SILENT"))
                await until(lambda: engine.started == 1)
                await served.post("/programs/end", session=token, numbers=[1])
                assert engine.leases == {1}
                await ask(served, token, 1)
                assert engine.programs == [1, 2], "a number that has ended may be another's"
            await until(lambda: engine.leases == {1})
            group.cancel_scope.cancel()
        assert not engine.leases


async def test_another_tenant_s_session_is_none():
    engine = FakeEngine()
    with anyio.fail_after(20):
        async with serving(engine, api_keys=KEYS) as served, session(served, A) as token:
            await ask(served, token, 1, A)
            assert (await ask(served, token, 1, B)).status_code == 200
            assert engine.programs == [1, 0]
            body = {"session": token, "numbers": [1]}
            reply = await served.client.post("/programs/end", json=body, headers=bearer(B))
            assert reply.json() == {"success": True}
            assert engine.leases == {1}
            assert (await served.client.post("/programs", json={})).status_code == 401


@pytest.mark.parametrize(
    ("given", "field"),
    [("x", "program"), ({"number": 1}, "program.session"), ({"session": "x" * 32, "number": 1}, "program.session"),
     ({"session": "0" * 31, "number": 1}, "program.session"), ({"session": "0" * 32}, "program.number"),
     ({"session": "0" * 32, "number": 0}, "program.number"), ({"session": "0" * 32, "number": "1"}, "program.number"),
     ({"session": "0" * 32, "number": 1, "branch": 1 << 53}, "program.branch"),
     ({"session": "0" * 32, "number": 1, "branch": -1}, "program.branch"),
     ({"session": "0" * 32, "number": 1, "name": "x"}, "program.name")],
)  # fmt: skip
async def test_what_no_program_is_called_is_refused_by_name(given: Any, field: str):
    engine = FakeEngine()
    with anyio.fail_after(20):
        async with serving(engine) as served:
            reply = await served.post("/generate", text="x", program=given)
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, field)
            assert engine.started == 0
            reply = await served.post("/programs/end", session="0" * 32, numbers=[1] * 65_537)
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "numbers")


async def test_sessions_and_programs_have_caps(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sessions, "SESSIONS", 1)
    monkeypatch.setattr(sessions, "PROGRAMS", 2)
    engine = FakeEngine()
    with anyio.fail_after(20):
        async with serving(engine, api_keys=KEYS) as served, session(served, A) as token:
            assert (await served.client.post("/programs", json={}, headers=bearer(A))).status_code == 429
            async with session(served, B) as other:
                await ask(served, other, 1, B)
                for number in (1, 2, 1, 3):
                    await ask(served, token, number, A)
                assert engine.leases == {1, 2, 4}, "of alice's the longest idle went, of bob's none"


async def test_a_batch_is_of_its_program_and_what_waits_is_said_to():
    engine = FakeEngine()
    with anyio.fail_after(20):
        async with serving(engine) as served, session(served) as token:
            await ask(served, token, 3, text=["x", "y"], branch=4)
            assert (engine.programs, engine.held) == ([1, 1], [2, 2])
            await until(lambda: engine.paused == [1, 2])
            await ask(served, token, 3, text="z")
            await until(lambda: engine.paused == [1, 2, 1])


async def test_what_a_program_does_not_go_on_from_is_its_own_and_not_kept_for_it():
    engine = FakeEngine()
    with anyio.fail_after(20):
        async with serving(engine) as served, session(served) as token:
            await ask(served, token, 3, branch=4)
            await ask(served, token, 3, branch=0)
            assert (engine.programs, engine.held) == ([1, 1], [2, 0])


async def test_a_gateway_that_stops_waits_for_no_session():
    engine = FakeEngine()
    with anyio.fail_after(20):
        async with serving(engine, grace_s=3600.0) as served:
            async with served.client.stream("POST", "/programs", json={}) as reply:
                lines = reply.aiter_lines()
                assert (await anext(lines)).startswith("data: {")
                async with anyio.create_task_group() as group:
                    group.start_soon(served.ref.stop)
                    assert [line async for line in lines if line] == ["data: [DONE]"]
