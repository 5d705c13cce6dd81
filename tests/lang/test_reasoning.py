"""Reasoning and answer are two variables, each streamed while it is written."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import callboard as cb

pytestmark = pytest.mark.anyio

THOUGHT = ["<th", "ink>\nTwo and ", "two.\n</th", "ink>\n\n", "It is ", "4."]


@cb.function
def think(s: Any, **options: Any) -> None:
    s += cb.user("2 + 2?")
    s += cb.separate_reasoning(cb.assistant(cb.gen("answer", **options)), model_type="qwen3")


async def collect(iterator: Any) -> str:
    with anyio.fail_after(20):
        return "".join([text async for text in iterator])


async def test_they_are_two_variables_and_the_text_keeps_both(scripted: Any, tokens_of: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += "Q" + cb.separate_reasoning(cb.gen("answer"), model_type="qwen3") + cb.gen("more")

    async with scripted(THOUGHT, ["on"]) as backend:
        state = await body.arun(backend=backend)
    assert state["answer"] == "It is 4."
    assert state["answer_reasoning_content"] == "Two and two."
    assert state.text() == "Q" + "".join(THOUGHT) + "on"
    assert backend.prompts[1].tokens == tokens_of("Q" + "".join(THOUGHT)), "the model reads on from what it wrote"
    assert state.get_meta_info("answer")["completion_tokens"] == len("".join(THOUGHT))
    assert state.get_meta_info("answer_reasoning_content") is None


async def test_both_are_streamed_and_the_reasoning_is_there_when_the_answer_begins(scripted: Any) -> None:
    go, on = anyio.Event(), anyio.Event()
    line = [*THOUGHT[:2], go.wait, *THOUGHT[2:5], on.wait, THOUGHT[5]]
    async with scripted(line) as backend:
        with anyio.fail_after(20):
            state = await think.arun(backend=backend, stream=True)
            reasoning, answer = state.text_async_iter("answer_reasoning_content"), state.text_async_iter("answer")
            assert await anext(reasoning) == "Two and"
            go.set()
            assert await collect(reasoning) == " two."
            assert await state.aget("answer_reasoning_content") == "Two and two."
            assert await anext(answer) == "It is "
            on.set()
            assert await collect(answer) == "4."
            assert await state.aget("answer") == "It is 4."
        assert "".join(state.text_iter("answer_reasoning_content")) == "Two and two."
        assert "".join(state.text_iter("answer")) == "It is 4."


@pytest.mark.parametrize(
    ("said", "reasoning", "answer"),
    [(["It is 4."], "", "It is 4."), (["<think>Two and"], "Two and", ""), ([], "", ""), (["<thi"], "", "<thi")],
)
async def test_without_either_it_is_empty_and_nobody_waits(
    scripted: Any, said: list[str], reasoning: str, answer: str
) -> None:
    async with scripted(said) as backend:
        with anyio.fail_after(20):
            state = await think.arun(backend=backend)
            assert (state["answer_reasoning_content"], state["answer"]) == (reasoning, answer)
            assert await collect(state.text_async_iter("answer_reasoning_content")) == reasoning


async def test_a_failure_reaches_whoever_waits_for_either(scripted: Any) -> None:
    error = RuntimeError("cut")
    async with scripted(["<think>Two", error]) as backend:
        with anyio.fail_after(20):
            state = await think.arun(backend=backend, stream=True)
            for name in ("answer", "answer_reasoning_content"):
                with pytest.raises(RuntimeError) as raised:
                    await state.aget(name)
                assert raised.value is error
                with pytest.raises(RuntimeError):
                    await collect(state.text_async_iter(name))


async def test_a_program_that_opened_the_marker_itself_is_minded(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += cb.separate_reasoning("Q <think>\n" + cb.gen("x"), model_type="qwen3")

    async with scripted(["Hm.</think>Yes"]) as backend:
        state = await body.arun(backend=backend)
    assert (state["x_reasoning_content"], state["x"]) == ("Hm.", "Yes")


async def test_several_texts_have_a_reasoning_each(scripted: Any) -> None:
    async with scripted(["<think>a</think>b"], ["<think>c</think>d"]) as backend:
        with anyio.fail_after(20):
            state = await think.arun(backend=backend, n=2)
    assert state["answer"] == ["b", "d"]
    assert state["answer_reasoning_content"] == ["a", "c"]
    assert "".join(state.text_iter("answer_reasoning_content[1]")) == "c"
    assert "".join(state.text_iter("answer_reasoning_content")) == "a"


async def test_what_the_answer_stands_for_is_read_from_the_answer(scripted: Any) -> None:
    async with scripted(["<think>a</think>12"]) as backend:
        state = await think.arun(backend=backend, json_schema={"type": "integer"})
    assert state.get_meta_info("answer")["parsed"] == 12


def test_it_is_refused_where_it_means_nothing() -> None:
    for arguments, field in (
        ((cb.gen("x"),), "model_type"), ((cb.gen("x"), "gpt"), "model_type"), (("text", "qwen3"), "expr"),
        ((None, "qwen3"), "expr"), ((cb.select("x", ["a"]), "qwen3"), "expr"),
    ):  # fmt: skip
        with pytest.raises(cb.InvalidRequest, match=field):
            cb.separate_reasoning(*arguments)
