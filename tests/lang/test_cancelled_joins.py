"""A program that is cancelled between any two callbacks of its loop leaves nothing behind, be it KV or text it joins.

All of it runs in one loop, without a thread or a clock: the real engine, around a worker without a model that looks at
every slot it is told of.  So a program takes the same callbacks each time, and each of them is where one run ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import anyio
import anyio.lowlevel
import pytest

import callboard as cb
from callboard import Engine
from callboard.actors import tree
from callboard.actors.messages import Step
from callboard.actors.scheduler import Scheduler
from callboard.actors.scheduler.invariants import check_state
from callboard.actors.worker import Describe, WorkerDescription
from callboard.lang import pausing

from ..support.fake_worker import FakeModel, FakeWorker

pytestmark = pytest.mark.anyio

PLAIN = cb.SamplingParams(max_new_tokens=2, ignore_eos=True)


class Case(NamedTuple):
    """A way to run.  together: KV joins.  slots: how many there are.

    turns: how many the loop takes until a step is done.  beside: how many programs run to their ends beside.
    plain: the body is plain code, not async.
    """

    together: bool = True
    slots: int = 256
    turns: int = 0
    beside: int = 0
    plain: bool = False


CASES = {
    "kv": Case(),
    "kv, steps that take their time, others beside, few slots": Case(slots=48, turns=1, beside=1),
    "text": Case(together=False),
    "kv, plain code": Case(plain=True),
}


class DescribedWorker(FakeWorker):
    """A FakeWorker as the tree of an engine begins one."""

    def __init__(self, case: Case, options: Any, report: Any, **_: Any) -> None:
        super().__init__(FakeModel(case.slots), report)
        self._turns = case.turns
        self.description = WorkerDescription(
            architecture="fake", max_rows=options.max_rows, context_length=case.slots, kv_slots=case.slots,
            vocabulary=512, eos_ids=(), joins=True, device="cpu", dtype="none", kv_dtype="none", kv_scales="",
            kv_bytes=0, load_s=0.0,
        )  # fmt: skip

    async def receive(self, message: Any) -> Any:
        if isinstance(message, Describe):
            return self.description
        if isinstance(message, Step):
            for _ in range(self._turns):
                await anyio.lowlevel.checkpoint()
        return await super().receive(message)


class Callbacks:
    """Count what the loop calls, and do something once, before the one that is asked for."""

    def __init__(self) -> None:
        self.count = 0
        self._at = -1
        self._act: Callable[[], None] = lambda: None

    def begin(self, at: int = -1, act: Callable[[], None] = lambda: None) -> None:
        self.count, self._at, self._act = 0, at, act

    def step(self) -> None:
        if self.count == self._at:
            self._act()
        self.count += 1


@pytest.fixture
def callbacks(monkeypatch: pytest.MonkeyPatch) -> Callbacks:
    """Look on at every callback of the loop."""
    found, run = Callbacks(), asyncio.Handle._run

    def counted(handle: asyncio.Handle) -> None:
        found.step()
        run(handle)

    monkeypatch.setattr(asyncio.Handle, "_run", counted)
    monkeypatch.setattr(pausing, "PAUSE_S", 3600.0)  # its timer goes by the clock
    return found


@asynccontextmanager
async def engines(case: Case, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Engine, Callable[[], Any]]]:
    """Give an engine, and what gives its scheduler, its dispatcher and its detokenizer."""
    inside: dict[str, Any] = {}
    for name in ("Scheduler", "Dispatcher", "Detokenizer"):
        made = getattr(tree, name)

        def remembered(*given: Any, made: Any = made, name: str = name, **more: Any) -> Any:
            inside[name] = made(*given, **more)
            return inside[name]

        monkeypatch.setattr(tree, name, remembered)
    monkeypatch.setattr(cb.global_config, "enable_parallel_encoding", case.together)
    monkeypatch.setattr(tree, "Worker", partial(DescribedWorker, case))
    async with Engine("embedded", max_rows=4, chunk_tokens=16, seed=1) as engine:
        yield engine, lambda: (inside["Scheduler"], inside["Dispatcher"], inside["Detokenizer"])


@cb.function
async def joined(s: Any, given: list[Any]) -> None:
    s += "A stem of it. "
    s += cb.gen("a", max_tokens=2)
    forks = s.fork(3, position_ids_offset=[0, 5, 0])
    given.append(forks)
    for index, branch in enumerate(forks):
        branch += f"Part {index}: " + cb.gen("part", max_tokens=1 + index)
    inner = forks[1].fork(2)
    inner += cb.gen("or", max_tokens=2)
    await inner.ajoin("concate_and_append")
    forks[1] += cb.gen("so", max_tokens=1)
    await forks.ajoin("concate_and_append")
    s += cb.gen("b", max_tokens=2)
    s += " End: " + cb.gen("c", max_tokens=1)


@cb.function
def joined_plainly(s: Any, given: list[Any]) -> None:
    s += "A stem of it. " + cb.gen("a", max_tokens=2)
    with s.fork(2) as forks:
        given.append(forks)
        forks += lambda index: f"Part {index}: " + cb.gen("part", max_tokens=1 + index)
        forks.join("concate_and_append")
    assert len(s["part"]) == 2
    s += cb.gen("b", max_tokens=2)
    with s.copy() as other:
        other += " Or: " + cb.gen("c", max_tokens=1)


async def settled(scheduler: Scheduler) -> None:
    """Let the loop run until the scheduler has nothing under way."""
    state = scheduler.state
    with anyio.fail_after(60):
        while state.live or state.flights or state.leaving or state.prefilling:
            await anyio.lowlevel.checkpoint()


async def assert_nothing_is_left(engine: Engine, inside: Callable[[], Any]) -> None:
    """Look into every table there is; a plain request has passed, behind which all that is over is known to be."""
    scheduler, dispatcher, detokenizer = inside()
    await settled(scheduler)
    said = await engine.complete("A stem of it.", PLAIN)
    assert len(said.tokens) == 2, "it still serves"
    await settled(scheduler)
    state = scheduler.state
    check_state(state)
    assert state.memory.tree.locked == 0
    assert (state.leases.count, state.leases.paused, state.leases._held, state.memory.tree.leased) == (0, 0, {}, 0)
    assert (len(state.queue), len(state.assemblies), len(state.eager), state.prefilling) == (0, 0, 0, [])
    assert state.assemblies._under_way == {}
    for tenant in state.queue._tenants.values():
        assert (len(tenant.queue._programs), tenant.live, tenant.waiting) == (0, 0, 0)
    assert state.rows.free == state.rows.max_rows
    await engine.flush()
    assert (state.memory.pool.free, state.memory.tree.tokens) == (state.memory.total, 0)
    assert state.memory.tree.roots() in ([], [state.memory.tree.root("")])
    assert (dispatcher._live, dispatcher._tags, dispatcher._tenants, dispatcher._released) == ({}, {}, {}, [()])
    assert detokenizer._live._live == {}
    assert engine._leases._namespaces == {}
    assert engine._leases.released() == ()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_cancelled_before_any_callback_a_joining_program_leaves_nothing_behind(
    case: Case, callbacks: Callbacks, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = joined_plainly if case.plain else joined
    async with engines(case, monkeypatch) as (engine, inside):
        count = at = 0
        while at <= count:  # else it was over before
            async with anyio.create_task_group() as others, anyio.create_task_group() as group:
                callbacks.begin(at, group.cancel_scope.cancel)
                group.start_soon(lambda: program.arun([], backend=engine, ignore_eos=True))
                for _ in range(case.beside):
                    others.start_soon(lambda: joined.arun([], backend=engine, ignore_eos=True))
            count, at = callbacks.count, at + 1
            await assert_nothing_is_left(engine, inside)
        assert at > 50


@pytest.mark.parametrize("case", [CASES["kv"], CASES["text"]], ids=["kv", "text"])
async def test_a_branch_that_is_cancelled_before_any_callback_leaves_its_program_to_go_on(
    case: Case, callbacks: Callbacks, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engines(case, monkeypatch) as (engine, inside):
        count = at = 0
        joins = set[int]()
        while at <= count:
            forks: list[cb.ForkGroup] = []
            callbacks.begin(at, lambda forks=forks: [fork[2].cancel() for fork in forks])
            state = await joined.arun(forks, backend=engine, ignore_eos=True)
            count, at = callbacks.count, at + 1
            joins.add(len(state["part"]))
            assert len(state.get_meta_info("c")["output_ids"]) == 1
            await assert_nothing_is_left(engine, inside)
        assert joins == {2, 3}, "what was cancelled is left out, and what was not is not"
