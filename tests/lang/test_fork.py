"""Branches go on from what was said, at the same time, and end with whoever made them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import callboard as cb

pytestmark = pytest.mark.anyio


async def run(program: Any, backend: Any) -> Any:
    with anyio.fail_after(20):
        return await program.arun(backend=backend)


async def test_branches_share_what_was_said_before_and_nothing_after(
    scripted: Any, tokens_of: Callable[[str], bytes]
) -> None:
    @cb.function
    def body(s: Any) -> list[str]:
        s += "start "
        forks = s.fork(2)
        s += "parent"
        for index, branch in enumerate(forks):
            branch += f"{index}:" + cb.gen("x")
        return [*(branch.text() for branch in forks), *(branch["x"] for branch in forks), s.text()]

    async with scripted(["one"], ["two"]) as backend:
        state = await run(body, backend)
    assert sorted(state.ret_value[:2]) == ["start 0:one", "start 1:two"]
    assert state.ret_value[2:] == ["one", "two", "start parent"]
    assert backend.encoded.count("start ") == 1
    assert [prompt.tokens for prompt in backend.prefilled] == [tokens_of("start ")]
    assert backend.dead == []


async def test_branches_run_at_the_same_time(scripted: Any) -> None:
    both = anyio.Event()

    async def meet() -> None:
        if backend.open == 3:
            both.set()
        await both.wait()

    @cb.function
    def body(s: Any) -> None:
        s += "x"
        forks = s.fork(3)
        forks += cb.gen("x")
        forks.join()

    async with scripted([meet, "a"], [meet, "a"], [meet, "a"]) as backend:
        assert (await run(body, backend))["x"] == ["a", "a", "a"]


async def test_a_branch_can_be_forked_before_the_parent_has_run(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += "a" + cb.gen("x")
        with s.fork(2) as outer:
            with outer[0].fork(2) as inner:
                inner += lambda index: f"{index}" + cb.gen("y")
            outer[1].append("z")
            assert outer[0]["y"] == ["said", "said"]
            assert outer[1].text() == "asaidz"

    async with scripted() as backend:
        state = await run(body, backend)
    assert state["y"] == [["said", "said"]]
    assert backend.dead == []


async def test_join_gathers_what_is_new_in_order(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> Any:
        s["old"] = 1
        forks = s.fork(3)
        forks += [cb.gen("x"), "b" + cb.gen("x") + cb.gen("only"), cb.gen("x")]
        forks[0]["old"] = 2
        forks.join()
        return forks

    async with scripted(["0"], ["1"], ["2"], ["3"]) as backend:
        state = await run(body, backend)
    assert state["x"] == [branch["x"] for branch in state.ret_value]
    assert state["only"] == [state.ret_value[1]["only"]]
    assert sorted(state["x"] + state["only"]) == ["0", "1", "2", "3"]
    assert state["old"] == 1
    assert len(state.get_meta_info("x")) == 3


async def test_join_with_a_failed_branch_raises_its_error(scripted: Any) -> None:
    error = RuntimeError("branch")

    @cb.function
    def body(s: Any) -> None:
        forks = s.fork(2)
        forks += cb.gen("x")
        with pytest.raises(RuntimeError) as raised:
            forks.join()
        assert raised.value is error
        assert "x" not in s
        s += "and on"

    async with scripted(["fine"], [error]) as backend:
        assert (await run(body, backend)).text() == "and on"


async def test_an_error_in_a_branch_nobody_looked_at_is_raised_by_run(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        s.fork(1)[0].append(cb.gen("x"))

    async with scripted([RuntimeError("branch")]) as backend:
        with pytest.raises(RuntimeError, match="branch"):
            await run(body, backend)


async def test_a_branch_fails_with_a_parent_that_never_came_to_the_fork(scripted: Any) -> None:
    error = RuntimeError("parent")

    @cb.function
    def body(s: Any) -> None:
        s += cb.gen("x")
        forks = s.fork(2)
        forks += "text" + cb.gen("y")
        for branch in forks:
            with pytest.raises(RuntimeError) as raised:
                branch["y"]
            assert raised.value is error

    async with scripted([error]) as backend:
        with pytest.raises(RuntimeError, match="parent"):
            await run(body, backend)


async def test_branches_nobody_joined_are_finished_before_run_returns(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> Any:
        forks = s.fork(2)
        forks += cb.gen("x")
        return forks

    async with scripted() as backend:
        state = await run(body, backend)
        assert backend.programs.statistics() == []
    assert [branch["x"] for branch in state.ret_value] == ["said", "said"]


async def test_cancelling_a_program_cancels_its_branches(scripted: Any) -> None:
    @cb.function
    async def body(s: Any) -> None:
        async with s.fork(3) as forks:
            forks += cb.gen("x")

    async with scripted(*[[anyio.sleep_forever]] * 3) as backend:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: body.arun(backend=backend))
                while backend.open < 3:
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
        assert (backend.open, backend.aborted) == (0, 3)
        assert backend.programs.statistics() == []
        assert backend.dead == []


async def test_an_error_in_the_block_of_a_fork_cancels_its_branches(scripted: Any) -> None:
    @cb.function
    async def body(s: Any) -> None:
        with pytest.raises(RuntimeError, match="mine"):  # noqa: PT012
            async with s.fork(1) as forks:
                forks += cb.gen("x")
                while not backend.open:
                    await anyio.lowlevel.checkpoint()
                raise RuntimeError("mine")
        s += "and on"

    async with scripted([anyio.sleep_forever]) as backend:
        assert (await run(body, backend)).text() == "and on"
        assert (backend.open, backend.aborted) == (0, 1)


async def test_copy_gathers_on_leaving(scripted: Any) -> None:
    @cb.function
    def plain(s: Any) -> None:
        s += "a"
        with s.copy() as other:
            other += cb.gen("x")

    @cb.function
    async def asynchronous(s: Any) -> None:
        s += "a"
        async with s.copy() as other:
            other += cb.gen("x")

    async with scripted() as backend:
        for program in (plain, asynchronous):
            state = await run(program, backend)
            assert state["x"] == ["said"]
            assert state.text() == "a"


async def test_a_scope_that_is_open_at_the_fork_belongs_to_the_parent(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        with s.var_scope("scope"):
            s += "a"
            branch = s.fork(1)[0]
            with pytest.raises(KeyError):
                branch["scope"]
        assert s["scope"] == "a"

    async with scripted() as backend:
        await run(body, backend)


async def test_bad_arguments_name_themselves(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        for size in (0, -1, 1.5, True, "2"):
            with pytest.raises(cb.InvalidRequest, match="size"):
                s.fork(size)
        for offsets in ([0], [0, 1, 2], [0, -1], [0, 1.5], [0, True], "01", 5):
            with pytest.raises(cb.InvalidRequest, match="position_ids_offset"):
                s.fork(2, offsets)
        with pytest.raises(cb.InvalidRequest, match="'raise', 'cancel', 'collect'"):
            s.fork(2, on_error="ignore")
        forks = s.fork(2)
        with pytest.raises(cb.InvalidRequest, match="1 given for 2"):
            forks += ["one"]
        with pytest.raises(cb.InvalidRequest, match="expression"):
            forks += 5
        for count in (0, 3, True, 1.0):
            with pytest.raises(cb.InvalidRequest, match="count"):
                forks.first(count)
        with pytest.raises(cb.InvalidRequest, match="'gather_variable'"):
            forks.join("nonsense")
        with pytest.raises(cb.InvalidRequest, match="replaced"):
            forks[0] = s
        assert len(forks) == 2

    async with scripted() as backend:
        await run(body, backend)


async def test_branches_of_a_branch_that_never_begins_are_over_with_it(scripted: Any) -> None:
    error = RuntimeError("no model")

    @cb.function
    async def failing(s: Any) -> None:
        s += cb.gen("x")
        forks = s.fork(1)
        inner = forks[0].fork(1)[0].fork(2)
        inner += cb.gen("y")
        with pytest.raises(RuntimeError) as raised:
            await inner.ajoin()
        assert raised.value is error

    @cb.function
    async def cancelling(s: Any) -> None:
        s += cb.gen("x")
        forks = s.fork(1)
        inner = forks[0].fork(2)
        inner += cb.gen("y")
        forks.cancel()
        with pytest.raises(cb.Aborted, match="was cancelled"):
            await inner[0].aget("y")
        with pytest.raises(cb.Aborted, match="was cancelled"):
            await inner.afirst()

    async with scripted([anyio.lowlevel.checkpoint, error]) as backend:
        with anyio.fail_after(20):
            with pytest.raises(RuntimeError, match="no model"):
                await failing.arun(backend=backend)
            await cancelling.arun(backend=backend)
        assert (backend.open, backend.programs.statistics()) == (0, [])
