"""Two Cores under one dispatcher in simulated time: messages are late, Cores crash, readers leave, nothing is lost."""

from __future__ import annotations

import random
from collections import defaultdict
from functools import partial
from typing import Any

import anyio
import pytest

from callboard.actors.core import Supervisor, simulate
from callboard.actors.detokenizer import Detokenizer
from callboard.actors.dispatcher import Dispatcher, DispatcherOptions
from callboard.actors.errors import Aborted
from callboard.actors.messages import Abort, DispatcherStatistics, Generate, Step, StepDone, Submit
from callboard.actors.reader import Reader
from callboard.actors.sampling import SamplingParams
from callboard.actors.scheduler import Scheduler, SchedulerOptions
from callboard.actors.text_stream import token_text
from callboard.actors.wires import Wires

from ..support.fake_worker import FakeModel, FakeWorker, expected
from ..support.schedule_driver import pack
from .vocabularies import byte_level

REPLICAS = 2
SLOTS = 160
VOCABULARY = byte_level(384)


class Noting(Scheduler):
    """Note which requests come to which replica, as often as they come."""

    def __init__(self, play: Play, replica: int) -> None:
        options = SchedulerOptions(
            slots=SLOTS, rows=4, chunk_tokens=12, share_tokens=4, reserve_all=4, replica=replica, replicas=REPLICAS
        )
        wires = play.wires
        first_step = 1000 * len(play.lives[replica])
        super().__init__(
            options, wires.workers[replica], wires.detokenizer, wires.dispatcher, clock=lambda: 0.0,
            first_step=first_step,
        )  # fmt: skip
        play.lives[replica].append(self)
        self.came = play.came

    def _take(self, message: Any, reply: Any) -> None:
        if isinstance(message, Generate):
            self.came[message.request].append(self.state.options.replica)
        super()._take(message, reply)


class Play:
    """Requests of programs and of none, in one simulated life of an engine's actors."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        stem = [rng.randrange(9) for _ in range(20)]
        self.asked = {
            number: (stem[: rng.randint(1, 20)] + [rng.randrange(9) for _ in range(6)], rng.randint(1, 30))
            for number in range(1, 25)
        }
        self.program = {number: number % 6 for number in self.asked}  # 0 is none
        self.leaving = set(rng.sample(sorted(self.asked), 6))
        self.wires = Wires()
        self.lives: list[list[Noting]] = [[] for _ in range(REPLICAS)]
        self.came: dict[int, list[int]] = defaultdict(list)
        self.got: dict[int, list[int]] = {}
        self.aborted: set[int] = set()

    async def run(self) -> list[dict[str, Any]]:
        wires = self.wires
        options = DispatcherOptions(context_length=SLOTS, replicas=REPLICAS, slots=SLOTS, replays=1000)
        async with Supervisor("root") as root:
            cores = [
                await root.supervise(f"core {number}", strategy="one_for_all", restarts=1000)
                for number in range(REPLICAS)
            ]
            for number, core in enumerate(cores):
                wires.workers.append(await core.spawn(partial(self.worker, number), name=f"worker {number}"))
            wires.dispatcher = await root.spawn(lambda: Dispatcher(wires, options), name="dispatcher")
            wires.detokenizer = await root.spawn(lambda: Detokenizer(wires, token_text(VOCABULARY)), name="detokenizer")
            for number, core in enumerate(cores):
                wires.schedulers.append(
                    await core.spawn(lambda number=number: Noting(self, number), name=f"scheduler {number}")
                )
            with anyio.fail_after(3600):  # virtual seconds
                async with anyio.create_task_group() as group:
                    for number in self.asked:
                        group.start_soon(self.one, number)
                while self.works():  # noqa: ASYNC110 - nobody tells of it
                    await anyio.sleep(0.01)
            return (await wires.dispatcher.ask(DispatcherStatistics()))["replicas"]

    def worker(self, replica: int) -> FakeWorker:
        def report(done: StepDone) -> None:
            self.wires.schedulers[replica].post(done)

        return FakeWorker(FakeModel(SLOTS), report)

    def works(self) -> bool:
        return any(lives[-1].state.live or lives[-1].state.flights for lives in self.lives)

    async def one(self, number: int) -> None:
        prompt, count = self.asked[number]
        await anyio.sleep(self.rng.random())
        reader, sampling = Reader(number), SamplingParams(max_new_tokens=count, seed=number, ignore_eos=True)
        program = self.program[number]
        await self.wires.dispatcher.ask(
            Submit(number, pack(prompt), sampling, reader, program=program, lease=100 + number if program else 0)
        )
        self.got[number] = []
        try:
            async for delta in reader:
                self.got[number] += delta.tokens
                if number in self.leaving:
                    await self.wires.dispatcher.tell(Abort(number, "its reader left"))
                if delta.finish is not None:
                    break
        except Aborted:
            self.aborted.add(number)


def crashes(name: str, message: Any) -> float:
    return 0.02 if isinstance(message, Step | StepDone) and name.startswith(("worker", "scheduler")) else 0.0


def played(seed: int) -> tuple[Play, list[dict[str, Any]], Any]:
    play = Play(seed)
    result = simulate.run(play.run, seed=seed, faults=simulate.Faults(delay=0.02, crash=crashes))
    return play, result.value, result.trace


@pytest.mark.parametrize("seed", range(8))
def test_every_request_ends_with_its_tokens_however_the_cores_fare(seed: int) -> None:
    play, told, _ = played(seed)
    assert min(len(lives) for lives in play.lives) > 1, "both have crashed"
    for number, (prompt, count) in play.asked.items():
        right = expected(prompt, number, count)
        if number in play.aborted:
            assert number in play.leaving
            assert play.got[number] == right[: len(play.got[number])]
        else:
            assert play.got[number] == right
    for number, replicas in play.came.items():
        assert len(set(replicas)) == 1, f"request {number} was sent again to its own replica"
    homes = defaultdict(set)
    for number, replicas in play.came.items():
        homes[play.program[number]] |= set(replicas)
    assert all(len(found) == 1 for program, found in homes.items() if program), "a program is on one replica"
    assert {replica for found in homes.values() for replica in found} == {0, 1}
    assert told == [{"up": True, "live": 0, "tokens": 0}] * REPLICAS
    for lives in play.lives:
        state = lives[-1].state
        state.count()
        assert (len(state.queue), state.rows.private(), state.memory.tree.locked) == (0, 0, 0)


def test_the_same_seed_plays_the_same_way() -> None:
    assert played(3)[2] == played(3)[2]
