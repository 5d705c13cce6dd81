"""Wherever a program is when it is cancelled, nothing of it stays: no task, no generation, no actor."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import callboard as cb
from callboard.actors.core import simulate


@cb.function
def plain(s: Any) -> None:
    s += cb.user("hi") + cb.assistant(cb.gen("a"))
    s["a"]
    forks = s.fork(3)
    forks += "branch" + cb.gen("b")
    forks[1]["b"]
    with s.copy() as other:
        other += cb.gen("c")
    forks.join()
    s += cb.select("d", ["x", "y"]) + s["b"][0] + cb.gen("e")


@cb.function
async def asynchronous(s: Any) -> None:
    s += cb.user("hi") + cb.assistant(cb.gen("a"))
    await s.aget("a")
    async with s.fork(3) as forks:
        forks += "branch" + cb.gen("b")
        await plain.arun(backend=s["backend"])
        await forks[1].aget("b")
    s += cb.gen("e")
    async for _ in s.fork(1)[0].text_async_iter():
        pass


async def cancelled_after(scripted: Any, program: Any, seconds: float) -> bool:
    """Cancel the program at a virtual time; tell whether it had come to its end before."""

    def slow() -> Any:
        return anyio.sleep(0.01)

    async with scripted(*[[slow, "one", slow, "two", slow]] * 20) as backend:
        done = False
        with anyio.move_on_after(seconds):
            if program is asynchronous:
                await cb.function(_with_backend(backend)).arun(backend=backend)
            else:
                await program.arun(backend=backend)
            done = True
        assert backend.open == 0
        assert backend.programs.statistics() == []
        assert backend.dead == []
        await anyio.lowlevel.checkpoint()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return done


def _with_backend(backend: Any) -> Any:
    async def body(s: Any) -> None:
        s["backend"] = backend
        await asynchronous.body(s)

    return body


@pytest.mark.parametrize("program", [plain, asynchronous])
def test_cancelling_at_any_time_leaves_nothing(scripted: Any, program: Any) -> None:
    ends = set()
    for seed in range(60):
        seconds = 0.006 * seed

        async def main(seconds: float = seconds) -> bool:
            return await cancelled_after(scripted, program, seconds)

        ends.add(simulate.run(main, seed=seed).value)
    assert ends == {True, False}  # some were cancelled, some were not


@pytest.mark.parametrize("seed", range(20))
def test_any_interleaving_comes_to_the_same_end(scripted: Any, seed: int) -> None:
    async def main() -> tuple[str, Any]:
        async with scripted() as backend:
            state = await plain.arun(backend=backend)
            return state.text(), state["b"]

    assert simulate.run(main, seed=seed).value == (
        "user: hi\nassistant: said\nxsaidsaid",
        ["said", "said", "said"],
    )


@pytest.mark.parametrize("fails", [False, True])
def test_a_batch_that_is_cancelled_or_fails_at_any_time_leaves_nothing(scripted: Any, fails: bool) -> None:
    @cb.function
    def item(s: Any, number: int) -> None:
        plain.body(s)
        if fails and number == 2:
            raise ZeroDivisionError

    async def main(seconds: float) -> str:
        def slow() -> Any:
            return anyio.sleep(0.01)

        async with scripted(*[[slow, "one", slow, "two", slow]] * 40) as backend:
            how = "cancelled"
            with anyio.move_on_after(seconds):
                try:
                    await item.arun_batch([(number,) for number in range(5)], backend=backend, num_threads=3)
                    how = "done"
                except ZeroDivisionError:
                    how = "failed"
            assert backend.open == 0
            assert backend.programs.statistics() == []
            assert backend.dead == []
            await anyio.lowlevel.checkpoint()
            assert asyncio.all_tasks() == {asyncio.current_task()}
        return how

    ends = {simulate.run(lambda seed=seed: main(0.011 * seed), seed=seed).value for seed in range(50)}
    assert ends == {"cancelled", "failed" if fails else "done"}
