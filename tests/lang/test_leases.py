"""What a program has said is leased while it lives, and given up when it ends, however it ends."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import callboard as cb
from callboard import Engine, SamplingParams
from callboard.actors.dispatcher import Dispatcher
from callboard.actors.messages import Submit

pytestmark = pytest.mark.anyio


async def leases(engine: Engine) -> int:
    """Count them once a plain request has passed, which tells the scheduler of those that are over."""
    await engine.complete("x", SamplingParams(max_new_tokens=1))
    return int((await engine.statistics())["scheduler"]["leases"])


async def test_a_program_holds_one_lease_and_each_branch_its_own_until_they_end() -> None:
    counted: list[int] = []

    @cb.function
    async def program(s: Any) -> None:
        s += "One " + cb.gen("a", max_tokens=2)
        await s.aget("a")
        counted.append(await leases(engine))
        forks = s.fork(3)
        for branch in forks:
            branch += "two " + cb.gen("b", max_tokens=2)
        for branch in forks:
            await branch.aget("b")
        counted.append(await leases(engine))
        await forks.ajoin()
        s += "three " + cb.gen("c", max_tokens=2)
        await s.aget("c")
        counted.append(await leases(engine))

    async with Engine(threads=1) as engine:
        await program.arun(backend=engine)
        assert counted == [1, 4, 1]
        assert await leases(engine) == 0


async def test_what_was_forked_or_chosen_behind_is_leased_to_the_program_that_said_it() -> None:
    counted: list[int] = []

    @cb.function
    async def forking(s: Any) -> None:
        s += "One "
        forks = s.fork(2)
        forks += cb.gen("b", max_tokens=2)
        await forks.ajoin()
        counted.append(await leases(engine))

    @cb.function
    async def choosing(s: Any) -> None:
        s += "One " + cb.select("which", ["a", "b"])
        await s.aget("which")
        counted.append(await leases(engine))

    async with Engine(threads=1) as engine:
        for program in (forking, choosing):
            await program.arun(backend=engine)
            counted.append(await leases(engine))
    assert counted == [1, 0, 1, 0]


async def test_whatever_a_program_asks_for_tells_the_dispatcher_of_which_program_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its branches', and their branches', prompts and choices included: by this a group is kept together."""

    @cb.function
    async def program(s: Any) -> None:
        s += "One "
        forks = s.fork(2)
        for branch in forks:
            branch += "two " + cb.select("which", ["a", "b"]) + cb.gen("b", n=2, max_tokens=2)
            inner = branch.fork(2)
            inner += cb.gen("c", max_tokens=2)
            await inner.ajoin("concate_and_append")
        await forks.ajoin("concate_and_append")
        s += cb.gen("d", max_tokens=2)

    asked: list[Submit] = []
    submit = Dispatcher._submit
    monkeypatch.setattr(Dispatcher, "_submit", lambda self, one: (asked.append(one), submit(self, one))[1])
    async with Engine(threads=1) as engine:
        await program.arun_batch([{}, {}], backend=engine)
        await engine.complete("x", SamplingParams(max_new_tokens=1))
    *of_programs, alone = asked
    numbers = {one.program for one in of_programs}
    assert alone.program == 0
    assert 0 not in numbers
    assert len(numbers) == 2
    assert {one.sampling.max_new_tokens for one in of_programs} == {0, 2}, "what is only computed is of a program, too"
    assert any(one.joins for one in of_programs)


async def test_a_program_that_is_cancelled_gives_its_lease_up() -> None:
    @cb.function
    async def program(s: Any) -> None:
        s += "One " + cb.gen("a", max_tokens=2)
        await s.aget("a")
        reached.set()
        await anyio.sleep_forever()

    reached = anyio.Event()
    async with Engine(threads=1) as engine:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: program.arun(backend=engine))
            with anyio.fail_after(30):
                await reached.wait()
            assert await leases(engine) == 1
            tasks.cancel_scope.cancel()
        assert await leases(engine) == 0


@pytest.mark.parametrize("together", [True, False])
async def test_branches_that_are_joined_as_they_are_stay_leased_until_their_program_goes_on(
    together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cb.global_config, "enable_parallel_encoding", together)
    counted: list[int] = []

    @cb.function
    async def program(s: Any) -> None:
        s += "One "
        forks = s.fork(3)
        forks += lambda index: f"part {index} " + cb.gen("b", max_tokens=2)
        inner = forks[0].fork(2)
        inner += "or " + cb.gen("c", max_tokens=2)
        await inner.ajoin("concate_and_append")
        await forks.ajoin("concate_and_append")
        counted.append(await leases(engine))
        s += "So " + cb.gen("d", max_tokens=2)
        await s.aget("d")
        counted.append(await leases(engine))

    @cb.function
    async def ended(s: Any) -> None:
        s += "One "
        forks = s.fork(3)
        forks += cb.gen("b", max_tokens=2)
        await forks.ajoin("concate_and_append")

    async with Engine(threads=1) as engine:
        await program.arun(backend=engine, ignore_eos=True)
        assert counted == [1 + 3 + 2 if together else 1, 1]
        assert await leases(engine) == 0
        await ended.arun(backend=engine, ignore_eos=True)
        assert await leases(engine) == 0


async def test_what_strangers_ask_for_between_a_join_and_the_next_generation_evicts_nothing_of_its_branches() -> None:
    @cb.function
    async def program(s: Any) -> None:
        s += "A stem of it. "
        forks = s.fork(3)
        forks += lambda index: f"Part {index}: " + cb.gen("part", max_tokens=4 + index)
        await forks.ajoin("concate_and_append")
        for index in range(8):
            await engine.complete([10 + index] * 40, SamplingParams(max_new_tokens=2, ignore_eos=True))
        s += "So: " + cb.gen("answer", max_tokens=2)

    async with Engine(threads=1, max_rows=4, kv_slots=160) as engine:
        state = await program.arun(backend=engine, ignore_eos=True)
        assert (await engine.statistics())["scheduler"]["evicted_tokens"] > 0
        answer = state.get_meta_info("answer")
        tail = len(await engine.encode("So: ", beginning=False)) // 4
        assert answer["cached_tokens"] == answer["prompt_tokens"] - tail
