"""Programs that run over HTTP hold leases at the server as those in its process do, and no longer than they live."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

import callboard as cb
from callboard import Engine, RuntimeEndpoint, SamplingParams
from callboard.actors.gateway import ApiKey

from ...actors.gateway.fake_engine import FakeEngine
from ...actors.gateway.serving import Served
from ...actors.gateway.serving import serving as serving_engine
from ...actors.tiny_model import write_tiny_model
from .dialects import NATIVE, service_of
from .service import serving

pytestmark = pytest.mark.anyio

KEYS = (ApiKey("alice", "key-of-alice-0001"), ApiKey("bob", "key-of-bob-000002"))


@asynccontextmanager
async def served(folder: Path, **options: Any) -> AsyncIterator[tuple[Engine, Served]]:
    model = write_tiny_model(folder, context_length=256, eos=True)
    async with (
        Engine(model, load_format="dummy", threads=1, seed=1) as engine,
        serving_engine(engine, **options) as server,
    ):
        yield engine, server


async def leases(engine: Engine) -> int:
    """Count them once a plain request has passed, which tells the scheduler of those that are over."""
    await engine.complete("x", SamplingParams(max_new_tokens=1))
    return int((await engine.statistics())["scheduler"]["leases"])


async def until_there_are(engine: Engine, count: int) -> None:
    while await leases(engine) != count:
        await anyio.lowlevel.checkpoint()


async def test_a_program_there_holds_one_lease_and_each_branch_its_own_until_they_end(tmp_path: Path) -> None:
    @cb.function
    async def program(s: Any) -> None:
        s += "One " + cb.gen("a", max_tokens=2)
        await s.aget("a")
        assert await leases(engine) == 1
        forks = s.fork(3)
        for branch in forks:
            branch += "two " + cb.gen("b", max_tokens=2)
        for branch in forks:
            await branch.aget("b")
        assert await leases(engine) == 4
        await forks.ajoin()
        s += "three " + cb.gen("c", max_tokens=2)
        await s.aget("c")
        await until_there_are(engine, 1)

    with anyio.fail_after(60):
        async with served(tmp_path) as (engine, server), RuntimeEndpoint(server.url) as remote:
            await program.arun(backend=remote, ignore_eos=True)
            await until_there_are(engine, 0)


async def test_a_program_that_is_cancelled_there_gives_its_lease_up(tmp_path: Path) -> None:
    @cb.function
    async def program(s: Any) -> None:
        s += "One " + cb.gen("a", max_tokens=2)
        await s.aget("a")
        reached.set()
        await anyio.sleep_forever()

    reached = anyio.Event()
    with anyio.fail_after(60):
        async with served(tmp_path) as (engine, server), RuntimeEndpoint(server.url) as remote:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: program.arun(backend=remote))
                await reached.wait()
                assert await leases(engine) == 1
                while not (await engine.statistics())["scheduler"]["programs_paused"]:
                    await anyio.lowlevel.checkpoint()  # a server takes what asks for nothing to wait on its own world
                tasks.cancel_scope.cancel()
            await until_there_are(engine, 0)


async def test_a_client_that_vanishes_holds_nothing(tmp_path: Path) -> None:
    """It says no word more: its connection is gone."""
    with anyio.fail_after(60):
        async with served(tmp_path) as (engine, server):
            host, port = server.url.removeprefix("http://").split(":")
            client = await anyio.connect_tcp(host, int(port))
            await client.send(_post("/programs", {}))
            heard = b""
            while b"session" not in heard or b"\n\n" not in heard.partition(b"session")[2]:
                heard += await client.receive()
            token = heard.partition(b'"session":"')[2][:32].decode()
            for number in (1, 2):
                params = {"max_new_tokens": 2}
                named = {"session": token, "number": number}
                await server.post("/generate", text="The one", sampling_params=params, program=named)
            assert await leases(engine) == 2
            await client.aclose()
            await until_there_are(engine, 0)


def _post(path: str, body: Any) -> bytes:
    data = msgspec.json.encode(body)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


async def test_tenants_have_leases_of_their_own(tmp_path: Path) -> None:
    @cb.function
    async def program(s: Any, others: Any) -> None:
        s += "One " + cb.gen("a", max_tokens=2)
        await s.aget("a")
        if others is None:
            assert await leases(engine) == 2
        else:
            await program.arun(None, backend=others)
            await until_there_are(engine, 1)

    with anyio.fail_after(60):
        async with served(tmp_path, api_keys=KEYS) as (engine, server):
            alice, bob = (RuntimeEndpoint(server.url, one.key) for one in KEYS)
            async with alice, bob:
                await program.arun(bob, backend=alice)


async def test_branches_of_a_program_are_known_as_such_to_the_scheduler() -> None:
    @cb.function
    async def program(s: Any) -> None:
        s += "x"
        forks = s.fork(2)
        forks += cb.gen("b", max_tokens=2)
        await forks.ajoin()
        s += cb.gen("c", max_tokens=2)

    engine = FakeEngine()
    with anyio.fail_after(60):
        async with serving_engine(engine) as server, RuntimeEndpoint(server.url) as remote:
            await program.arun(backend=remote)
            asked = list(zip(engine.programs, engine.held, strict=True))
            root = asked[0][0]
            assert root
            assert asked[0] == asked[-1] == (root, root), "what the branches share, and what is said behind them"
            assert [number for number, _ in asked] == [root] * 4
            assert len({lease for _, lease in asked}) == 3
            while engine.leases:
                await anyio.lowlevel.checkpoint()


async def test_choices_are_their_program_s_and_leave_it_what_it_goes_on_from() -> None:
    @cb.function
    async def program(s: Any) -> None:
        s += "x" + cb.select("a", ["aa", "b"]) + cb.gen("b", max_tokens=2)
        s += cb.select("c", ["dd", "ee"], choices_method="unconditional_likelihood_normalized")

    engine = FakeEngine()
    with anyio.fail_after(60):
        async with serving_engine(engine) as server, RuntimeEndpoint(server.url) as remote:
            await program.arun(backend=remote)
            asked = list(zip(engine.prompts, engine.programs, engine.held, strict=True))
            root = asked[0][1]
            assert root
            assert {number for _, number, _ in asked} == {root}
            alone = [held for prompt, _, held in asked if prompt in ("dd", "ee")]
            assert alone == [0, 0], "choices by themselves are nothing that it goes on from"
            assert {held for prompt, _, held in asked if prompt not in ("dd", "ee")} == {root}


async def test_a_session_that_breaks_costs_no_program_anything() -> None:
    @cb.function
    async def program(s: Any) -> None:
        s += "x" + cb.gen("a", max_tokens=2)

    engine = FakeEngine()
    with anyio.fail_after(60):
        async with serving_engine(engine) as server, RuntimeEndpoint(server.url) as remote:
            state = await program.arun(backend=remote)
            session = remote._session
            assert session is not None
            session._token = "0" * 32  # as one has that the server no longer knows
            assert (await program.arun(backend=remote))["a"] == state["a"]
            session._token = ""  # as between two
            assert (await program.arun(backend=remote))["a"] == state["a"]
    assert engine.programs == [1, 0, 0]


async def test_a_server_that_knows_of_no_programs_is_not_told_of_them() -> None:
    @cb.function
    async def program(s: Any) -> None:
        s += "x" + cb.gen("a", max_tokens=2)

    with anyio.fail_after(20):
        async with serving(service_of(NATIVE)) as service, RuntimeEndpoint(service.url) as remote:
            await program.arun(backend=remote)
    assert {one.path for one in service.asked} == {"/generate"}
    assert not any("program" in one.body for one in service.asked)
