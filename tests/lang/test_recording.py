"""What a recorded program did, as its timeline tells: which states in which order, on which tracks; never how long."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

import callboard as cb
from callboard.actors.recorder import TRACK

from ..support.trace_file import arrows, read_trace, states
from .conftest import ScriptedBackend

pytestmark = pytest.mark.anyio

ANSWERED = ["request tip", "queued tip", "prefill tip", "decode tip", "request tip", "waiting"]


def plain(told: list[str]) -> list[str]:
    """Leave out repetitions and what lies between two things that take time."""
    kept = [state for state in told if not state.startswith(("request", "fork"))]
    return [state for place, state in enumerate(kept) if not place or kept[place - 1] != state]


@cb.function
async def tips(s: Any, tool: anyio.Event) -> None:
    s += "Question: Give three tips.\nAnswer:"
    forks = s.fork(3)
    forks += lambda index: f" {index}:" + cb.gen("tip", max_tokens=3 + index)
    await forks.ajoin()
    await tool.wait()
    s += " In short:" + cb.gen("summary", max_tokens=3)
    await s.aget("summary")


async def test_a_fork_with_a_tool_shows_each_branch_and_the_tool_behind_their_join() -> None:
    written, tool = io.BytesIO(), anyio.Event()
    with anyio.fail_after(60):
        async with cb.Engine("embedded", threads=1) as engine, anyio.create_task_group() as group:

            async def answer() -> None:  # the tool's work, once the branches have said theirs
                while (await engine.statistics())["requests"].get("ended_length", 0) < 4:
                    await anyio.lowlevel.checkpoint()
                tool.set()

            group.start_soon(answer)
            with cb.record(written) as recording:
                await tips.arun(tool, backend=engine, ignore_eos=True)
    assert recording.left_out == 0
    read = read_trace(written.getvalue())
    assert list(read) == ["tips: tips", "tips: tips/0", "tips: tips/1", "tips: tips/2", "engine: steps"]
    assert plain(states(read["tips: tips"])) == [
        "waiting", "tool", "waiting join",
        "queued", "prefill",  # what the branches share
        "waiting join", "tool", "waiting summary",
        "queued summary", "prefill summary", "decode summary", "waiting summary", "tool", "waiting",
    ]  # fmt: skip
    for index in range(3):
        told = read[f"tips: tips/{index}"]
        assert states(told) == ["waiting", *ANSWERED]
        decoded = next(one for one in told if one["name"] == "decode")
        assert decoded["args"]["completion_tokens"] == 3 + index
        assert decoded["args"]["cached_tokens"] > 0
    between = [("fork", "tips", f"tips/{index}") for index in range(3)]
    assert sorted(arrows(written.getvalue())) == [
        *between, *[("join", f"tips/{index}", "tips") for index in range(3)],
    ]  # fmt: skip
    assert {one["name"] for one in read["engine: steps"]} <= {"prefill", "decode", "both"}
    whole = read["tips: tips"]
    end = whole[-1]["ts"] + whole[-1]["dur"]
    for branch in (read[f"tips: tips/{index}"] for index in range(3)):
        assert whole[0]["ts"] <= branch[0]["ts"]
        assert branch[-1]["ts"] + branch[-1]["dur"] <= end


@cb.function
async def nested(s: Any) -> None:
    forks = s.fork(2)
    for branch in forks:
        branch += "Say: " + cb.gen("one", max_tokens=2)
        inner = branch.fork(2)
        inner += cb.gen("two", max_tokens=2)
        await inner.ajoin()
        branch += cb.gen("three", max_tokens=2)
    await forks.ajoin()


async def test_arrows_of_joins_in_branches_come_from_those_that_were_joined() -> None:
    written = io.BytesIO()
    with anyio.fail_after(60):
        async with cb.Engine("embedded", threads=1) as engine:
            with cb.record(written):
                await nested.arun(backend=engine, ignore_eos=True)
    read_trace(written.getvalue())  # which looks at both ends of each
    told = [(name, *ends) for name, *ends in arrows(written.getvalue()) if name == "join"]
    parents = ("nested", "nested/0", "nested/1")
    assert sorted(told) == sorted(("join", f"{parent}/{index}", parent) for parent in parents for index in range(2))


async def test_a_recording_lasts_as_long_as_its_block_and_leaves_nothing_behind() -> None:
    written = io.BytesIO()
    with anyio.fail_after(60):
        async with cb.Engine("embedded", threads=1) as engine:
            before = await said.arun("before", backend=engine)
            with cb.record(written) as recording:
                await said.arun("in it", backend=engine)
                await engine.complete("Hello", cb.SamplingParams(max_new_tokens=2))
            await said.arun("behind", backend=engine)
            with pytest.raises(RuntimeError, match="make another"), recording:
                pass
    assert before["answer"] is not None
    kept = recording.recorder
    assert [*kept.tracks, *kept.spans, *kept.arrows] == []
    assert TRACK.get() is None
    read = read_trace(written.getvalue())
    assert [name for name in read if name.startswith("said")] == ["said: said"]
    (request,) = [told for name, told in read.items() if name.startswith("requests")]
    assert plain(states(request)) == ["waiting", "queued", "prefill", "decode", "waiting"]


@cb.function
def long(s: Any, question: str) -> None:
    s += question + cb.gen("answer", max_tokens=100, ignore_eos=True)


async def test_a_request_whose_slots_were_taken_is_retracted_and_computed_again() -> None:
    written = io.BytesIO()
    with anyio.fail_after(60):
        async with cb.Engine("embedded", threads=1, kv_slots=150, max_rows=2) as engine:
            with cb.record(written):
                await long.arun_batch([("One:",), ("Two:",)], backend=engine)
            assert (await engine.statistics())["scheduler"]["retractions"] == 1
    told = [plain(states(slices)) for name, slices in read_trace(written.getvalue()).items() if "long" in name]
    whole = ["queued answer", "prefill answer", "decode answer"]
    assert told == [
        ["waiting", "tool", "waiting", *whole, "waiting"],
        ["waiting", "tool", "waiting", *whole, "retracted answer", *whole[1:], "waiting"],
    ]


@cb.function
def said(s: Any, question: str) -> None:
    s += question + cb.gen("answer", max_tokens=2)


@cb.function
def asking(s: Any) -> None:
    s += "Ask: " + cb.gen("question", max_tokens=2)
    s += said.run(question=s["question"])["answer"]


async def test_a_program_that_another_calls_is_a_process_of_its_own_and_its_caller_waits() -> None:
    written = io.BytesIO()
    async with ScriptedBackend(["why"], ["so"]) as backend:
        cb.set_default_backend(backend)
        try:
            with anyio.fail_after(20), cb.record(written):
                await asking.arun()
        finally:
            cb.set_default_backend(None)
    read = read_trace(written.getvalue())
    assert list(read) == ["asking: asking", "said: said"]
    told = states(read["asking: asking"])
    assert told.index("request question") < told.index("waiting said")
    assert ("call", "asking", "said") in arrows(written.getvalue())


async def test_a_batch_is_a_program_an_item_and_a_failure_is_told() -> None:
    written = io.BytesIO()
    async with ScriptedBackend(["one"], ValueError("no"), ["three"]) as backend:
        with anyio.fail_after(20), cb.record(written):
            await said.arun_batch([("a",), ("b",), ("c",)], backend=backend, on_error="return")
    read = read_trace(written.getvalue())
    assert list(read) == ["said: said", "said (2): said", "said (3): said"]
    errors = [one["args"]["error"] for told in read.values() for one in told if "error" in one["args"]]
    assert errors == ["ValueError: no"]


@cb.function
async def first(s: Any) -> None:
    forks = s.fork(2)
    forks += cb.gen("tip")
    async for branch in forks.as_completed():
        branch += "!"
    await forks[1].atext()
    async for _ in s.text_async_iter():
        pass
    await forks.ajoin()


async def test_whatever_a_body_waits_for_is_told() -> None:
    written, go_on = io.BytesIO(), anyio.Event()
    async with ScriptedBackend([go_on.wait, "one"], [go_on.wait, "two"]) as backend, anyio.create_task_group() as group:

        async def answer() -> None:
            while len(backend.prompts) < 2:
                await anyio.lowlevel.checkpoint()
            go_on.set()

        group.start_soon(answer)
        with anyio.fail_after(20), cb.record(written):
            await first.arun(backend=backend)
    told = states(read_trace(written.getvalue())["first: first"])
    assert "waiting branch of first" not in told
    assert "waiting branch" in told
    assert "waiting join" in told


def test_plain_code_records_too_and_a_file_that_cannot_be_written_is_told_before(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with cb.record(path, limit=2) as recording:
        said.run("Hello", backend=cb.NullBackend())
    assert recording.left_out > 0
    assert states(read_trace(path.read_bytes())["said: said"]) == ["waiting"]
    with pytest.raises(FileNotFoundError):
        cb.record(tmp_path / "nowhere" / "run.json")
    with pytest.raises(cb.InvalidRequest, match="to: 7 is neither a path nor a binary file"):
        cb.record(7)  # type: ignore[arg-type]
    with pytest.raises(cb.InvalidRequest, match="limit: 0 is not a number of events, at least 1"):
        cb.record(path, limit=0)
    others: list[object] = []
    with cb.record(io.BytesIO()):
        other = threading.Thread(target=lambda: others.append(TRACK.get()))
        other.start()
        other.join()
    assert others == [None], "another thread is not in the block"
