"""Tenants share nothing in the cache, nor do a tenant's own salts; names and weights have bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

import callboard as cb
from callboard.actors.backend import Prompt
from callboard.actors.engine import Engine
from callboard.actors.engine_options import EngineOptions
from callboard.actors.errors import Aborted, InvalidRequest
from callboard.actors.sampling import SamplingParams
from callboard.actors.tenancy import cache_namespace, verify_tenant

from .tiny_model import write_tiny_model

pytestmark = pytest.mark.anyio

PROMPT = "One document that several people ask about, and more than once."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), eos=True)


def tiny(folder: Path, **options: Any) -> Engine:
    return Engine(folder, load_format="dummy", seed=1, max_rows=8, kv_slots=2048, threads=1, **options)


def greedy(count: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, temperature=0.0, ignore_eos=True)


async def test_no_two_of_tenant_and_salt_share_a_namespace() -> None:
    pairs = [("", ""), ("a", ""), ("", "a"), ("a", "b"), ("b", "a"), ("ab", ""), ("", "ab"), ("a", "1:b"), ("1:a", "b")]
    assert len({cache_namespace(*pair) for pair in pairs}) == len(pairs)
    assert cache_namespace("a", "b") == cache_namespace("a", "b")
    assert "secret" not in cache_namespace("a", "secret"), "a salt goes no further than its digest"
    assert cache_namespace("", "\ud800") != cache_namespace("", "?"), "JSON may hold what is no text"


@pytest.mark.parametrize("name", ["x" * 129, "a\nb", "salt\t0", "\x00"])
async def test_a_tenants_name_is_short_and_printable(name: str) -> None:
    with pytest.raises(InvalidRequest, match="tenant"):
        verify_tenant(name)
    with pytest.raises(InvalidRequest, match="tenant"):
        cache_namespace(name, "salt")


@pytest.mark.parametrize(
    "weights",
    [{"a": 0}, {"a": -1.0}, {"a": float("nan")}, {"a": float("inf")}, {"a": "2"}, {"a": True}, {"a\n": 1.0},
     {str(number): 1.0 for number in range(4097)}, [("a", 1.0)]],
)  # fmt: skip
async def test_weights_that_no_share_can_be_made_of_are_refused(weights: Any) -> None:
    with pytest.raises(InvalidRequest, match="weights"):
        EngineOptions(weights=weights).verify()
    EngineOptions(weights={"a": 2, "b": 0.5}).verify()


async def test_what_one_has_computed_nobody_else_finds(folder: Path) -> None:
    with anyio.fail_after(60):
        async with tiny(folder) as engine:

            async def cached(**whose: Any) -> int:
                return (await engine.complete(PROMPT, greedy(2), **whose)).finish.cached_tokens

            whole = len(await engine.encode(PROMPT)) // 4 - 1
            everyone: list[dict[str, Any]] = [
                {}, {"tenant": "a"}, {"tenant": "b"}, {"salt": "s"},
                {"tenant": "a", "salt": "s"}, {"tenant": "a", "salt": "t"},
            ]  # fmt: skip
            assert [await cached(**whose) for whose in everyone] == [0] * len(everyone)
            assert [await cached(**whose) for whose in everyone] == [whole] * len(everyone)
            with pytest.raises(InvalidRequest, match="salt"):
                await cached(salt="s" * 1025)
            await engine.flush()
            assert (await engine.statistics())["scheduler"]["slots_tree"] == 0


async def test_weights_reach_the_scheduler(folder: Path) -> None:
    with anyio.fail_after(60):
        async with tiny(folder, weights={"a": 3.0}) as engine:
            assert engine.options.weights == {"a": 3.0}
            assert engine._running._scheduler_options(0).weights == {"a": 3.0}


async def test_what_a_tenants_program_said_is_computed_where_the_tenant_looks(folder: Path) -> None:
    with anyio.fail_after(60):
        async with tiny(folder) as engine:
            lease, tokens = engine.lease(), await engine.encode(PROMPT)
            said = Prompt(tokens=tokens[:8], lease=lease)
            await engine.complete(said, SamplingParams(max_new_tokens=0), tenant="a", salt="s")
            engine.pause(lease, tokens)
            while (await engine.statistics())["scheduler"]["eager_tokens"] < len(tokens) // 4 - 2:
                await anyio.lowlevel.checkpoint()
            found = {
                name: (await engine.complete(tokens, greedy(1), tenant=name, salt=salt)).finish.cached_tokens
                for name, salt in (("a", "s"), ("b", ""), ("", ""))
            }
            assert found == {"a": len(tokens) // 4 - 1, "b": 0, "": 0}
            engine.release(lease)


async def test_a_request_is_ended_by_its_own_tenant_alone(folder: Path) -> None:
    with anyio.fail_after(60):
        async with tiny(folder) as engine:
            stream = engine.generate("Go on", greedy(200), tag="mine", tenant="a")
            await anext(stream)
            engine.abort("mine", tenant="b")
            engine.abort("mine")
            for _ in range(3):
                await anext(stream)
            engine.abort("mine", tenant="a")
            with pytest.raises(Aborted, match="by name"):
                async for _ in stream:
                    pass


# --- programs ---------------------------------------------------------------------------------------------------------


async def test_programs_run_on_behalf_of_a_tenant(folder: Path) -> None:
    @cb.function
    def forked(s: Any, text: str) -> None:
        s += text
        forks = s.fork(2)
        for number, fork in enumerate(forks):
            fork += str(number) + cb.gen("word", max_tokens=2, ignore_eos=True)
        forks.join()
        s += cb.gen("end", max_tokens=2, ignore_eos=True)
        s += cb.select("which", ["one", "two"])

    with anyio.fail_after(60):
        async with tiny(folder) as engine:
            cached: list[int] = []
            for backend in (
                engine.tenant("a"),
                engine.tenant("b"),
                engine,
                engine.tenant("a", "s"),
                engine.tenant("a"),
            ):
                before = (await engine.statistics())["scheduler"]["slots_tree"]
                state = await forked.arun(PROMPT, backend=backend)
                assert state["which"] in ("one", "two")
                grown = (await engine.statistics())["scheduler"]["slots_tree"] - before
                cached.append(grown)
            whole = len(await engine.encode(PROMPT)) // 4
            assert min(cached[:4]) >= whole, "each has computed all of it for itself"
            assert cached[4] < whole, "it was there"


async def test_a_program_that_waits_before_it_generates_is_computed_for_its_tenant(folder: Path) -> None:
    asked = anyio.Event()

    @cb.function
    async def waits(s: Any) -> None:
        s += PROMPT * 2
        await asked.wait()
        s += cb.gen("end", max_tokens=2, ignore_eos=True)

    with anyio.fail_after(60):
        async with tiny(folder) as engine:
            tokens = await engine.encode(PROMPT * 2)

            async def found(tenant: str) -> int:
                return (await engine.complete(tokens, greedy(1), tenant=tenant)).finish.cached_tokens

            async with anyio.create_task_group() as group:
                group.start_soon(lambda: waits.arun(backend=engine.tenant("a")))
                while (await engine.statistics())["scheduler"]["eager_tokens"] < len(tokens) // 4:
                    await anyio.lowlevel.checkpoint()
                assert [await found("b"), await found(""), await found("a")] == [0, 0, len(tokens) // 4 - 1]
                asked.set()


async def test_a_tenant_is_not_entered_and_ends_with_its_engine(folder: Path) -> None:
    with anyio.fail_after(60):
        engine = tiny(folder)
        with pytest.raises(RuntimeError, match="not running"):
            engine.tenant("a")
        async with engine:
            tenant = engine.tenant("a")
            with pytest.raises(InvalidRequest, match="tenant"):
                engine.tenant("a\n")
        with pytest.raises(RuntimeError, match="not entered"):
            async with tenant:
                pass
