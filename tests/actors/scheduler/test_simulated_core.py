"""Scheduler and worker in simulated time: messages are late, either actor crashes, and no request or token is lost."""

from __future__ import annotations

import random
from typing import Any

import anyio
import numpy as np
import pytest

from callboard.actors.core import Actor, Ref, Supervisor, simulate
from callboard.actors.messages import CoreStarted, Finished, Generate, Step, StepDone, Tokens
from callboard.actors.sampling import SamplingParams
from callboard.actors.scheduler import Scheduler, SchedulerOptions

from ...support.fake_worker import FakeModel, FakeWorker, expected
from ...support.schedule_driver import pack

OPTIONS = SchedulerOptions(slots=120, rows=4, chunk_tokens=12, share_tokens=4, reserve_all=4)


class Ledger(Actor[Any]):
    """Dispatcher and detokenizer in one: it keeps what each request has, and sends the live ones again."""

    def __init__(self, asked: dict[int, tuple[list[int], int]], cast: dict[str, Ref[Any]], done: anyio.Event) -> None:
        self.asked, self.cast, self.done = asked, cast, done
        self.output: dict[int, list[int]] = {number: [] for number in asked}
        self.finished: dict[int, Finished] = {}
        self.lives = 0

    async def receive(self, message: Any) -> None:
        if isinstance(message, CoreStarted):
            self.lives += 1
            for number in self.asked:
                if number not in self.finished:
                    self.send(number)
        elif isinstance(message, Tokens):
            self.take(message)

    def send(self, number: int) -> None:
        prompt, count = self.asked[number]
        sampling = SamplingParams(max_new_tokens=count, seed=number, stop_token_ids=(7,))
        self.cast["scheduler"].post(Generate(number, pack(prompt), sampling, pack(self.output[number])))

    def take(self, news: Tokens) -> None:
        requests = np.frombuffer(news.requests, np.int64).tolist()
        offsets = np.frombuffer(news.offsets, np.int32).tolist()
        tokens = np.frombuffer(news.tokens, np.int32).tolist()
        for number, offset, token in zip(requests, offsets, tokens, strict=True):
            if number in self.finished:
                continue  # its double, sent again around a crash
            assert offset <= len(self.output[number]), "a gap"
            if offset == len(self.output[number]):
                self.output[number].append(token)
            assert self.output[number][offset] == token, "a replay gives other tokens"
        for finish in news.finished:
            self.finished.setdefault(finish.request, finish)
        if len(self.finished) == len(self.asked):
            self.done.set()


async def play(seed: int) -> tuple[Ledger, dict[int, tuple[list[int], int]]]:
    rng = random.Random(seed)
    stem = [rng.randrange(9) for _ in range(20)]
    asked = {
        number: (stem[: rng.randint(1, 20)] + [rng.randrange(9) for _ in range(6)], rng.randint(1, 30))
        for number in range(20)
    }
    cast: dict[str, Ref[Any]] = {}
    lives: list[Scheduler] = []
    ledgers: list[Ledger] = []
    done = anyio.Event()

    def ledger() -> Ledger:
        ledgers.append(Ledger(asked, cast, done))
        return ledgers[-1]

    def report(message: StepDone) -> None:
        cast["scheduler"].post(message)

    def scheduler() -> Scheduler:
        lives.append(
            Scheduler(
                OPTIONS, cast["worker"], cast["ledger"], cast["ledger"], clock=lambda: 0.0, first_step=1000 * len(lives)
            )
        )
        return lives[-1]

    async with Supervisor("root") as root:
        cast["ledger"] = await root.spawn(ledger, name="ledger")
        core = await root.supervise("core", strategy="one_for_all", restarts=1000)
        cast["worker"] = await core.spawn(lambda: FakeWorker(FakeModel(OPTIONS.slots), report), name="worker")
        cast["scheduler"] = await core.spawn(scheduler, name="scheduler")
        with anyio.fail_after(3600):  # virtual seconds
            await done.wait()
    return ledgers[0], asked


def crashes(name: str, message: Any) -> float:
    return 0.02 if isinstance(message, Step | StepDone) and name in {"worker", "scheduler"} else 0.0


@pytest.mark.parametrize("seed", range(8))
def test_every_request_ends_with_its_tokens_however_core_fares(seed: int) -> None:
    faults = simulate.Faults(delay=0.02, crash=crashes)
    ledger, asked = simulate.run(lambda: play(seed), seed=seed, faults=faults).value
    for number, (prompt, count) in asked.items():
        assert ledger.output[number] == expected(prompt, number, count, stops=(7,))
        assert ledger.finished[number].reason == ("stop" if ledger.output[number][-1] == 7 else "length")
    assert ledger.lives > 1


def test_the_same_seed_plays_the_same_way() -> None:
    faults = simulate.Faults(delay=0.02, crash=crashes)
    first, second = (simulate.run(lambda: play(3), seed=3, faults=faults).trace for _ in range(2))
    assert first == second
