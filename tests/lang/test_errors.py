"""A failure is the end of a program, everybody who waits for it hears of it, and nothing hangs."""

from __future__ import annotations

import traceback
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import callboard as cb
from callboard.actors.messages import Finish

pytestmark = pytest.mark.anyio


class Boom(Exception):
    pass


async def run(program: Any, backend: Any, **arguments: Any) -> Any:
    with anyio.fail_after(20):
        return await program.arun(backend=backend, **arguments)


READS = {
    "variable": lambda s: s["x"],
    "later variable": lambda s: s["y"],
    "meta": lambda s: s.get_meta_info("x"),
    "text": lambda s: s.text(),
    "messages": lambda s: s.messages(),
    "sync": lambda s: s.sync(),
    "text_iter": lambda s: list(s.text_iter()),
    "variable_iter": lambda s: list(s.text_iter("x")),
}


@pytest.mark.parametrize("read", READS)
async def test_every_waiter_raises_the_original_error(scripted: Any, read: str) -> None:
    error = Boom("the model fell over")
    seen: list[BaseException] = []

    @cb.function
    def body(s: Any) -> None:
        s += "a" + cb.gen("x") + cb.gen("y")
        try:
            READS[read](s)
        except Boom as caught:
            seen.append(caught)
        assert s.error() is error

    async with scripted([error]) as backend:
        with pytest.raises(Boom) as raised:
            await run(body, backend)
    assert raised.value is error
    assert seen == [error]
    assert backend.open == 0
    assert backend.dead == []


async def test_run_raises_even_if_the_body_looked_away(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += cb.gen("x")

    async with scripted([Boom()]) as backend:
        with pytest.raises(Boom):
            await run(body, backend)


async def test_what_was_there_before_the_failure_can_still_be_read(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += cb.gen("x") + cb.gen("y")
        s.error()
        assert s["x"] == "one"

    async with scripted(["one"], [Boom()]) as backend:
        with pytest.raises(Boom):
            await run(body, backend)


async def test_appending_after_a_failure_raises_it(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += cb.gen("x")
        s.error()
        with pytest.raises(Boom):
            s += "more"
        with pytest.raises(Boom):
            s.fork(2)

    async with scripted([Boom()]) as backend:
        with pytest.raises(Boom):
            await run(body, backend)


async def test_appending_after_the_end_raises(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += cb.gen("x")

    async with scripted() as backend:
        state = await run(body, backend)
        with pytest.raises(RuntimeError, match="has ended"):
            state += "more"
        with pytest.raises(RuntimeError, match="has ended"):
            state.fork(2)
    with pytest.raises(RuntimeError, match="has ended"):
        state.append("more")


async def test_a_stream_that_is_cut_is_a_failure(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += cb.gen("x")

    async with scripted(["half a wo", None]) as backend:
        with pytest.raises(cb.GenerationFailed, match="cut"):
            await run(body, backend)


@pytest.mark.parametrize(("reason", "kind"), [("abort", cb.Aborted), ("error", cb.GenerationFailed)])
async def test_a_bad_end_is_an_error_with_its_words(scripted: Any, reason: Any, kind: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += cb.gen("x")

    async with scripted([Finish(reason=reason, message="NaN in row 3")]) as backend:
        with pytest.raises(kind, match="NaN in row 3"):
            await run(body, backend)


async def test_the_bodys_own_error_comes_out_with_its_traceback(scripted: Any) -> None:
    def stumble() -> None:
        raise Boom("mine")

    @cb.function
    def plain(s: Any) -> None:
        s += cb.gen("x")
        s["x"]
        stumble()

    @cb.function
    async def asynchronous(s: Any) -> None:
        s += cb.gen("x")
        await s.aget("x")
        stumble()

    async with scripted() as backend:
        for program in (plain, asynchronous):
            with pytest.raises(Boom, match="mine") as raised:
                await run(program, backend)
            assert "stumble" in "".join(traceback.format_tb(raised.value.__traceback__))
        assert backend.open == 0


async def test_the_bodys_error_aborts_what_it_had_begun(scripted: Any) -> None:
    @cb.function
    async def body(s: Any) -> None:
        s += cb.gen("x")
        while not backend.open:
            await anyio.lowlevel.checkpoint()
        raise Boom

    async with scripted([anyio.sleep_forever]) as backend:
        with pytest.raises(Boom):
            await run(body, backend)
        assert (backend.open, backend.aborted) == (0, 1)
        assert backend.programs.statistics() == []


async def test_a_failure_in_the_template_or_the_tokenizer_is_no_hang(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += cb.user("hi")
        s += cb.gen("x")
        s["x"]

    async with scripted() as backend:

        async def encode(text: str, *, beginning: bool = True) -> bytes:
            raise Boom("tokenizer")

        backend.encode = encode
        with pytest.raises(Boom, match="tokenizer"):
            await run(body, backend)


async def test_a_closed_backend_is_an_error_not_a_hang(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += cb.gen("x")

    backend = scripted()
    async with backend:
        pass
    from callboard.lang.performer import Call, play
    from callboard.lang.sampling_arguments import Defaults

    call = Call(body.body, (), {}, backend, Defaults({}, backend), asynchronous=False)
    with pytest.raises(RuntimeError), anyio.fail_after(20):
        await play(call, call.open())


async def test_leaving_the_backends_block_ends_its_programs(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += "a" + cb.gen("x")

    with anyio.fail_after(20):
        backend = scripted([anyio.sleep_forever])
        with pytest.raises(Boom):  # noqa: PT012  (an error gives no grace)
            async with backend:
                state = await body.arun(backend=backend, stream=True)
                while not backend.open:
                    await anyio.lowlevel.checkpoint()
                raise Boom
    with pytest.raises(cb.Aborted):
        state["x"]
    assert isinstance(state.error(), cb.Aborted)
    assert backend.open == 0


async def test_a_bad_argument_is_refused_before_anything_runs(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += cb.gen("fine")
        s += cb.gen("x", stop_token_ids=[300])  # outside the backend's vocabulary

    async with scripted([anyio.sleep_forever]) as backend:
        with pytest.raises(cb.InvalidRequest, match="stop_token_ids.*300"):
            await run(body, backend)
        assert backend.open == 0


async def test_cancelling_a_program_aborts_its_generation(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += "a" + cb.gen("x")
        s["x"]

    async with scripted([anyio.sleep_forever]) as backend:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: body.arun(backend=backend))
                while not backend.open:
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
        assert (backend.open, backend.aborted) == (0, 1)
        assert backend.programs.statistics() == []
        assert backend.dead == []


async def test_a_running_program_can_be_cancelled_by_its_state(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += "a" + cb.gen("x")
        s["x"]

    async with scripted([anyio.sleep_forever]) as backend:
        with anyio.fail_after(20):
            state = await body.arun(backend=backend, stream=True)
            while not backend.open:
                await anyio.lowlevel.checkpoint()
            state.cancel()
            with pytest.raises(cb.Aborted, match="cancelled"):
                await state.aget("x")
            while backend.programs.statistics():
                await anyio.lowlevel.checkpoint()
        assert (backend.open, backend.aborted) == (0, 1)
