"""Streams write by a common beat: the first news at once, what comes between two beats as one event."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest

from callboard.actors.core import simulate
from callboard.actors.errors import GenerationFailed
from callboard.actors.gateway import GatewayOptions
from callboard.actors.gateway.generation import News, Work, stream
from callboard.actors.gateway.pace import Pace
from callboard.actors.messages import Delta, Finish, TokenLogprob
from callboard.actors.reader import Reader
from callboard.actors.sampling import SamplingParams

STEP_S = 0.004
TOKENS = 12

Told = list[tuple[int, Delta]]  # when, in ms, and what


class Ticking:
    """Give each generation a token every 4 ms, through a reader as the engine does."""

    def __init__(self, *, fails: bool = False) -> None:
        self._end = Finish(reason="error", message="it broke") if fails else Finish(reason="length")

    def lease(self) -> int:
        return 1

    def release(self, lease: int) -> None:
        assert lease == 1

    async def generate(self, *_: object, **__: object) -> AsyncGenerator[Delta, None]:
        reader = Reader(1)
        async with anyio.create_task_group() as group:
            group.start_soon(self._tick, reader)
            async for delta in reader:
                yield delta

    async def _tick(self, reader: Reader) -> None:
        for token in range(TOKENS):
            reader.push(Delta(text="x", tokens=(token,), logprobs=(TokenLogprob(token, -1.0),)))
            await anyio.sleep(STEP_S)
        reader.push(Delta(finish=self._end))


def streamed(pace: Pace, *, streams: int = 1, choices: int = 1, fails: bool = False) -> list[Told]:
    """Run the streams on a virtual clock; give what each was told and when."""
    told: list[Told] = [[] for _ in range(streams)]
    works = [Work(b"", SamplingParams(), "")] * choices
    service: Any = Ticking(fails=fails)

    async def one(number: int) -> None:
        async def tell(news: News) -> None:
            told[number].extend((round(1000 * anyio.current_time()), delta) for _, delta in news)

        await stream(service, works, tell, pace)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for number in range(streams):
                group.start_soon(one, number)

    try:
        simulate.run(main, seed=1)
    except* GenerationFailed:
        if not fails:
            raise
    assert pace.streams == 0
    return told


def times(told: Told) -> list[int]:
    return [time for time, _ in told]


def test_without_a_beat_every_token_is_told_as_it_comes():
    [told] = streamed(Pace(0.0))
    assert times(told) == [4 * token for token in range(TOKENS + 1)]


def test_one_stream_alone_has_no_beat():
    [told] = streamed(Pace())
    assert times(told) == [4 * token for token in range(TOKENS + 1)]


def test_between_two_beats_tokens_merge_and_none_is_lost():
    [told] = streamed(Pace(13.0))
    assert times(told) == [0, 13, 26, 39, 52]
    assert [len(delta.tokens) for _, delta in told] == [1, 3, 3, 3, 2]
    assert [token for _, delta in told for token in delta.tokens] == list(range(TOKENS))
    assert [one.token for _, delta in told for one in delta.logprobs] == list(range(TOKENS))
    assert "".join(delta.text for _, delta in told) == "x" * TOKENS
    assert [delta.finish is not None for _, delta in told] == [False] * 4 + [True]


def test_all_streams_write_at_the_same_beats():
    told = streamed(Pace(13.0), streams=3)
    assert [times(one) for one in told] == [[0, 13, 26, 39, 52]] * 3


def test_choices_of_one_request_merge_too():
    [told] = streamed(Pace(13.0), choices=2)
    assert times(told)[:4] == [0, 0, 13, 13]
    assert sum(len(delta.tokens) for _, delta in told) == 2 * TOKENS
    assert times(told)[-1] == 52


def test_what_came_before_a_failure_is_told_first():
    [told] = streamed(Pace(13.0), fails=True)
    assert sum(len(delta.tokens) for _, delta in told) == TOKENS


def test_the_interval_grows_with_the_live_streams_up_to_a_bound():
    pace = Pace()
    intervals: list[float] = []

    def nest(depth: int) -> None:
        with pace.stream():
            intervals.append(pace.interval_ms)
            if depth > 1:
                nest(depth - 1)

    nest(200)
    assert intervals[:4] == [0.0, 1.0, 2.0, 3.0]
    assert intervals == sorted(intervals)
    assert intervals[-1] == 50.0
    assert pace.interval_ms == 0.0


def test_a_rest_that_is_cancelled_leaves_the_beat_to_the_others():
    pace = Pace(13.0)

    async def main() -> float:
        with anyio.move_on_after(0.001):
            await pace.rest()
        await pace.rest()
        return anyio.current_time()

    assert simulate.run(main, seed=1).value == pytest.approx(0.013)


@pytest.mark.parametrize("interval", [-1.0, 1001.0])
def test_an_interval_out_of_range_is_refused(interval: float):
    with pytest.raises(ValueError, match=r"stream_interval_ms: -?1.* is outside 0 to 1000"):
        GatewayOptions(stream_interval_ms=interval).verify()
