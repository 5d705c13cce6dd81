"""The scheduler as an actor: between a worker, a detokenizer and a dispatcher, through restarts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import numpy as np
import pytest

from callboard.actors.core import Actor, MailboxFull, Message, Ref, Supervisor
from callboard.actors.messages import (
    Abort,
    AbortAll,
    CoreStarted,
    Flush,
    Generate,
    Paused,
    Resumed,
    SchedulerStatistics,
    Step,
    StepDone,
    Stopped,
    Tokens,
)
from callboard.actors.sampling import SamplingParams
from callboard.actors.scheduler import Scheduler, SchedulerOptions

from ...support.fake_worker import FakeModel, FakeWorker, expected
from ...support.schedule_driver import EVERY_GROUP, pack
from ..collector import until

pytestmark = pytest.mark.anyio

OPTIONS = SchedulerOptions(slots=200, rows=4, chunk_tokens=16)


class Listener(Actor[Message]):
    """Stands for detokenizer and dispatcher: it notes what it hears."""

    def __init__(self, heard: list[Message]) -> None:
        self.heard = heard

    async def receive(self, message: Message) -> None:
        self.heard.append(message)


class Company:
    """The actors of one test, and what came out of them."""

    def __init__(self) -> None:
        self.text: list[Any] = []
        self.ledger: list[Message] = []
        self.models: list[FakeModel] = []
        self.schedulers: list[Scheduler] = []
        self.scheduler: Ref[Any]
        self.worker: Ref[Any]
        self.detokenizer: Ref[Any]
        self.core: Supervisor

    def output(self, request: int) -> list[int]:
        found: list[int] = []
        for news in self.text:
            requests = np.frombuffer(news.requests, np.int64)
            found += np.frombuffer(news.tokens, np.int32)[requests == request].tolist()
        return found

    def finished(self) -> dict[int, str]:
        return {finish.request: finish.reason for news in self.text for finish in news.finished}

    async def ended(self, count: int) -> None:
        with anyio.fail_after(20):
            while len(self.finished()) < count:
                await anyio.lowlevel.checkpoint()


def generate(request: int, prompt: list[int], count: int, **more: Any) -> Generate:
    return Generate(request, pack(prompt), SamplingParams(max_new_tokens=count, seed=request, **more))


@asynccontextmanager
async def company(options: SchedulerOptions = OPTIONS, *, first_step: int | None = 1) -> AsyncIterator[Company]:
    cast = Company()

    def worker() -> FakeWorker:
        cast.models.append(FakeModel(options.slots))
        return FakeWorker(cast.models[-1], lambda done: cast.scheduler.post(done))  # noqa: PLW0108 - its address comes later

    def scheduler() -> Scheduler:
        made = Scheduler(options, cast.worker, cast.detokenizer, dispatcher, first_step=first_step)
        cast.schedulers.append(made)
        return made

    async with Supervisor("test") as root:
        core = cast.core = await root.supervise("core", strategy="one_for_all")
        cast.detokenizer = await root.spawn(lambda: Listener(cast.text), name="detokenizer")
        dispatcher = await root.spawn(lambda: Listener(cast.ledger), name="dispatcher")
        cast.worker = await core.spawn(worker, name="worker")
        cast.scheduler = await core.spawn(scheduler, name="scheduler")
        yield cast


async def ask_by_turns(cast: Company, *turns: int, tokens: int = 3) -> list[int]:
    """Let so many requests come in each turn of the loop; give how many began in each step that began any."""
    asked = 0
    for count in turns:
        for _ in range(count):
            cast.scheduler.post(generate(asked, [asked] * tokens, 1))
            asked += 1
        await anyio.lowlevel.checkpoint()
    await cast.ended(asked)
    return [len(news.cached) for news in cast.text if news.cached]


async def test_branches_that_come_in_one_instant_begin_in_one_step() -> None:
    options = SchedulerOptions(slots=400, rows=16, chunk_tokens=64)
    async with company(options) as cast:
        assert await ask_by_turns(cast, 4, 2, 5) == [11]
    async with company(options) as cast:  # who comes alone waits for nobody
        assert (await ask_by_turns(cast, 1, 4))[0] == 1
    async with company(options) as cast:  # nor do more than a step computes
        assert (await ask_by_turns(cast, 3, 4, tokens=30))[0] < 7


async def test_branches_that_come_while_others_run_begin_in_one_step_too() -> None:
    steps: list[Any] = []
    async with Supervisor("test") as root:
        worker = await root.spawn(lambda: Listener(steps), name="worker")  # it answers when the test does
        text = await root.spawn(lambda: Listener([]), name="detokenizer")
        options = SchedulerOptions(slots=400, rows=16, chunk_tokens=64)
        scheduler = await root.spawn(lambda: Scheduler(options, worker, text, first_step=1), name="scheduler")
        await scheduler.tell(generate(100, [7], 60))
        await until(lambda: len(steps) == 3)  # told to forget what it had, and two on their way
        asked = 0
        for count in (4, 2, 5):
            for _ in range(count):
                scheduler.post(generate(asked, [asked] * 3, 1))
                asked += 1
            if count == 4:  # so that another step may be sent
                scheduler.post(StepDone(1, np.zeros(1, np.int32).tobytes(), np.ones(1, np.int32).tobytes()))
            await anyio.lowlevel.checkpoint()
        await until(lambda: len(steps) == 4)
        assert len(steps[-1].extends) == 11
        assert len(steps[-1].decode_rows) == 4


async def test_branches_of_a_prompt_that_is_known_begin_in_one_step_however_long_it_is() -> None:
    stem = list(range(60))
    async with company(SchedulerOptions(slots=400, rows=16, chunk_tokens=64)) as cast:
        await cast.scheduler.tell(generate(100, stem, 0))
        await cast.ended(1)
        for turn in range(3):
            for branch in range(4):
                cast.scheduler.post(generate(4 * turn + branch, [*stem, turn, branch], 1))
            await anyio.lowlevel.checkpoint()
        await cast.ended(13)
        assert [len(news.cached) for news in cast.text if news.cached] == [12]


async def test_the_worker_has_a_step_before_the_next_is_planned() -> None:
    async with company() as cast:
        behind: list[int] = []
        run = cast.models[-1].run

        def note(step: Step) -> StepDone:
            behind.append(cast.schedulers[-1].state.next_step - step.number)
            return run(step)

        cast.models[-1].run = note  # type: ignore[method-assign]
        await cast.scheduler.tell(generate(1, [5] * 40, 4))
        await cast.ended(1)
        assert behind[0] == 1
        assert len(behind) > 3


async def test_requests_go_in_and_tokens_come_out() -> None:
    async with company() as cast:
        prompts = {number: [number % 3] * (1 + number % 20) for number in range(30)}
        for number, prompt in prompts.items():
            await cast.scheduler.tell(generate(number, prompt, number % 7))
        await cast.ended(30)
        for number, prompt in prompts.items():
            assert cast.output(number) == expected(prompt, number, number % 7)
        assert set(cast.finished().values()) == {"length"}


async def test_it_tells_that_it_starts_with_empty_hands() -> None:
    async with company() as cast:
        await cast.scheduler.ask(SchedulerStatistics())
        with anyio.fail_after(5):
            while not cast.ledger:
                await anyio.lowlevel.checkpoint()
        assert cast.ledger == [CoreStarted()]


async def test_it_tells_about_itself() -> None:
    async with company() as cast:
        for number in range(2):
            await cast.scheduler.tell(generate(number, [1, 2, 3, 4, 5], 3))
            await cast.ended(number + 1)
        told = await cast.scheduler.ask(SchedulerStatistics())
        assert told["requests"] == 2
        assert told["steps"] == 6
        assert (told["prompt_tokens"], told["cached_tokens"], told["hit_rate"]) == (10, 4, 0.4)
        assert told["output_tokens"] == 6
        assert told["slots_free"] + told["slots_tree"] + told["slots_private"] == told["slots"] == 200
        assert (told["waiting"], told["running"], told["rows_free"]) == (0, 0, 4)
        assert told["host_seconds_a_step"] > 0
        assert told["decode_kv_tokens"] == told["decode_kv_tokens_read"] == 2 * (6 + 7)
        assert told["prompts_saved"] == pytest.approx(0.8)


async def test_it_tells_what_rows_that_attend_together_do_not_read_again() -> None:
    options = SchedulerOptions(slots=500, rows=4, groups=EVERY_GROUP)
    async with company(options) as cast:
        for number in range(3):
            await cast.scheduler.tell(generate(number, [*range(50), 50 + number], 8))
        await cast.ended(3)
        told = await cast.scheduler.ask(SchedulerStatistics())
        saved = told["decode_kv_tokens"] - told["decode_kv_tokens_read"]
        assert told["decode_kv_tokens"] == 3 * sum(range(52, 59))
        assert 0 < saved <= 2 * 50 * 7  # two of three rows, 50 tokens, in at most 7 steps
        assert 2 <= told["mean_group_size"] <= told["largest_group"] <= 3
        assert told["mean_group_size"] == told["group_members"] / told["groups"]
        assert told["grouped_steps"] >= 6


async def test_without_a_prefix_cache_every_prompt_is_computed_and_the_tree_stays_empty() -> None:
    options = SchedulerOptions(slots=200, rows=4, chunk_tokens=16, prefix_cache=False)
    async with company(options) as cast:
        prompt = list(range(1, 41))
        for number in (1, 2, 3):
            await cast.scheduler.tell(generate(number, prompt, 6))
        await cast.ended(3)
        told = await cast.scheduler.ask(SchedulerStatistics())
        assert all(cast.output(number) == expected(prompt, number, 6) for number in (1, 2, 3))
    assert (told["cached_tokens"], told["slots_tree"]) == (0, 0)
    assert told["computed_tokens"] == 3 * len(prompt)
    assert told["slots_free"] == told["slots"]


async def test_flushing_empties_the_cache() -> None:
    async with company() as cast:
        await cast.scheduler.tell(generate(0, [1, 2, 3], 3))
        await cast.ended(1)
        flushed = await cast.scheduler.ask(Flush())
        assert (flushed.freed, flushed.held) == (5, 0)
        assert (await cast.scheduler.ask(Flush())).freed == 0


async def test_requests_can_be_aborted_and_stopped() -> None:
    async with company() as cast:
        for number in range(4):
            await cast.scheduler.tell(generate(number, [number] * 3, 40))
        await cast.scheduler.tell(Abort(0, "its reader left"))
        await cast.scheduler.tell(Abort(77))
        await cast.scheduler.tell(Stopped((1, 78)))
        await cast.ended(3)
        assert cast.finished() == {0: "abort", 2: "length", 3: "length"}
        for number in (5, 6):
            await cast.scheduler.tell(generate(number, [number] * 3, 40))
        await cast.scheduler.tell(AbortAll())
        await cast.ended(5)
        assert {cast.finished()[5], cast.finished()[6]} == {"abort"}


async def test_a_late_word_from_an_earlier_worker_is_ignored() -> None:
    async with company(first_step=100) as cast:
        cast.scheduler.post(StepDone(99, pack([0]), pack([5])))
        await cast.scheduler.tell(generate(0, [1, 2, 3], 5))
        cast.scheduler.post(StepDone(98, pack([0]), pack([5])))
        await cast.ended(1)
        assert cast.output(0) == expected([1, 2, 3], 0, 5)
        assert len(cast.schedulers) == 1


async def test_schedulers_do_not_reuse_step_numbers() -> None:
    first, second = (Scheduler(OPTIONS, None, None).state.next_step for _ in range(2))  # type: ignore[arg-type]
    assert second >= first > 1_000_000


async def test_when_the_worker_dies_both_start_again_and_the_dispatcher_hears_of_it() -> None:
    async with company(first_step=None) as cast:
        await cast.scheduler.tell(generate(0, [1, 2, 3], 4))
        await cast.ended(1)
        crash = cast.models[-1]
        crash.run = lambda _: (_ for _ in ()).throw(RuntimeError("the device is lost"))  # type: ignore[assignment]
        await cast.scheduler.tell(generate(1, [1, 2, 3], 4))
        with anyio.fail_after(10):
            while len(cast.ledger) < 2:
                await anyio.lowlevel.checkpoint()
        await cast.scheduler.tell(generate(1, [1, 2, 3], 4))  # as the dispatcher does
        await cast.ended(2)
        assert cast.output(1) == expected([1, 2, 3], 1, 4)
        assert len(cast.schedulers) == len(cast.models) == 2


async def test_losing_count_of_the_slots_is_a_crash() -> None:
    async with company(first_step=None) as cast:
        cast.schedulers[0].state.memory.pool.take(3)
        await cast.scheduler.tell(generate(0, [1, 2, 3], 4))
        with anyio.fail_after(10):
            while len(cast.ledger) < 2:
                await anyio.lowlevel.checkpoint()
        assert len(cast.schedulers) == 2


class Stuffed:
    """A detokenizer without room for a while."""

    name = "detokenizer"

    def __init__(self) -> None:
        self.room = anyio.Event()
        self.heard: list[Tokens] = []

    def post(self, message: Tokens) -> None:
        if not self.room.is_set():
            raise MailboxFull(self.name, 0)
        self.heard.append(message)

    async def tell(self, message: Tokens) -> None:
        await self.room.wait()
        self.heard.append(message)


async def test_a_detokenizer_without_room_holds_up_the_steps_but_not_the_mailbox() -> None:
    stuffed = Stuffed()
    model = FakeModel(OPTIONS.slots)
    async with Supervisor("test") as root:
        refs: list[Ref[Any]] = []

        def report(done: StepDone) -> None:
            refs[0].post(done)

        worker = await root.spawn(lambda: FakeWorker(model, report), name="worker")
        refs.append(
            await root.spawn(
                lambda: Scheduler(OPTIONS, worker, stuffed, first_step=1),  # type: ignore[arg-type]
                name="scheduler",
                mailbox=8,
            )
        )
        for number in range(40):  # far more than its mailbox holds
            with anyio.fail_after(10):
                await refs[0].tell(generate(number, [1, 2, 3], 2))
                while refs[0].statistics().queued > 4:  # leave room for the worker's word
                    await anyio.lowlevel.checkpoint()
        stuffed.room.set()
        with anyio.fail_after(20):
            while sum(len(news.finished) for news in stuffed.heard) < 40:
                await anyio.lowlevel.checkpoint()
        offsets = [
            (int(request), int(offset))
            for news in stuffed.heard
            for request, offset in zip(
                np.frombuffer(news.requests, np.int64), np.frombuffer(news.offsets, np.int32), strict=True
            )
        ]
        assert sorted(offsets) == [(number, offset) for number in range(40) for offset in range(2)]


async def test_what_a_paused_program_has_said_is_computed_and_nobody_is_told() -> None:
    async with company() as cast:
        for program in (7, 8):
            await cast.scheduler.tell(Paused(program, pack([program] * 40)))
        await cast.scheduler.tell(Resumed(8))
        with anyio.fail_after(20):
            while (await cast.scheduler.ask(SchedulerStatistics()))["slots_leased"] < 40:
                await anyio.lowlevel.checkpoint()
        statistics = await cast.scheduler.ask(SchedulerStatistics())
        assert (statistics["eager_tokens"], statistics["programs_paused"], statistics["requests"]) == (40, 1, 0)
        assert cast.text == []
