"""Several variables, and several branches, read at once."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import callboard as cb

pytestmark = pytest.mark.anyio

step = anyio.lowlevel.checkpoint


@cb.function
def question(s: Any) -> None:
    s += "Q: "
    s += cb.gen("x") + "; " + cb.gen("y")


async def run(program: Any, backend: Any) -> Any:
    with anyio.fail_after(20):
        return await program.arun(backend=backend)


def texts(chunks: list[tuple[Any, ...]]) -> dict[Any, str]:
    """Put together what was said under each label."""
    found: dict[Any, str] = defaultdict(str)
    for *label, text in chunks:
        found[tuple(label) if len(label) > 1 else label[0]] += text
    return dict(found)


async def test_chunks_of_several_variables_say_whose_they_are(scripted: Any) -> None:
    async with scripted(["a", *[step] * 9, "b"], ["c"]) as backend:
        with anyio.fail_after(20):
            state = await question.arun(backend=backend, stream=True)
            chunks = [chunk async for chunk in state.text_async_iter(["x", "y"])]
        assert texts(chunks) == {"x": "ab", "y": "c"}
        assert [name for name, _ in chunks] == ["x", "x", "y"]
        assert texts(list(state.text_iter(("x", "y")))) == {"x": "ab", "y": "c"}


async def test_the_last_chunk_of_each_variable_knows_how_it_ended(scripted: Any) -> None:
    async with scripted(["a", *[step] * 9, "b"], ["c"]) as backend:
        with anyio.fail_after(20):
            state = await question.arun(backend=backend, stream=True)
            chunks = [chunk async for chunk in state.text_async_iter(["x", "y"], return_meta_data=True)]
    last = {name: meta for name, _, meta in chunks}
    assert {name: meta["finish_reason"] for name, meta in last.items()} == {
        "x": {"type": "stop"}, "y": {"type": "stop"},
    }  # fmt: skip
    assert texts([(name, text) for name, text, _ in chunks]) == {"x": "ab", "y": "c"}


async def test_what_failed_gives_what_it_said_and_then_the_error(scripted: Any) -> None:
    error = RuntimeError("cut")
    async with scripted(["a"], ["half", error]) as backend:
        state = await question.arun(backend=backend, stream=True)
        found: list[Any] = []
        reader = state.text_async_iter(["x", "y"])
        with anyio.fail_after(20):
            with pytest.raises(RuntimeError) as raised:  # noqa: PT012
                async for chunk in reader:
                    found.append(chunk)  # noqa: PERF401  (what came before the error must stay)
            assert raised.value is error
            assert texts(found) == {"x": "a", "y": "half"}
            assert [chunk async for chunk in reader] == []


async def test_unknown_and_wrong_names_are_refused(scripted: Any) -> None:
    async with scripted() as backend:
        state = await question.arun(backend=backend)
        with pytest.raises(KeyError, match="'z'"):
            list(state.text_iter(["x", "z"]))
        for names in ([], ["x", "x"], ["x", 1], 5):
            with pytest.raises(cb.InvalidRequest, match="var_name"):
                state.text_async_iter(names)  # type: ignore[arg-type]
        with pytest.raises(cb.InvalidRequest, match="return_meta_data"):
            state.text_async_iter(return_meta_data=True)


async def test_a_fork_is_read_with_the_index_of_each_branch(scripted: Any) -> None:
    @cb.function
    async def asynchronous(s: Any) -> Any:
        s += "Tips. "
        forks = s.fork(3)
        forks += lambda index: f"{index}: " + cb.gen("tip")
        whole = [chunk async for chunk in forks.text_async_iter()]
        one = [chunk async for chunk in forks.text_async_iter("tip")]
        metas = [chunk async for chunk in forks.text_async_iter(["tip"], return_meta_data=True)]
        return texts(whole), texts(one), [(index, name, text) for index, name, text, _ in metas]

    @cb.function
    def plain(s: Any) -> Any:
        s += "Tips. "
        forks = s.fork(3)
        forks += lambda index: f"{index}: " + cb.gen("tip")
        whole, one = list(forks.text_iter()), list(forks.text_iter("tip"))
        metas = list(forks.text_iter(["tip"], True))
        return texts(whole), texts(one), [(index, name, text) for index, name, text, _ in metas]

    async with scripted() as backend:
        for program in (asynchronous, plain):
            backend.lines = [["said", *[step] * 9, "."]] * 3
            whole, one, metas = (await run(program, backend)).ret_value
            assert whole == {index: f"Tips. {index}: said." for index in range(3)}
            assert one == dict.fromkeys(range(3), "said.")
            assert metas == [(index, "tip", "said.") for index in range(3)]


async def test_chunks_of_a_fork_come_as_any_branch_says_them(scripted: Any) -> None:
    go = anyio.Event()

    @cb.function
    async def body(s: Any) -> list[Any]:
        forks = s.fork(2)
        forks += cb.gen("x")
        chunks = []
        async for index, text in forks.text_async_iter("x"):
            chunks.append((index, text))
            if len(chunks) == 2:
                go.set()
        return chunks

    async with scripted(["a", go.wait, "b"], [step, "c"]) as backend:
        assert (await run(body, backend)).ret_value == [(0, "a"), (1, "c"), (0, "b")]


async def test_branches_that_do_not_ask_for_the_variable_have_no_chunks(scripted: Any) -> None:
    @cb.function
    async def body(s: Any) -> list[Any]:
        forks = s.fork(2)
        forks[1].append(cb.gen("x"))
        with pytest.raises(KeyError):
            await anext(forks.text_async_iter("z"))
        return [chunk async for chunk in forks.text_async_iter("x")]

    async with scripted() as backend:
        assert (await run(body, backend)).ret_value == [(1, "said")]


async def test_a_failed_branch_is_told_to_the_reader_unless_errors_are_collected(scripted: Any) -> None:
    error = RuntimeError("cut")

    @cb.function
    async def body(s: Any, on_error: str) -> Any:
        forks = s.fork(2, on_error=on_error)
        forks += cb.gen("x")
        found = []
        try:
            async for chunk in forks.text_async_iter("x"):
                found.append(chunk)  # noqa: PERF401  (what came before the error must stay)
        except RuntimeError as raised:
            assert raised is error  # noqa: PT017
            found.append("raised")
        return texts([chunk for chunk in found if chunk != "raised"]), "raised" in found, await forks.aerrors()

    async with scripted() as backend:
        for on_error, raises in (("raise", True), ("cancel", True), ("collect", False)):
            backend.lines = [["a", error], ["b", *[step] * 9]]
            with anyio.fail_after(20):
                state = await body.arun(on_error, backend=backend)
            said, raised, errors = state.ret_value
            assert said[0] == "a"
            assert said.get(1) == "b" or on_error == "cancel"
            assert raised is raises
            assert errors[0] is error
            assert (errors[1] is not None) == (on_error == "cancel")


async def test_a_reader_of_a_fork_that_leaves_early_cancels_nothing(scripted: Any) -> None:
    @cb.function
    async def body(s: Any) -> None:
        async with s.fork(2) as forks:
            forks += cb.gen("x")
            async for _ in forks.text_async_iter():
                break

    async with scripted(["a", step, "b"], ["c", step, "d"]) as backend:
        assert (await run(body, backend))["x"] == ["ab", "cd"]
        assert backend.aborted == 0


async def test_reasoning_is_a_channel_like_any_variable(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += cb.separate_reasoning(cb.gen("x"), "deepseek-r1")

    async with scripted(["<think>so ", step, step, "it is", step, step, "</think>yes"]) as backend:
        with anyio.fail_after(20):
            state = await body.arun(backend=backend, stream=True)
            chunks = [chunk async for chunk in state.text_async_iter(["x_reasoning_content", "x"])]
        assert texts(chunks) == {"x_reasoning_content": state["x_reasoning_content"], "x": state["x"]}
        assert state["x"] == "yes"
