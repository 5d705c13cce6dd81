"""A program that a block owns ends with the block; a reader owns nothing but itself."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import callboard as cb
from callboard.actors.core import simulate

pytestmark = pytest.mark.anyio


@cb.function
def question(s: Any) -> str:
    s += "Q: "
    s += cb.gen("x") + "; " + cb.gen("y")
    return s["y"]


async def settled() -> None:
    for _ in range(5):
        await anyio.lowlevel.checkpoint()


async def over(state: Any) -> None:
    """Wait until a program has ended, without looking how."""
    while "running" in repr(state):
        await anyio.lowlevel.checkpoint()


async def test_the_block_gets_the_state_at_once_and_reads_to_the_end(scripted: Any) -> None:
    async with scripted(["a", "b"], ["c"]) as backend:
        with anyio.fail_after(20):
            async with question.astream(backend=backend) as state:
                assert backend.prompts == []  # nothing has run
                assert "".join([text async for text in state.text_async_iter()]) == "Q: ab; c"
                await state.wait()
        assert state.ret_value == "c"
        assert backend.programs.statistics() == []


async def test_leaving_the_block_cancels_what_still_runs(scripted: Any) -> None:
    async with scripted(["a", anyio.sleep_forever]) as backend:
        with anyio.fail_after(20):
            async with question.astream(backend=backend) as state:
                async for text in state.text_async_iter("x"):
                    assert text == "a"
                    break
                assert backend.open == 1
        assert (backend.open, backend.aborted) == (0, 1)
        assert backend.programs.statistics() == []
        assert backend.dead == []
        with pytest.raises(cb.Aborted, match="the block it ran for was left"):
            await state.aget("x")


async def test_an_error_in_the_block_cancels_the_program_and_passes(scripted: Any) -> None:
    async with scripted([anyio.sleep_forever]) as backend:
        with anyio.fail_after(20), pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with question.astream(backend=backend):
                await settled()
                raise ZeroDivisionError
        assert backend.open == 0
        assert backend.programs.statistics() == []


async def test_a_program_that_failed_unseen_raises_behind_the_block(scripted: Any) -> None:
    error = RuntimeError("no model")
    async with scripted([error], [error]) as backend:
        with anyio.fail_after(20):
            with pytest.raises(RuntimeError) as raised:
                async with question.astream(backend=backend) as state:
                    await over(state)
            assert raised.value is error
            async with question.astream(backend=backend) as state:
                assert await state.aerror() is error


async def test_a_running_program_is_run_once(scripted: Any) -> None:
    async with scripted() as backend:
        running = question.astream(backend=backend)
        async with running:
            pass
        with pytest.raises(RuntimeError, match="run already"):
            await running.__aenter__()


async def test_a_reader_that_is_cancelled_cancels_only_itself(scripted: Any) -> None:
    go = anyio.Event()
    async with scripted(["a", go.wait, "b"], ["c"]) as backend:
        with anyio.fail_after(20):
            async with question.astream(backend=backend) as state:
                async with anyio.create_task_group() as group:

                    async def read() -> None:
                        async for _ in state.text_async_iter(["x", "y"]):
                            group.cancel_scope.cancel()

                    group.start_soon(read)
                assert backend.aborted == 0
                go.set()
                assert await state.atext() == "Q: ab; c"


async def test_iterators_begun_before_during_and_after_the_program_yield_the_same(scripted: Any) -> None:
    go = anyio.Event()
    async with scripted(["a", go.wait, "b"], ["c"]) as backend:
        with anyio.fail_after(20):
            async with question.astream(backend=backend) as state:
                before = [state.text_async_iter(), state.text_async_iter("y"), state.text_async_iter(["x", "y"])]
                while not backend.open:
                    await anyio.lowlevel.checkpoint()
                during = [state.text_async_iter(), state.text_async_iter("y"), state.text_async_iter(["x", "y"])]
                assert await anext(during[0]) == "Q: a"
                go.set()
                await state.wait()
                during[0] = state.text_async_iter()
                after = [state.text_async_iter(), state.text_async_iter("y"), state.text_async_iter(["x", "y"])]
                for whole, one, several in (before, during, after):
                    assert "".join([text async for text in whole]) == "Q: ab; c"
                    assert "".join([text async for text in one]) == "c"
                    assert [chunk async for chunk in several] == [("x", "ab"), ("y", "c")]


async def test_another_loop_may_own_a_program(scripted: Any) -> None:
    async with scripted(["a", anyio.sleep_forever], ["b"], ["c"]) as backend:

        def elsewhere() -> list[Any]:
            async def main() -> list[Any]:
                async with question.astream(backend=backend) as state:
                    first = await anext(state.text_async_iter("x"))
                async with question.astream(backend=backend) as state:
                    return [first, *[chunk async for chunk in state.text_async_iter(["x", "y"])]]

            return asyncio.run(main())

        with anyio.fail_after(20):
            assert await anyio.to_thread.run_sync(elsewhere) == ["a", ("x", "b"), ("y", "c")]
        assert (backend.open, backend.aborted) == (0, 1)
        assert backend.programs.statistics() == []


async def test_a_thread_may_own_a_program(scripted: Any) -> None:
    async with scripted(["a", anyio.sleep_forever], ["b"], ["c"], [RuntimeError("cut")]) as backend:

        def in_thread() -> list[Any]:
            with question.stream(backend=backend) as state:
                first = next(state.text_iter("x"))
            with question.stream(backend=backend) as state:
                chunks = [first, *state.text_iter(["x", "y"])]
                metas = list(state.text_iter("y", return_meta_data=True))
                assert [text for text, _ in metas] == ["c"]
                assert metas[-1][1]["finish_reason"] == {"type": "stop"}
            with pytest.raises(RuntimeError, match="cut"), question.stream(backend=backend) as state:
                anyio.from_thread.run(over, state)
            return chunks

        with anyio.fail_after(20):
            assert await anyio.to_thread.run_sync(in_thread) == ["a", ("x", "b"), ("y", "c")]
        assert backend.open == 0
        assert backend.programs.statistics() == []


async def test_a_plain_body_may_own_another_program(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> list[Any]:
        with question.stream(backend=backend) as other:
            return list(other.text_iter("x"))

    async with scripted(["a"], [anyio.sleep_forever]) as backend:
        with anyio.fail_after(20):
            assert (await body.arun(backend=backend)).ret_value == ["a"]
        assert backend.open == 0


def test_cancelling_the_owner_at_any_step_leaves_nothing(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += cb.gen("x")
        with s.fork(2) as forks:
            forks += cb.gen("y")

    async def owner(backend: Any) -> None:
        async with body.astream(backend=backend) as state:
            async for _ in state.text_async_iter(["x", "y"]):
                pass

    async def main(steps: int) -> bool:
        async with scripted(*[["a", anyio.lowlevel.checkpoint, "b"]] * 3) as backend:
            task = asyncio.ensure_future(owner(backend))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            assert outcome is None or isinstance(outcome, asyncio.CancelledError)
            assert backend.open == 0
            assert backend.programs.statistics() == []
            assert backend.dead == []
            await anyio.lowlevel.checkpoint()
            assert asyncio.all_tasks() == {asyncio.current_task()}
            return outcome is None

    ends = [simulate.run(lambda steps=steps: main(steps), seed=seed).value for steps in range(60) for seed in range(2)]
    assert set(ends) == {True, False}
