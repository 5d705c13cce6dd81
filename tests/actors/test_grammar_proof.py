"""A constraint is proven in a process of its own: what breaks there is refused, and nobody else notices."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import psutil
import pytest

from callboard.actors.core import Ref, Supervisor
from callboard.actors.engine import Engine
from callboard.actors.errors import GenerationFailed, InvalidRequest
from callboard.actors.grammar import Grammar, GrammarCache, GrammarLimits, ProofLimits
from callboard.actors.grammar.prover import Prover
from callboard.actors.messages import Compile
from callboard.actors.sampling import Constraint, SamplingParams

from .tiny_model import write_tiny_model

pytestmark = pytest.mark.anyio

EASY = Constraint("json_schema", '{"type":"boolean"}')
# Its automaton has a state for each remainder: 23 s and 400 MB on the machine this was written on.
SLOW = Constraint("json_schema", '{"type":"integer","multipleOf":999983}')


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), eos=True)


@asynccontextmanager
async def prover(folder: Path, limits: GrammarLimits | None = None, **proof: Any) -> AsyncIterator[Prover]:
    limits = limits or GrammarLimits()
    one = Prover(GrammarCache(folder).tokenizer_file(), limits, ProofLimits(**proof))
    with anyio.fail_after(60):
        try:
            yield one
        finally:
            await one.close()


@asynccontextmanager
async def grammar(cache: GrammarCache, **proof: Any) -> AsyncIterator[Ref[Any]]:
    with anyio.fail_after(60):
        async with Supervisor("test", restarts=0) as supervisor:
            yield await supervisor.spawn(lambda: Grammar(cache, ProofLimits(**proof)), name="grammar")


async def refusal(prover: Prover, constraint: Constraint) -> str:
    with pytest.raises(InvalidRequest, match=f"^{constraint.kind}: ") as caught:
        await prover.prove(constraint)
    return str(caught.value)


def pid(prover: Prover) -> int:
    assert prover._process is not None
    return prover._process.pid


async def test_one_process_proves_many_constraints(folder: Path) -> None:
    async with prover(folder) as one:
        assert msgspec.json.decode(await one.prove(EASY))["grammars"]
        first = pid(one)
        assert "unknown name" in await refusal(one, Constraint("ebnf", "start: nothing"))
        assert "uniqueItems" in await refusal(one, Constraint("json_schema", '{"uniqueItems":true}'))
        assert await one.prove(Constraint("regex", "a{1,5000}"))
        assert pid(one) == first


async def test_the_process_imports_no_torch(folder: Path) -> None:
    async with prover(folder) as one:
        await one.prove(EASY)
        mapped = " ".join(one.path for one in psutil.Process(pid(one)).memory_maps())
        assert "llguidance" in mapped
        assert "torch" not in mapped


async def test_a_slow_constraint_is_refused_and_its_process_is_gone(folder: Path) -> None:
    async with prover(folder, compile_s=0.5) as one:
        await one.prove(EASY)
        killed = pid(one)
        assert "takes longer than 0.5 s" in await refusal(one, SLOW)
        assert not psutil.pid_exists(killed)
        await one.prove(EASY)  # in a new one
        assert pid(one) != killed


async def test_a_constraint_that_takes_too_much_memory_is_refused(folder: Path) -> None:
    async with prover(folder, memory_bytes=8 << 20, compile_s=30) as one:
        await one.prove(EASY)
        assert "more than the 8 MiB of memory" in await refusal(one, SLOW)
        await one.prove(EASY)


async def test_a_process_that_died_between_two_proofs_is_replaced_unnoticed(folder: Path) -> None:
    async with prover(folder) as one:
        await one.prove(EASY)
        os.kill(pid(one), signal.SIGKILL)
        await one.prove(EASY)


async def test_a_cancelled_proof_leaves_no_process(folder: Path) -> None:
    async with prover(folder) as one:
        await one.prove(EASY)
        killed = pid(one)
        async with anyio.create_task_group() as group:
            group.start_soon(one.prove, SLOW)
            await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        assert not psutil.pid_exists(killed)


async def test_a_tokenizer_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    async with prover(write_tiny_model(tmp_path, eos=False)) as one:
        assert "no end-of-sequence token" in await refusal(one, EASY)


async def test_without_a_process_nothing_is_promised(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with prover(folder) as one:
        monkeypatch.setattr("sys.executable", "/nowhere/python")
        with pytest.raises(GenerationFailed, match="did not start"):
            await one.prove(EASY)
        monkeypatch.setattr("sys.executable", "/bin/false")
        with pytest.raises(GenerationFailed, match="did not start"):
            await one.prove(EASY)


async def test_a_slow_constraint_harms_its_askers_alone(folder: Path) -> None:
    cache = GrammarCache(folder)
    told: list[str] = []
    async with grammar(cache, compile_s=2.0) as actor:
        async with anyio.create_task_group() as group:  # both processes are there
            group.start_soon(actor.ask, Compile(EASY))
            group.start_soon(actor.ask, Compile(Constraint("json_schema", '{"type":"array"}')))

        async def ask(constraint: Constraint, name: str) -> None:
            try:
                await actor.ask(Compile(constraint))
            except InvalidRequest as error:
                name += str(error)[-16:]
            told.append(name)

        async with anyio.create_task_group() as group:
            group.start_soon(ask, SLOW, "slow")
            group.start_soon(ask, SLOW, "slow")  # waits for the same proof
            await anyio.lowlevel.checkpoint()
            for kind in ("null", "string"):
                await ask(Constraint("json_schema", f'{{"type":"{kind}"}}'), kind)
            await ask(EASY, "kept")
            await ask(Constraint("regex", "a+"), "cheap")
        assert told == ["null", "string", "kept", "cheap", "slow longer than 2 s", "slow longer than 2 s"]
    assert SLOW not in cache


async def test_the_actor_takes_its_processes_with_it(folder: Path) -> None:
    before = children()
    async with grammar(GrammarCache(folder)) as actor:
        await actor.ask(Compile(EASY))
        assert len(children() - before) == 1
    assert children() == before


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def nested(depth: int) -> str:
    return '{"items":' * depth + "{}" + "}" * depth


HOSTILE = {
    "deep": Constraint("json_schema", nested(1000)),
    "deeper": Constraint("json_schema", nested(6000)),
    "deep grammar": Constraint("ebnf", "start: " + "(" * 20_000 + '"a"' + ")" * 20_000),
    "deep GBNF": Constraint("ebnf", "root ::= " + "(" * 5_000 + '"a"' + ")" * 5_000),
    "deep regex": Constraint("regex", "(" * 5_000 + "a" + ")" * 5_000),
    "exponential oneOf": Constraint(
        "json_schema",
        msgspec.json.encode(
            {"allOf": [{"oneOf": [{"properties": {f"p{i}": {"const": j}}, "required": [f"p{i}"]} for j in range(3)]}
                       for i in range(12)]}
        ).decode(),
    ),
    "slow": SLOW,
}  # fmt: skip
HEAVY = {
    "repetitions": Constraint("regex", "(a{1,1000}){1,1000}"),
    "repetitions in a grammar": Constraint(
        "ebnf", "start: /(a{1,1000}){1,1000}/ (((B{1,99}){1,99}){1,99}){1,99}\nB: /b/"
    ),
    "alternatives": Constraint("regex", "|".join(f"{index:04x}" for index in range(3000))),
    "enum": Constraint("json_schema", msgspec.json.encode({"enum": [f"v{i}" for i in range(4000)]}).decode()),
    "items": Constraint("json_schema", '{"type":"array","minItems":1000000,"items":{"maxLength":1000000}}'),
}


async def test_hostile_constraints_harm_their_own_requests(folder: Path) -> None:
    """Beside all of them, a request that wants nothing special gets what it gets alone."""
    free = SamplingParams(max_new_tokens=24, temperature=0)
    outcome: dict[str, str] = {}

    async def run(engine: Engine, name: str, constraint: Constraint) -> None:
        sampling = SamplingParams(max_new_tokens=12, seed=1, **{constraint.kind: constraint.source})
        try:
            assert (await engine.complete("x", sampling)).finish.reason in {"stop", "length"}
            outcome[name] = "served"
        except (InvalidRequest, GenerationFailed) as error:
            outcome[name] = type(error).__name__

    with anyio.fail_after(100):
        async with Engine(folder, load_format="dummy", seed=1, max_rows=8, kv_slots=2048, threads=1) as engine:
            alone = await engine.complete("Tell me", free)
            async with anyio.create_task_group() as group:
                for name, constraint in (HOSTILE | HEAVY).items():
                    group.start_soon(run, engine, name, constraint)
                beside = await engine.complete("Tell me", free)
            assert beside.tokens == alone.tokens
            assert (await engine.complete("Tell me", free)).tokens == alone.tokens
    assert {name: outcome[name] for name in HOSTILE} == dict.fromkeys(HOSTILE, "InvalidRequest")
    assert {name: outcome[name] for name in HEAVY} == dict.fromkeys(HEAVY, "served")
