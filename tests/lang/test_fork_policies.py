"""What becomes of the others when a branch fails, is complete first, or is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import callboard as cb
from callboard.actors.core import simulate

pytestmark = pytest.mark.anyio


async def run(program: Any, backend: Any) -> Any:
    with anyio.fail_after(20):
        return await program.arun(backend=backend)


async def test_cancel_ends_the_others_at_once_and_raises_the_original(scripted: Any) -> None:
    error = RuntimeError("branch")

    @cb.function
    async def body(s: Any) -> Any:
        forks = s.fork(3, on_error="cancel")
        forks += cb.gen("x")
        with pytest.raises(RuntimeError) as raised:
            await forks.ajoin()
        assert raised.value is error
        with pytest.raises(cb.Aborted, match="because body/1 failed") as aborted:
            await forks[0].aget("x")
        assert aborted.value.__cause__ is error
        return await forks.aerrors()

    async with scripted([anyio.sleep_forever], [anyio.lowlevel.checkpoint, error], [anyio.sleep_forever]) as backend:
        state = await run(body, backend)
        assert state.ret_value[1] is error
        assert (backend.open, backend.aborted) == (0, 2)
    assert backend.dead == []


async def test_raise_lets_the_others_come_to_their_end(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> list[Any]:
        forks = s.fork(3)
        forks += cb.gen("x")
        with pytest.raises(RuntimeError, match="branch"):
            forks.join()
        return [forks[0]["x"], forks[2]["x"]]

    async with scripted(["a"], [RuntimeError("branch")], [anyio.lowlevel.checkpoint, "c"]) as backend:
        assert (await run(body, backend)).ret_value == ["a", "c"]


async def test_collect_puts_errors_where_the_values_would_be(scripted: Any) -> None:
    error = RuntimeError("branch")

    @cb.function
    def body(s: Any) -> list[Any]:
        s += "Start. "
        forks = s.fork(3, on_error="collect")
        forks += lambda index: f"{index}: " + cb.gen("x") + cb.gen("y") + " "
        forks.join("concate_and_append")
        return forks.errors()

    says = {"0": ["a", "b"], "1": ["c", error], "2": ["d", "e"]}

    def answer(prompt: Any) -> str:
        said = says[prompt.text.split(":")[0][-1]].pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    async with cb.NullBackend(text=answer) as backend:
        state = await run(body, backend)
    assert state["x"] == ["a", "c", "d"]
    assert state["y"] == ["b", error, "e"]
    assert state.ret_value == [None, error, None]
    assert state.get_meta_info("y")[1] is None or state.get_meta_info("y")[1]["finish_reason"] is None
    assert state.text() == "Start. 0: ab 2: de "


async def test_a_failed_branch_that_nobody_joined_is_raised_whatever_the_policy(scripted: Any) -> None:
    for policy in ("raise", "cancel", "collect"):

        @cb.function
        def body(s: Any, policy: str = policy) -> None:
            forks = s.fork(2, on_error=policy)
            forks += cb.gen("x")

        async with scripted(["a"], [RuntimeError(policy)]) as backend:
            with pytest.raises(RuntimeError, match=policy):
                await run(body, backend)


async def test_first_gives_the_first_and_cancels_the_rest(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> list[Any]:
        forks = s.fork(4)
        forks += cb.gen("x")
        winners = forks.first(2)
        assert backend.open == 0
        winners[0].append(" and on" + cb.gen("z"))
        forks.join()
        with pytest.raises(cb.Aborted):
            forks[0]["x"]
        return [winner["x"] for winner in winners] + winners

    lines = [[anyio.sleep_forever], [anyio.lowlevel.checkpoint] * 5 + ["late"], ["soon"], [anyio.sleep_forever]]
    async with scripted(*lines) as backend:
        state = await run(body, backend)
        assert state.ret_value[:2] == ["soon", "late"]
        assert state["x"] == ["late", "soon"]  # in the order of the branches
        assert state["z"] == ["said"]
        assert backend.aborted == 2


async def test_first_may_leave_the_rest_running(scripted: Any) -> None:
    go = anyio.Event()

    @cb.function
    async def body(s: Any) -> str:
        forks = s.fork(2)
        forks += cb.gen("x")
        (winner,) = await forks.afirst(cancel_rest=False)
        go.set()
        await forks.ajoin()
        return await winner.aget("x")

    async with scripted([go.wait, "slow"], ["fast"]) as backend:
        state = await run(body, backend)
        assert state.ret_value == "fast"
        assert state["x"] == ["slow", "fast"]


async def test_first_raises_an_error_at_once_unless_errors_are_collected(scripted: Any) -> None:
    error = RuntimeError("branch")

    @cb.function
    def raising(s: Any) -> None:
        forks = s.fork(3, on_error="cancel")
        forks += cb.gen("x")
        with pytest.raises(RuntimeError) as raised:
            forks.first(1)
        assert raised.value is error

    @cb.function
    def collecting(s: Any) -> list[Any]:
        forks = s.fork(3, on_error="collect")
        forks += cb.gen("x")
        (winner,) = forks.first(1)
        return [winner["x"]]

    @cb.function
    def hopeless(s: Any) -> None:
        forks = s.fork(3, on_error="collect")
        forks += cb.gen("x")
        with pytest.raises(RuntimeError) as raised:
            forks.first(2)
        assert raised.value is error

    never = anyio.sleep_forever
    async with scripted([never], [error], [never]) as backend:
        await run(raising, backend)
        backend.lines = [[error], [anyio.lowlevel.checkpoint, error], [*[anyio.lowlevel.checkpoint] * 9, "c"]]
        assert (await run(collecting, backend)).ret_value == ["c"]
        backend.lines = [["a"], [error], [error]]
        await run(hopeless, backend)


async def test_as_completed_gives_branches_in_the_order_they_are_complete(scripted: Any) -> None:
    step = anyio.lowlevel.checkpoint

    @cb.function
    def plain(s: Any) -> list[str]:
        forks = s.fork(3)
        forks += cb.gen("x")
        return [branch["x"] for branch in forks.as_completed()]

    @cb.function
    async def asynchronous(s: Any) -> list[str]:
        forks = s.fork(3)
        forks += cb.gen("x")
        return [await branch.aget("x") async for branch in forks.as_completed()]

    async with scripted() as backend:
        for program in (plain, asynchronous):
            backend.lines = [[*[step] * 20, "last"], ["first"], [*[step] * 8, "second"]]
            assert (await run(program, backend)).ret_value == ["first", "second", "last"]


async def test_as_completed_gives_or_raises_failures_as_the_fork_says(scripted: Any) -> None:
    error = RuntimeError("branch")

    @cb.function
    async def body(s: Any) -> list[Any]:
        forks = s.fork(2, on_error="collect")
        forks += cb.gen("x")
        found = [await branch.aerror() async for branch in forks.as_completed()]
        forks = s.fork(2)
        forks += cb.gen("x")
        with pytest.raises(RuntimeError) as raised:  # noqa: PT012
            async for branch in forks.as_completed():
                found.append(await branch.aget("x"))  # noqa: PERF401  (what came before the error stays)
        assert raised.value is error
        return found

    async with scripted([error], ["a"], ["b"], [*[anyio.lowlevel.checkpoint] * 9, error]) as backend:
        assert (await run(body, backend)).ret_value == [error, None, "b"]


async def test_cancelling_a_branch_cancels_its_own_branches_and_nothing_else(scripted: Any) -> None:
    never = anyio.sleep_forever

    @cb.function
    async def body(s: Any) -> None:
        forks = s.fork(2, on_error="cancel")
        inner = forks[0].fork(2)
        inner += cb.gen("y")
        forks[1].append(cb.gen("x"))
        while backend.open < 3:
            await anyio.lowlevel.checkpoint()
        forks[0].cancel()
        while backend.open > 1:
            await anyio.lowlevel.checkpoint()
        go.set()
        await forks.ajoin()

    go = anyio.Event()
    async with scripted([go.wait, "b"], [never], [never]) as backend:
        state = await run(body, backend)
        assert state["x"] == ["b"]
        assert "y" not in state
        assert backend.aborted == 2


async def test_text_is_joined_in_the_tokens_it_was_said_in(scripted: Any, tokens_of: Callable[[str], bytes]) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += "Start. "
        forks = s.fork(2, [0, 100])
        forks += lambda index: f"{index}: " + cb.gen("x") + "! "
        s += "Meanwhile. "
        forks.join("concate_and_append")
        s += "End." + cb.gen("z")

    async with scripted(["said"], ["said"], ["done"]) as backend:
        state = await run(body, backend)
        assert state.text() == "Start. Meanwhile. 0: said! 1: said! End.done"
        assert backend.prompts[-1].tokens == tokens_of("Start. Meanwhile. 0: said! 1: said! End.")
        assert backend.encoded == ["Start. ", "0: ", "1: ", "Meanwhile. ", "! ", "! End."]
    assert state["x"] == ["said", "said"]


async def test_messages_are_joined_and_half_ones_refused(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += cb.system("Be brief.")
        forks = s.fork(2)
        forks += lambda index: cb.user(f"{index}?") + cb.assistant(cb.gen("x"))
        forks.join("concate_and_append")
        forks = s.fork(2)
        forks[0].append(cb.user_begin() + "half")
        with pytest.raises(cb.InvalidRequest, match="concate_and_append"):
            forks.join("concate_and_append")
        with s.assistant():
            forks = s.fork(2)
            forks += [" one", " two"]
            forks.join("concate_and_append")
            forks = s.fork(1)
            forks += cb.assistant_end() + cb.assistant_begin()
            with pytest.raises(cb.InvalidRequest, match="concate_and_append"):
                forks.join("concate_and_append")

    async with scripted(["yes"], ["no"]) as backend:
        state = await run(body, backend)
    said = [(message["role"], message["content"]) for message in state.messages()]
    assert said == [
        ("system", "Be brief."), ("user", "0?"), ("assistant", "yes"), ("user", "1?"), ("assistant", "no"),
        ("assistant", " one two"),
    ]  # fmt: skip


def test_cancelling_at_every_step_leaves_nothing(scripted: Any) -> None:
    step = anyio.lowlevel.checkpoint

    @cb.function
    async def body(s: Any) -> None:
        s += "start" + cb.gen("a")
        async with s.fork(3, on_error="collect") as forks:
            forks += cb.gen("x")
            inner = forks[0].fork(2)
            inner += cb.gen("y")
            async for _, _ in inner.text_async_iter("y"):
                pass
            async for _ in forks.as_completed():
                pass
            await forks.afirst(2)
            await inner.ajoin("concate_and_append")
        s += cb.gen("b")

    async def main(steps: int) -> bool:
        async with scripted(*[["a", step, "b"]] * 4, ["a", RuntimeError("cut")], *[["a", step, "b"]] * 4) as backend:
            task = asyncio.ensure_future(body.arun(backend=backend))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            assert backend.open == 0
            assert backend.programs.statistics() == []
            assert backend.dead == []
            await step()
            assert asyncio.all_tasks() == {asyncio.current_task()}
            return isinstance(outcome, asyncio.CancelledError)

    ends = [simulate.run(lambda steps=steps: main(steps), seed=seed).value for steps in range(70) for seed in range(2)]
    assert set(ends) == {True, False}


async def test_forks_of_forks_to_a_thousand_branches() -> None:
    @cb.function
    def body(s: Any) -> Any:
        s += "root "
        with s.fork(32) as outer:
            for index, branch in enumerate(outer):
                branch += f"{index} "
                with branch.fork(32) as inner:
                    inner += lambda number: f"{number} " + cb.gen("x")
        return len(asyncio.all_tasks())

    async with cb.NullBackend(text="Paris") as backend:
        state = await run(body, backend)
        assert state["x"] == [["Paris"] * 32] * 32
        assert state.ret_value < 10
        assert backend.generations == 1024
        assert backend.programs.statistics() == []


async def test_the_first_of_branches_that_were_all_cancelled_is_none(scripted: Any) -> None:
    @cb.function
    async def body(s: Any) -> None:
        forks = s.fork(2)
        forks += cb.gen("x")
        forks.cancel()
        with pytest.raises(cb.Aborted, match="0 of 1 branches were complete; the others were cancelled"):
            await forks.afirst(1)

    async with scripted([anyio.sleep_forever], [anyio.sleep_forever]) as backend:
        await run(body, backend)
