"""The worker as an actor: what it answers, how it starts, breaks and comes back."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from callboard.actors.core import Ref, RestartLimit, Supervisor
from callboard.actors.grammar import GrammarCache
from callboard.actors.messages import Begin, Extend, Reset, Step, StepDone, WorkerStatistics
from callboard.actors.sampling import SamplingParams
from callboard.actors.worker import Describe, Worker

from .driver import EOS, options, packed, read

pytestmark = pytest.mark.anyio

PROMPT = [5, 7, 9, 200, 31]
GREEDY = SamplingParams(temperature=0.0)


class Mailbox:
    """Receive StepDone from the worker's thread."""

    def __init__(self) -> None:
        self.send, self.receive = anyio.create_memory_object_stream[StepDone](100)
        self.threads: set[str] = set()
        self.restarted = anyio.Event()
        self._token = anyio.lowlevel.current_token()

    def __call__(self, done: StepDone) -> None:
        self.threads.add(threading.current_thread().name)
        anyio.from_thread.run_sync(self.send.send_nowait, done, token=self._token)

    def close(self) -> None:
        self.send.close()
        self.receive.close()


@asynccontextmanager
async def started(folder: Path, *, restarts: int = 0, **changes: Any) -> AsyncIterator[tuple[Ref[Any], Mailbox]]:
    mailbox = Mailbox()
    lives: list[Worker] = []

    def make() -> Worker:
        if lives:
            mailbox.restarted.set()
        lives.append(Worker(options(folder, **changes), mailbox, grammars=GrammarCache(folder)))
        return lives[-1]

    try:
        with anyio.fail_after(30):
            async with Supervisor("test", restarts=restarts) as supervisor:
                worker = await supervisor.spawn(make, name="worker")
                await worker.tell(Reset())
                yield worker, mailbox
    finally:
        mailbox.close()


def first(number: int = 1, row: int = 0, *, slot: int = 0, sampling: SamplingParams = GREEDY) -> Step:
    slots = range(slot, slot + len(PROMPT))
    begin = Begin(row, row, sampling, b"", b"", packed(EOS))
    return Step(number, (Extend(row, 0, packed(PROMPT), packed(slots), True, begin),))


def decode(number: int, slot: int, row: int = 0) -> Step:
    return Step(number, (), packed([row]), packed([slot]))


async def test_two_steps_in_flight_give_what_transformers_gives(tiny: Path, peer: Any) -> None:
    import torch

    prompt = torch.tensor([PROMPT])
    wanted = peer.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, do_sample=False,
                           eos_token_id=None, pad_token_id=0)[0, len(PROMPT) :].tolist()  # fmt: skip
    async with started(tiny) as (worker, mailbox):
        await worker.tell(first())
        await worker.tell(decode(2, len(PROMPT)))  # the first one's token is not known here yet
        tokens = []
        for number in range(1, 9):
            done = await mailbox.receive.receive()
            assert done.number == number
            assert done.busy_s >= done.forward_s > 0
            tokens += read(done.tokens)
            if number < 7:
                await worker.tell(decode(number + 2, len(PROMPT) + number))
        assert tokens == wanted
        assert mailbox.threads == {"callboard-worker"}


async def test_it_describes_itself_and_counts(tiny: Path) -> None:
    async with started(tiny, kv_slots=100) as (worker, mailbox):
        about = await worker.ask(Describe())
        assert (about.max_rows, about.context_length, about.kv_slots, about.vocabulary) == (8, 256, 100, 320)
        assert about.eos_ids == EOS
        assert (about.device, about.dtype) == ("cpu", "float32")
        assert about.kv_bytes == 100 * 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, width, bytes
        await worker.tell(first())
        await mailbox.receive.receive()
        counts = await worker.ask(WorkerStatistics())
        assert (counts["steps"], counts["tokens_sampled"], counts["rows_failed"]) == (1, 1, 0)
        assert counts["busy_s"] >= counts["forward_s"] > 0


async def test_room_is_counted_from_bytes_and_never_more_than_rows_can_use(tiny: Path) -> None:
    slot_bytes = 2 * 2 * 2 * 8 * 4
    for changes, slots in (({"kv_bytes": 50 * slot_bytes + 1}, 50), ({}, 8 * 256), ({"context_length": 9999}, 8 * 256)):
        async with started(tiny, **changes) as (worker, _):
            assert (await worker.ask(Describe())).kv_slots == slots


async def test_the_thread_ends_with_the_block(tiny: Path) -> None:
    before = set(threading.enumerate())
    async with started(tiny) as (worker, _):
        await worker.tell(first(sampling=SamplingParams(regex="[0-9]+")))
    more = [thread.name for thread in threading.enumerate() if thread not in before]
    assert not [name for name in more if name.startswith("callboard")]
    assert len(more) <= 1  # anyio keeps an idle thread of its own


async def test_a_reset_forgets_every_row(tiny: Path) -> None:
    async with started(tiny) as (worker, mailbox):
        await worker.tell(first(1))
        before = await mailbox.receive.receive()
        await worker.tell(Reset())
        await worker.tell(first(1))  # row 0 is free again
        after = await mailbox.receive.receive()
        assert after.tokens == before.tokens


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"folder": "/nowhere"}, "/nowhere"),
        ({"dtype": "int8"}, "dtype is 'int8'; it must be 'float32', 'bfloat16', 'float16' or None"),
        ({"max_rows": 0}, "max_rows is 0; it must be at least 1"),
        ({"load_format": "pickle"}, "load_format is 'pickle'"),
        ({"kv_bytes": 10}, "kv_bytes is 10; one cached token of this model takes 256 bytes"),
    ],
    ids=str,
)
async def test_a_bad_option_fails_the_start(tiny: Path, changes: dict[str, Any], words: str) -> None:
    before = threading.active_count()
    with anyio.fail_after(30):
        async with Supervisor("test") as supervisor:
            with pytest.raises((ValueError, OSError)) as caught:
                await supervisor.spawn(lambda: Worker(options(tiny, **changes), lambda _: None), name="worker")
    assert words in str(caught.value)
    assert threading.active_count() <= before + 1


async def test_what_breaks_in_a_step_crashes_the_actor_with_its_cause(tiny: Path) -> None:
    async def decode_nothing() -> None:
        async with started(tiny) as (worker, _):
            await worker.tell(decode(1, 0, row=3))  # no such row has begun
            await worker.join()

    with pytest.raises(RestartLimit) as caught:
        await decode_nothing()
    assert isinstance(caught.value.__cause__, AssertionError)
    assert "rows [3] decode but have not begun" in str(caught.value.__cause__)


async def test_after_a_crash_a_fresh_worker_serves(tiny: Path) -> None:
    async with started(tiny, restarts=1) as (worker, mailbox):
        await worker.tell(first())
        healthy = await mailbox.receive.receive()
        await worker.tell(Step(2, (), packed([0]), packed([10**6])))  # a slot outside the pool
        await mailbox.restarted.wait()
        await worker.tell(first(6))  # of a scheduler that has not started anew yet: nobody computes it
        await worker.tell(Reset())
        await worker.tell(first(7))
        done = await mailbox.receive.receive()
        assert (done.number, done.tokens) == (7, healthy.tokens)


async def test_packed_arrays_need_not_own_their_memory(tiny: Path) -> None:
    """A Step read from a wire holds views."""
    buffer = np.arange(100, dtype=np.int32).tobytes()
    begin = Begin(0, 0, GREEDY)
    async with started(tiny) as (worker, mailbox):
        await worker.tell(Step(1, (Extend(0, 0, buffer[4:16], buffer[:12], True, begin),)))
        done = await mailbox.receive.receive()
        assert len(read(done.tokens)) == 1
        assert not done.failures
