"""The ledger: bounded admission, one terminal event each, replay after Core died, failure when it dies itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import numpy as np
import pytest

from callboard.actors.core import Message, Ref, Supervisor
from callboard.actors.dispatcher import Dispatcher, DispatcherOptions
from callboard.actors.errors import Aborted, GenerationFailed, InvalidRequest, Overloaded
from callboard.actors.messages import (
    Abort,
    AbortAll,
    AbortTag,
    Close,
    CoreStarted,
    Delta,
    Deltas,
    DispatcherStatistics,
    Finish,
    Generate,
    LiveRequests,
    Open,
    Paused,
    Reconcile,
    Resumed,
    Submit,
    ToScheduler,
)
from callboard.actors.reader import Reader
from callboard.actors.sampling import SamplingParams
from callboard.actors.wires import Wires

from .collector import Collector, Full, until

pytestmark = pytest.mark.anyio
PROMPT = np.arange(5, dtype=np.int32).tobytes()


class Stage:
    def __init__(self) -> None:
        self.wires = Wires()
        self.scheduler: list[Message] = []
        self.detokenizer: list[Message] = []

    async def submit(self, request: int, prompt: bytes = PROMPT, *, tag: str = "", **sampling) -> Reader:
        reader = Reader(request)
        await self.wires.dispatcher.ask(Submit(request, prompt, SamplingParams(**sampling), reader, tag))
        return reader

    async def news(self, request: int, delta: Delta) -> None:
        await self.wires.dispatcher.ask(DispatcherStatistics())
        whose = np.full(len(delta.tokens), request, np.int64).tobytes()
        tokens = np.array(delta.tokens, np.int32).tobytes()
        await self.wires.dispatcher.tell(Deltas((request,), (delta,), whose, tokens))
        await self.wires.dispatcher.ask(DispatcherStatistics())

    def generates(self, request: int) -> list[Generate]:
        return [message for message in self.scheduler if isinstance(message, Generate) and message.request == request]


@asynccontextmanager
async def stage(**options) -> AsyncIterator[Stage]:
    made = Stage()
    settings = DispatcherOptions(**({"live": 4, "context_length": 16, "eos": b"\x02\0\0\0"} | options))
    async with Supervisor("test", restarts=10) as supervisor:
        made.wires.schedulers = [await supervisor.spawn(lambda: Collector(made.scheduler), name="scheduler")]
        made.wires.detokenizer = await supervisor.spawn(lambda: Collector(made.detokenizer), name="detokenizer")
        made.wires.dispatcher = await supervisor.spawn(lambda: Dispatcher(made.wires, settings), name="dispatcher")
        yield made


async def test_a_request_for_which_the_scheduler_has_no_room_leaves_nothing_behind() -> None:
    async with stage() as made:
        schedulers, made.wires.schedulers = made.wires.schedulers, [cast("Ref[ToScheduler]", Full())]
        with pytest.raises(Overloaded, match="the scheduler is behind with its mail"):
            await made.submit(1, tag="one")
        await until(lambda: any(isinstance(message, Close) and message.request == 1 for message in made.detokenizer))
        made.wires.schedulers = schedulers
        await made.submit(1, tag="one")
        assert [type(message) for message in made.detokenizer[:2]] == [Open, Close]
        statistics = await made.wires.dispatcher.ask(DispatcherStatistics())
    assert (statistics["live"], statistics["ended_refused"]) == (1, 1)


async def test_an_admitted_request_goes_to_the_scheduler_with_a_seed_and_room() -> None:
    async with stage() as made:
        await made.submit(1, max_new_tokens=100)
        await until(lambda: made.generates(1))
        (sent,) = made.generates(1)
        assert (sent.prompt, sent.eos, sent.output) == (PROMPT, b"\x02\0\0\0", b"")
        assert sent.sampling.max_new_tokens == 11, "the context holds 16, the prompt has 5"
        assert sent.sampling.seed is not None
        await until(lambda: made.detokenizer)
        assert isinstance(made.detokenizer[0], Open)


async def test_the_same_engine_seed_and_request_give_the_same_seed_and_requests_differ() -> None:
    seeds = []
    for _ in range(2):
        async with stage(seed=77) as made:
            await made.submit(1)
            await made.submit(2)
            await until(lambda: len(made.scheduler) == 2)
            seeds.append([message.sampling.seed for message in made.scheduler])
    assert seeds[0] == seeds[1]
    assert seeds[0][0] != seeds[0][1]


async def test_a_prompt_longer_than_the_context_is_refused_with_both_lengths() -> None:
    async with stage() as made:
        with pytest.raises(InvalidRequest, match="prompt: it has 16 tokens; the context holds 16"):
            await made.submit(1, np.zeros(16, np.int32).tobytes())
        with pytest.raises(InvalidRequest, match="it has no tokens"):
            await made.submit(2, b"")
        await made.submit(3)
        assert made.generates(1) == []


async def test_above_its_bound_it_refuses_and_serves_again_once_there_is_room() -> None:
    async with stage() as made:
        for request in range(4):
            await made.submit(request)
        with pytest.raises(Overloaded, match="4 requests are live, at most 4"):
            await made.submit(9)
        await made.news(0, Delta(finish=Finish(reason="length")))
        await made.submit(10)


async def test_an_abort_gives_one_terminal_event_and_tells_everybody_down_the_line() -> None:
    async with stage() as made:
        reader = await made.submit(1)
        await made.wires.dispatcher.tell(Abort(1, "no longer wanted"))
        await made.wires.dispatcher.tell(Abort(1, "again"))
        with pytest.raises(Aborted, match="no longer wanted"):
            await anext(reader)
        await until(lambda: Abort(1, "no longer wanted") in made.scheduler)
        await until(lambda: Close(1) in made.detokenizer)
        await made.news(1, Delta(text="late", finish=Finish(reason="stop")))
        with pytest.raises(Aborted):
            await anext(reader)


async def test_no_tenant_takes_the_room_of_all() -> None:
    async with stage(live=8) as made:
        dispatcher, sampling = made.wires.dispatcher, SamplingParams(max_new_tokens=4)

        async def ask(request: int, tenant: str) -> None:
            await dispatcher.ask(Submit(request, PROMPT, sampling, Reader(request), tenant=tenant))

        for request in range(1, 5):
            await ask(request, "greedy")
        with pytest.raises(Overloaded, match="4 of your requests are live; 4 are left for everybody"):
            await ask(5, "greedy")
        await ask(6, "other")
        await ask(7, "")
        await dispatcher.tell(Abort(1))
        await dispatcher.tell(Abort(2))
        await ask(8, "greedy")  # 2 are its own, and 4 are free
        for request in range(9, 12):
            await ask(request, "")  # those without a name may fill it
        with pytest.raises(Overloaded, match="8 requests are live, at most 8"):
            await ask(12, "other")


async def test_an_abort_by_name_ends_all_of_that_name() -> None:
    async with stage() as made:
        readers = [await made.submit(1, tag="a"), await made.submit(2, tag="a"), await made.submit(3, tag="b")]
        await made.wires.dispatcher.tell(AbortTag("a"))
        for reader in readers[:2]:
            with pytest.raises(Aborted, match="by name, 'a'"):
                await anext(reader)
        assert not readers[2].over


async def test_when_core_comes_back_live_requests_are_sent_again_with_what_they_had() -> None:
    async with stage() as made:
        await made.submit(1, seed=5)
        done = await made.submit(2)
        await made.news(1, Delta(text="ab", tokens=(7, 8)))
        await made.news(2, Delta(finish=Finish(reason="stop")))
        await made.wires.dispatcher.tell(CoreStarted())
        await until(lambda: len(made.generates(1)) == 2)
        again = made.generates(1)[1]
        assert np.frombuffer(again.output, np.int32).tolist() == [7, 8]
        assert again.sampling.seed == 5
        assert len(made.generates(2)) == 1
        assert (await anext(done)).finish is not None


async def test_a_request_under_which_core_dies_again_and_again_is_not_tried_for_ever() -> None:
    async with stage(replays=2) as made:
        reader = await made.submit(1)
        for _ in range(3):
            await made.wires.dispatcher.tell(CoreStarted())
        with pytest.raises(GenerationFailed, match="failed 3 times while this request ran"):
            await anext(reader)
        assert len(made.generates(1)) == 3


async def test_when_it_dies_itself_its_readers_fail_and_the_scheduler_starts_clean() -> None:
    async with stage() as made:
        reader = await made.submit(1)
        await made.wires.dispatcher.tell(Deltas((1,), ()))  # unequal lengths: a crash
        with pytest.raises(GenerationFailed, match="the dispatcher ended"):
            await anext(reader)
        await until(lambda: AbortAll() in made.scheduler)
        await made.submit(2)


async def test_a_restarted_detokenizer_can_ask_what_is_live() -> None:
    async with stage() as made:
        await made.submit(1)
        await made.news(1, Delta(text="ab", tokens=(7, 8)))
        (opened,) = await made.wires.dispatcher.ask(LiveRequests())
        assert (opened.request, opened.prompt_tokens) == (1, 5)
        assert np.frombuffer(opened.output, np.int32).tolist() == [7, 8]
        await until(lambda: Reconcile((1,)) in made.scheduler)


async def test_it_counts_what_becomes_of_requests() -> None:
    async with stage() as made:
        await made.submit(1)
        await made.submit(2)
        with pytest.raises(InvalidRequest):
            await made.submit(3, b"")
        await made.news(1, Delta(finish=Finish(reason="stop")))
        counts = await made.wires.dispatcher.ask(DispatcherStatistics())
        assert counts == {"live": 1, "admitted": 2, "refused": 1, "ended_stop": 1}


async def test_a_programs_lease_and_those_that_are_over_reach_the_scheduler_once() -> None:
    async with stage(live=1) as made:
        dispatcher, sampling = made.wires.dispatcher, SamplingParams()
        with pytest.raises(InvalidRequest):
            await dispatcher.ask(Submit(1, b"", sampling, Reader(1), released=(7,)))
        await dispatcher.ask(Submit(2, PROMPT, sampling, Reader(2), lease=9, released=(8,)))
        with pytest.raises(Overloaded):
            await dispatcher.ask(Submit(3, PROMPT, sampling, Reader(3), released=(9,)))
        await made.news(2, Delta(finish=Finish(reason="stop")))
        await dispatcher.ask(Submit(4, PROMPT, sampling, Reader(4)))
        await until(lambda: made.generates(4))
        first, last = *made.generates(2), *made.generates(4)
        assert (first.lease, first.released) == (9, (7, 8)), "also what came with a request that was refused"
        assert (last.lease, last.released) == (0, (9,))


async def test_what_programs_say_of_waiting_goes_on_to_the_scheduler_without_tokens_that_can_go_nowhere() -> None:
    async with stage(context_length=16) as made:
        hints = [Paused(7, PROMPT), Paused(8, PROMPT * 4), Resumed(7)]
        for hint in hints:
            await made.wires.dispatcher.tell(hint)
        await until(lambda: len(made.scheduler) == len(hints))
        assert made.scheduler == [Paused(7, PROMPT), Paused(8), Resumed(7)]
