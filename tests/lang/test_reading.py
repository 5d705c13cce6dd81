"""Reading while the program writes."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

import callboard as cb
from callboard.actors.messages import Delta, TokenLogprob

pytestmark = pytest.mark.anyio


@cb.function
def question(s: Any) -> None:
    s += "Q: "
    s += cb.gen("x") + "; " + cb.gen("y")


async def collect(iterator: Any) -> list[Any]:
    with anyio.fail_after(20):
        return [item async for item in iterator]


async def read_into(said: list[str], iterator: Any) -> None:
    with anyio.fail_after(20):
        async for text in iterator:
            said.append(text)  # noqa: PERF401  (what came before an error must stay)


async def test_the_text_comes_whole_constant_text_included(scripted: Any) -> None:
    async with scripted(["a", "b"], ["c"]) as backend:
        state = await question.arun(backend=backend, stream=True)
        assert "".join(await collect(state.text_async_iter())) == "Q: ab; c"
        assert state.text() == "Q: ab; c"


async def test_a_variable_comes_alone(scripted: Any) -> None:
    async with scripted(["a", "b"], ["c"]) as backend:
        state = await question.arun(backend=backend, stream=True)
        assert "".join(await collect(state.text_async_iter("y"))) == "c"
        assert "".join(await collect(state.text_async_iter("x"))) == "ab"


async def test_chunks_come_as_they_are_said_and_a_slow_reader_gets_larger_ones(scripted: Any) -> None:
    step = [anyio.Event() for _ in range(2)]
    async with scripted(["a", step[0].wait, "b", "c", step[1].wait, "d"], ["e"]) as backend:
        state = await question.arun(backend=backend, stream=True)
        reader = state.text_async_iter("x")
        with anyio.fail_after(20):
            assert await anext(reader) == "a"
            step[0].set()
            for _ in range(20):  # the model says two pieces before the reader looks again
                await anyio.lowlevel.checkpoint()
            assert await anext(reader) == "bc"
            step[1].set()
            assert await anext(reader) == "d"
            with pytest.raises(StopAsyncIteration):
                await anext(reader)


async def test_meta_data_comes_with_the_chunks(scripted: Any) -> None:
    async with scripted(["a"], ["c"]) as backend:
        state = await question.arun(backend=backend, stream=True)
        chunks = await collect(state.text_async_iter("x", return_meta_data=True))
        assert [text for text, _ in chunks] == ["a"]
        assert chunks[-1][1]["completion_tokens"] == 1
        with pytest.raises(cb.InvalidRequest, match="return_meta_data"):
            state.text_async_iter(return_meta_data=True)


async def test_chunks_have_the_log_probabilities_that_none_before_had(scripted: Any) -> None:
    more = anyio.Event()
    pieces = [Delta(text=text, tokens=(ord(text),), logprobs=(TokenLogprob(ord(text), -1.0),)) for text in "abc"]
    async with scripted([pieces[0], more.wait, *pieces[1:]], ["d"]) as backend:
        with anyio.fail_after(20):
            state = await question.arun(backend=backend, stream=True)
            reader = state.text_async_iter("x", return_meta_data=True)
            first = await anext(reader)
            more.set()
            chunks = [first, *[chunk async for chunk in reader]]
    told = [[token for _, token, _ in meta["output_token_logprobs"]] for _, meta in chunks]
    assert [len(ids) for ids in told] == [len(text) for text, _ in chunks]
    assert [token for ids in told for token in ids] == [97, 98, 99]
    assert [meta["output_token_logprobs_length"] for _, meta in chunks][-1] == 3
    assert [token for _, token, _ in state.get_meta_info("x")["output_token_logprobs"]] == [97, 98, 99]


async def test_late_readers_get_everything(scripted: Any) -> None:
    async with scripted(["a", "b"], ["c"]) as backend:
        state = await question.arun(backend=backend)
    assert "".join(state.text_iter()) == "Q: ab; c"
    assert "".join(state.text_iter("x")) == "ab"
    assert "".join(await collect(state.text_async_iter())) == "Q: ab; c"
    assert "".join(await collect(state.text_async_iter("y"))) == "c"


async def test_an_unknown_variable_is_a_key_error_once_the_program_cannot_ask_for_it(scripted: Any) -> None:
    async with scripted() as backend:
        state = await question.arun(backend=backend, stream=True)
        with pytest.raises(KeyError, match="'x', 'y'"):
            await collect(state.text_async_iter("z"))
        with pytest.raises(KeyError, match="'x', 'y'"):
            list(state.text_iter("z"))
        with pytest.raises(KeyError):
            await state.aget("z")


async def test_leaving_early_cancels_nothing(scripted: Any) -> None:
    go = anyio.Event()
    async with scripted(["a", go.wait, "b"], ["c"]) as backend:
        state = await question.arun(backend=backend, stream=True)
        async for _ in state.text_async_iter():
            break
        go.set()
        with anyio.fail_after(20):
            assert await state.atext() == "Q: ab; c"
    assert backend.aborted == 0


async def test_a_reader_gets_what_was_said_and_then_the_error(scripted: Any) -> None:
    error = RuntimeError("cut short")
    async with scripted(["half", error]) as backend:
        for name, expected in ((None, "Q: half"), ("x", "half")):
            backend.lines = [["half", error]]
            state = await question.arun(backend=backend, stream=True)
            said: list[str] = []
            with pytest.raises(RuntimeError) as raised:
                await read_into(said, state.text_async_iter(name))
            assert raised.value is error
            assert "".join(said) == expected
            assert await state.aerror() is error


async def test_two_readers_both_get_all(scripted: Any) -> None:
    found: list[str] = []

    async with scripted(["a", "b"], ["c"]) as backend:
        state = await question.arun(backend=backend, stream=True)

        async def read() -> None:
            found.append("".join(await collect(state.text_async_iter())))

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            group.start_soon(read)
    assert found == ["Q: ab; c"] * 2


async def test_a_body_can_read_its_branch_as_it_writes(scripted: Any) -> None:
    @cb.function
    def plain(s: Any) -> str:
        branch = s.fork(1)[0]
        branch += cb.gen("x")
        return "|".join(branch.text_iter("x"))

    @cb.function
    async def asynchronous(s: Any) -> str:
        branch = s.fork(1)[0]
        branch += cb.gen("x")
        return "|".join([text async for text in branch.text_async_iter("x")])

    async with scripted(["a", anyio.lowlevel.checkpoint, "b"]) as backend:
        for program in (plain, asynchronous):
            with anyio.fail_after(20):
                state = await program.arun(backend=backend)
            assert state.ret_value.replace("|", "") in ("ab", "said")


async def test_in_a_body_the_text_ends_where_everything_so_far_is_said(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> list[str]:
        s += "a " + cb.gen("x")
        first = "".join(s.text_iter())
        s += "!"
        return [first, "".join(s.text_iter())]

    async with scripted() as backend:
        with anyio.fail_after(20):
            assert (await body.arun(backend=backend)).ret_value == ["a said", "a said!"]


async def test_the_outer_state_waits_for_the_program_and_the_body_for_itself(scripted: Any) -> None:
    go = anyio.Event()

    @cb.function
    async def body(s: Any) -> str:
        await go.wait()
        s += cb.gen("x")
        return "returned"

    async with scripted() as backend:
        state = await body.arun(backend=backend, stream=True)
        assert "x" not in state
        assert state.ret_value is None
        go.set()
        with anyio.fail_after(20):
            assert await state.aget("x") == "said"
            assert await state.aerror() is None
        assert state.ret_value == "returned"


async def test_an_open_scope_is_iterated_as_far_as_it_was_said(scripted: Any) -> None:
    @cb.function
    async def body(s: Any) -> None:
        with s.var_scope("v"):
            s += "a" + cb.gen("x")
            assert "".join(await collect(s.text_async_iter("v"))) == "ab"
            assert [name for name, _ in await collect(s.text_async_iter(["v", "x"]))] == ["v", "x"]
            s += "c"
        assert "".join(await collect(s.text_async_iter("v"))) == await s.aget("v") == "abc"

    async with scripted(["b"]) as backend:
        with anyio.fail_after(20):
            await body.arun(backend=backend)
