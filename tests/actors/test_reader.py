"""A reader merges what its owner has not read, and tells the end once."""

from __future__ import annotations

import anyio
import pytest

from callboard.actors.errors import Aborted, GenerationFailed
from callboard.actors.messages import Delta, Finish, TokenLogprob
from callboard.actors.reader import Reader

pytestmark = pytest.mark.anyio


async def test_what_waits_is_one_delta() -> None:
    reader = Reader(1)
    for token in range(1000):
        reader.push(Delta(text="x", tokens=(token,), logprobs=(TokenLogprob(token, -1.0),)))
    delta = await anext(reader)
    assert delta.text == "x" * 1000
    assert delta.tokens == tuple(range(1000))
    assert len(delta.logprobs) == 1000


async def test_the_last_delta_and_only_it_has_the_finish() -> None:
    reader = Reader(1)
    reader.push(Delta(text="a", tokens=(1,)))
    first = await anext(reader)
    reader.push(Delta(text="b", tokens=(2,)))
    reader.push(Delta(finish=Finish(reason="stop")))
    second = await anext(reader)
    assert (first.finish, second.text, second.finish) == (None, "b", Finish(reason="stop"))
    with pytest.raises(StopAsyncIteration):
        await anext(reader)


async def test_what_comes_behind_the_end_is_ignored() -> None:
    reader = Reader(1)
    reader.push(Delta(finish=Finish(reason="length")))
    reader.push(Delta(text="late", finish=Finish(reason="stop")))
    assert await anext(reader) == Delta(finish=Finish(reason="length"))


@pytest.mark.parametrize(("reason", "error"), [("error", GenerationFailed), ("abort", Aborted)])
async def test_text_before_a_failure_is_read_and_then_the_failure_at_every_wait(reason, error) -> None:
    reader = Reader(1)
    reader.push(Delta(text="so far", tokens=(1,)))
    reader.push(Delta(finish=Finish(reason=reason, message="the reason")))
    assert (await anext(reader)).text == "so far"
    for _ in range(2):
        with pytest.raises(error, match="the reason"):
            await anext(reader)


async def test_a_waiting_owner_wakes_for_news_and_a_cancelled_one_loses_nothing() -> None:
    reader = Reader(1)
    with anyio.move_on_after(0):
        await anext(reader)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            got: list[str] = []

            async def read() -> None:
                got.append((await anext(reader)).text)

            group.start_soon(read)
            await anyio.lowlevel.checkpoint()
            reader.push(Delta(text="news", tokens=(1,)))
    assert got == ["news"]
