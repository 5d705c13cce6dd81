"""What goes wrong in SGLang's frontend goes right here: one test for each defect that was seen in 0.5.23."""

from __future__ import annotations

from functools import wraps
from typing import Any

import anyio
import pytest

import callboard as sgl
from callboard.actors.engine import Engine
from callboard.actors.gateway import Address, Gateway, GatewayOptions
from callboard.actors.messages import Finish

pytestmark = pytest.mark.anyio


class Boom(Exception):
    pass


def guarded(test: Any) -> Any:
    """Nothing here may hang."""

    @wraps(test)
    async def run(**fixtures: Any) -> None:
        with anyio.fail_after(60):
            await test(**fixtures)

    return run


@sgl.function
def ask(s: Any, question: str = "Q") -> None:
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("a"))
    s += sgl.gen("b")


@guarded
async def test_a_backends_error_comes_out_of_run_and_of_every_read(scripted: Any) -> None:
    error = Boom("the server fell over")
    async with scripted(["half", error]) as backend:
        with pytest.raises(Boom) as raised:
            await ask.arun(backend=backend)
        assert raised.value is error
        backend.lines = [["half", error]]
        state = await ask.arun(backend=backend, stream=True)
        reads = (state.aget("a"), state.aget("b"), state.aget_meta_info("a"), state.atext(), state.amessages())
        for read in (*reads, state.wait()):
            with pytest.raises(Boom) as raised:
                await read
            assert raised.value is error
        assert await state.aerror() is error


@guarded
async def test_what_is_appended_after_an_error_raises_it_and_never_hangs(scripted: Any) -> None:
    seen: list[str] = []

    @sgl.function
    def body(s: Any) -> None:
        s += sgl.gen("a")
        s.error()
        for name, act in (
            ("append", lambda: s.append("more")), ("text", s.text), ("sync", s.sync), ("later", lambda: s["b"]),
            ("fork", lambda: s.fork(2)),
        ):  # fmt: skip
            with pytest.raises(Boom):
                act()
            seen.append(name)

    async with scripted([Boom()]) as backend:
        with pytest.raises(Boom):
            await body.arun(backend=backend)
    assert seen == ["append", "text", "sync", "later", "fork"]


def test_use_thread_makes_no_difference() -> None:
    def fall(prompt: Any) -> str:
        raise Boom

    for use_thread in (True, False):
        with pytest.raises(Boom):
            ask.run(backend=sgl.NullBackend(text=fall), use_thread=use_thread)


@guarded
async def test_an_error_in_one_body_leaves_the_rest_of_a_batch_alone_if_asked(scripted: Any) -> None:
    @sgl.function
    def body(s: Any, number: int) -> None:
        s += sgl.gen("a")
        if number == 1:
            raise Boom("mine")

    async with scripted() as backend:
        items = [{"number": number} for number in range(3)]
        with pytest.raises(Boom, match="mine"):
            await body.arun_batch(items, backend=backend)
        states = await body.arun_batch(items, backend=backend, on_error="return")
        assert [type(state.error()) for state in states] == [type(None), Boom, type(None)]
        assert [states[index]["a"] for index in (0, 2)] == ["said", "said"]


@guarded
async def test_an_error_in_a_batch_is_never_silent(scripted: Any) -> None:
    async with scripted([Boom("one")]) as backend:
        with pytest.raises(Boom, match="one"):
            await ask.arun_batch([{}, {}], backend=backend, num_threads=1)
        backend.lines = [[Boom("one")]]
        failed, fine = await ask.arun_batch([{}, {}], backend=backend, num_threads=1, on_error="return")
        assert isinstance(failed.error(), Boom)
        with pytest.raises(Boom, match="one"):
            failed["a"]
        assert fine.error() is None
        assert fine["b"] == "said"


@guarded
async def test_after_the_end_nothing_can_be_said_or_forked_and_nothing_hangs(scripted: Any) -> None:
    async with scripted() as backend:
        state = await ask.arun(backend=backend)
        with pytest.raises(RuntimeError, match="has ended"):
            state += "more"
        with pytest.raises(RuntimeError, match="has ended"):
            state.fork(2)
        assert state["a"] == "said"


@guarded
async def test_a_join_with_a_failed_branch_raises_and_drops_nothing(scripted: Any) -> None:
    error = Boom("branch")

    @sgl.function
    def body(s: Any) -> None:
        s += "start"
        forks = s.fork(3)
        forks += sgl.gen("a")
        forks.join()

    async with scripted(["fine"], [error], ["fine"]) as backend:
        with pytest.raises(Boom) as raised:
            await body.arun(backend=backend)
        assert raised.value is error


@guarded
async def test_meta_info_can_be_awaited_for_a_while(scripted: Any) -> None:
    go = anyio.Event()
    seen: list[str] = []

    @sgl.function
    def body(s: Any) -> None:
        s += sgl.gen("a")
        with pytest.raises(TimeoutError):
            s.get_meta_info("a", timeout=0)
        seen.append("in vain")
        go.set()
        seen.append(s.get_meta_info("a", timeout=60)["finish_reason"]["type"])

    async with scripted([go.wait, "x"]) as backend:
        state = await body.arun(backend=backend)
    assert seen == ["in vain", "stop"]
    assert state.get_meta_info("a", timeout=60) == state.get_meta_info("a")


@guarded
async def test_a_late_iterator_yields_the_text(scripted: Any) -> None:
    async with scripted(["to ", "late"], ["b"]) as backend:
        state = await ask.arun(backend=backend)
    assert "".join(state.text_iter("a")) == "to late"
    assert "".join(state.text_iter()) == state.text()
    assert "".join([text async for text in state.text_async_iter("a")]) == "to late"


@guarded
async def test_several_texts_come_through_a_server_too() -> None:
    @sgl.function
    def body(s: Any) -> None:
        s += "Once" + sgl.gen("a", n=3, max_tokens=6, temperature=2.0, seed=1)
        s += sgl.gen("b", max_tokens=6, temperature=0, return_logprob=True, return_text_in_logprobs=True)

    async with Engine() as engine:
        supervisor = await engine.supervisor.supervise("gateway", grace=10.0)
        gateway = await supervisor.spawn(lambda: Gateway(engine, GatewayOptions(port=0, grace_s=1.0)), name="gateway")
        async with sgl.RuntimeEndpoint(await gateway.ask(Address())) as server:
            served = await body.arun(backend=server)
        here = await body.arun(backend=engine)
    assert len(served["a"]) == len(served.get_meta_info("a")) == 3
    assert served["a"] == here["a"]
    assert "".join(text for _, _, text in served.get_meta_info("b")["output_token_logprobs"]) == served["b"]


@guarded
async def test_unnamed_generations_are_kept_apart(scripted: Any) -> None:
    @sgl.function
    def body(s: Any) -> None:
        s += sgl.gen() + "," + sgl.gen() + "," + sgl.gen("named")

    async with scripted(["a"], ["b"], ["c"]) as backend:
        state = await body.arun(backend=backend)
    assert state.text() == "a,b,c"
    assert state["named"] == "c"
    assert None not in state


@guarded
async def test_the_users_lists_are_not_changed_however_often_it_runs(scripted: Any) -> None:
    stop, token_ids, expressions = ["\n"], [5], ["a+b"]

    @sgl.function
    def body(s: Any) -> None:
        s += sgl.user("Q")
        s += sgl.assistant(sgl.gen("a", stop=stop, stop_token_ids=token_ids, stop_regex=expressions))

    async with scripted() as backend:
        for _ in range(3):
            await body.arun(backend=backend, stop=stop)
        assert [sampling.stop for sampling in backend.samplings] == [("\n",)] * 3
    assert (stop, token_ids, expressions) == (["\n"], [5], ["a+b"])


@guarded
async def test_the_prefix_of_a_fork_is_computed_once_and_before_it(scripted: Any, tokens_of: Any) -> None:
    @sgl.function
    def body(s: Any) -> None:
        s += "the long beginning "
        forks = s.fork(4)  # at once: nothing was waited for
        forks += sgl.gen("a")
        forks.join()

    async with scripted() as backend:
        for _ in range(3):
            await body.arun(backend=backend)
    assert [prompt.tokens for prompt in backend.prefilled] == [tokens_of("the long beginning ")] * 3
    assert backend.encoded == ["the long beginning "] * 3


def test_a_choice_with_a_temperature_is_refused_where_it_is_written() -> None:
    with pytest.raises(sgl.InvalidRequest, match="temperature"):
        sgl.select("a", ["x", "y"], temperature=0.5)


@guarded
async def test_unknown_names_and_bad_values_are_refused_before_anything_runs(scripted: Any) -> None:
    @sgl.function
    def late(s: Any) -> None:
        s += sgl.gen("a")
        s += sgl.gen("b", temperature=-1)

    async with scripted([anyio.sleep_forever]) as backend:
        for program, arguments, field in (
            (ask, {"temprature": 1}, "arguments"), (ask, {"temperature": -1}, "temperature"), (ask, {"n": 0}, "n"),
            (ask, {"stop_regex": "(a"}, "stop_regex"), (late, {}, "temperature"),
        ):  # fmt: skip
            with pytest.raises(sgl.InvalidRequest) as raised:
                await program.arun(backend=backend, **arguments)
            assert raised.value.field == field
        assert backend.open == 0
    with pytest.raises(TypeError):
        sgl.gen("a", temprature=1)  # type: ignore[call-overload]


@guarded
async def test_a_generation_the_server_gave_up_is_an_error_and_no_text(scripted: Any) -> None:
    async with scripted(["half", Finish(reason="abort", message="shutting down")]) as backend:
        with pytest.raises(sgl.Aborted, match="shutting down"):
            await ask.arun(backend=backend)
