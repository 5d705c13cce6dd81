"""`n` texts of one generation: a list of values, reproducible and different, the program goes on with the first."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import callboard as cb
from callboard.actors.engine import Engine

pytestmark = pytest.mark.anyio


class Boom(Exception):
    pass


@cb.function
def ask(s: Any, **options: Any) -> None:
    s += "Q: " + cb.gen("x", **options) + "; " + cb.gen("y")


async def run(program: Any, backend: Any, *arguments: Any, **keywords: Any) -> Any:
    with anyio.fail_after(30):
        return await program.arun(*arguments, backend=backend, **keywords)


async def test_the_value_is_a_list_and_the_text_goes_on_with_the_first(scripted: Any, tokens_of: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += cb.user("Q")
        s += cb.assistant("A: " + cb.gen("x", n=3))
        s += cb.gen("y")

    async with scripted(["a"], ["b"], ["c"], ["d"]) as backend:
        state = await run(body, backend)
    assert state["x"] == ["a", "b", "c"]
    assert state["y"] == "d"
    assert "A: a" in state.text()
    assert "b" not in state.text()
    assert state.messages()[1] == {"role": "assistant", "content": "A: a"}
    assert len({prompt.tokens for prompt in backend.prompts[:3]}) == 1
    assert backend.prompts[3].tokens == tokens_of(state.text()[:-1])
    assert [prompt.tokens for prompt in backend.prefilled] == [backend.prompts[0].tokens], "the prompt: once"


async def test_a_text_that_its_backend_cancels_is_cut_and_not_taken_for_whole(scripted: Any) -> None:
    async with scripted(["a"], ["b", asyncio.CancelledError()], ["c"]) as backend:
        with pytest.raises(cb.GenerationFailed, match="ended without saying how"):
            await run(ask, backend, n=3)


async def test_what_is_known_of_them_is_a_list_too(scripted: Any) -> None:
    async with scripted(["a"], ["bb"]) as backend:
        state = await run(ask, backend, n=2)
    assert [meta["completion_tokens"] for meta in state.get_meta_info("x")] == [1, 2]


async def test_the_run_can_ask_for_several_and_a_gen_for_one(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += "Q: " + cb.gen("x") + cb.gen("y", n=1) + cb.gen("z", choices=["u", "v"])

    async with scripted(["a"], ["b"], ["c"]) as backend:
        state = await run(body, backend, n=2)
    assert (state["x"], state["y"], state["z"]) == (["a", "b"], "c", "u")


async def test_a_seed_gives_each_its_own(scripted: Any) -> None:
    async with scripted() as backend:
        await run(ask, backend, n=3, seed=7)
    assert [sampling.seed for sampling in backend.samplings] == [7, 8, 9, 7, 8, 9]


async def test_they_are_generated_at_the_same_time(scripted: Any) -> None:
    all_there = anyio.Event()

    async def meet() -> None:
        if backend.open == 3:
            all_there.set()
        await all_there.wait()

    async with scripted([meet, "a"], [meet, "b"], [meet, "c"]) as backend:

        @cb.function
        def body(s: Any) -> None:
            s += cb.gen("x", n=3)

        assert sorted((await run(body, backend))["x"]) == ["a", "b", "c"]


async def test_each_is_streamed_by_its_place_and_the_first_by_the_name(scripted: Any) -> None:
    go = anyio.Event()
    async with scripted(["a", go.wait, "b"], ["c", go.wait, "d"], ["e"]) as backend:
        with anyio.fail_after(20):
            state = await ask.arun(backend=backend, stream=True, n=2)
            first, second = state.text_async_iter("x"), state.text_async_iter("x[1]")
            chunks = {await anext(first), await anext(second)}
            assert chunks == {"a", "c"}
            go.set()
            rest = ["".join([text async for text in reader]) for reader in (first, second)]
            assert sorted(rest) == ["b", "d"]
            assert await state.aget("x[1]") == state["x"][1]
            assert state.get_meta_info("x[1]")["completion_tokens"] == 2
            assert "".join(state.text_iter("x[0]")) == "".join(state.text_iter("x")) == state["x"][0]
            with pytest.raises(KeyError):
                await state.aget("x[2]")


async def test_one_that_fails_ends_the_others_with_its_error(scripted: Any) -> None:
    error = Boom("second")

    async def others() -> None:
        while backend.open < 3:
            await anyio.lowlevel.checkpoint()

    async with scripted([anyio.sleep_forever], [others, error], [anyio.sleep_forever]) as backend:

        @cb.function
        def body(s: Any) -> None:
            s += "Q" + cb.gen("x", n=3)
            with pytest.raises(Boom) as raised:
                s["x"]
            assert raised.value is error

        with pytest.raises(Boom) as raised:
            await run(body, backend)
        assert raised.value is error
        assert (backend.open, backend.aborted) == (0, 2)
        assert backend.programs.statistics() == []


async def test_cancelling_ends_all_of_them(scripted: Any) -> None:
    async with scripted([anyio.sleep_forever], [anyio.sleep_forever]) as backend:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: ask.arun(backend=backend, n=2))
                while backend.open < 2:
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            state = await ask.arun(backend=backend, stream=True, n=2)
            backend.lines = [[anyio.sleep_forever], [anyio.sleep_forever]]
            while backend.open < 2:
                await anyio.lowlevel.checkpoint()
            state.cancel()
            with pytest.raises(cb.Aborted):
                await state.aget("x")
            while backend.programs.statistics():
                await anyio.lowlevel.checkpoint()
        assert (backend.open, backend.aborted) == (0, 4)


async def test_a_fork_of_several_gathers_lists_of_lists_and_so_does_what_is_known(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        forks = s.fork(2)
        forks += cb.gen("x", n=2)
        forks.join()

    async with scripted() as backend:
        state = await run(body, backend)
    assert state["x"] == [["said", "said"]] * 2
    assert [[one["completion_tokens"] for one in branch] for branch in state.get_meta_info("x")] == [[4, 4]] * 2


async def test_on_the_engine_seeds_repeat_and_differ_constraints_hold_and_the_prompt_is_computed_once() -> None:
    @cb.function
    def body(s: Any) -> None:
        s += "Once upon a time" + cb.gen("x", n=4, max_tokens=12, temperature=2.0)
        s += cb.gen("number", n=3, dtype=int, max_tokens=8, temperature=1.5)

    async with Engine() as engine:
        first = await run(body, engine, seed=3)
        again = await run(body, engine, seed=3)
        assert first["x"] == again["x"]
        assert len(set(first["x"])) > 1
        known = first.get_meta_info("number")
        assert [meta["parsed"] for meta in known] == [int(text) for text in first["number"]]
        for meta in first.get_meta_info("x"):
            assert meta["cached_tokens"] >= meta["prompt_tokens"] - 1


async def test_log_probabilities_come_with_their_tokens_texts_if_asked_for(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += "The capital of France" + cb.gen("x", max_tokens=4, temperature=0)

    async with Engine() as engine:
        options = {"return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": True}
        state = await run(body, engine, **options)
        meta = state.get_meta_info("x")
        texts = [text for _, _, text in meta["output_token_logprobs"]]
        assert "".join(texts) == state["x"]
        assert all(len(top) == 2 and isinstance(top[0][2], str) for top in meta["output_top_logprobs"])
    async with scripted() as backend:
        with pytest.raises(cb.InvalidRequest, match="return_text_in_logprobs"):
            await run(body, backend, **options)
        assert backend.samplings == []
