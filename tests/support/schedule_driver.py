"""Drive a scheduler's state without actors or a loop: a fake model runs its steps, a ledger checks what comes out."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np

from callboard.actors.messages import Finished, Generate, Paused, Step, TokenLogprob, Tokens
from callboard.actors.sampling import SamplingParams
from callboard.actors.scheduler.groups import GroupOptions
from callboard.actors.scheduler.invariants import check_state, check_tree
from callboard.actors.scheduler.options import SchedulerOptions
from callboard.actors.scheduler.planner import Planner
from callboard.actors.scheduler.settle import settle
from callboard.actors.scheduler.state import State

from .fake_worker import FakeModel, expected, expected_input_logprobs, expected_next_logprobs, read_groups

__all__ = ["EVERY_GROUP", "Asked", "ScheduleDriver", "pack", "simulate"]

PARTS = -(1 << 40)
"""From this number on down they are parts of joined requests."""
EVERY_GROUP = GroupOptions(least_tokens=1, item_tokens=1, step_tokens=1)


def pack(tokens: Sequence[int]) -> bytes:
    """Pack tokens as int32 bytes."""
    return np.array(tokens, np.int32).tobytes()


class Asked:
    """One request as its client sees it."""

    def __init__(
        self, prompt: Sequence[int], sampling: SamplingParams, eos: Sequence[int], output: Sequence[int]
    ) -> None:
        self.prompt, self.sampling, self.eos = list(prompt), sampling, tuple(eos)
        self.output = list(output)
        self.joins = b""
        self.finish: Finished | None = None
        self.stopped = False
        self.aborted = False
        self.logprobs: list[TokenLogprob] = []
        self.input_logprobs: tuple[TokenLogprob, ...] = ()
        self.looks_ahead = False
        self.next_logprobs = b""
        self.begun_at = -1  # the step with its first chunk

    @property
    def right(self) -> list[int]:
        """The output it must have if it runs to its end."""
        stops = self.sampling.stop_token_ids + (() if self.sampling.ignore_eos else self.eos)
        seed = self.sampling.seed
        assert seed is not None
        return expected(self.prompt, seed, self.sampling.max_new_tokens, stops=stops, joins=self.joins)


class ScheduleDriver:
    """A scheduler's state, planner and fake model; every invariant is checked after every move."""

    def __init__(
        self,
        options: SchedulerOptions,
        *,
        failing: Callable[[int, int], str | None] = lambda *_: None,
        check: bool = True,
    ) -> None:
        self.state = State(options, 1)
        self.planner = Planner(self.state)
        self.model = FakeModel(options.slots, failing=failing)
        self.pending: deque[Step] = deque()
        self.asked: dict[int, Asked] = {}
        self.steps: list[Step] = []
        self.programs: set[int] = set()
        self._check = check

    def submit(
        self,
        number: int,
        prompt: Sequence[int],
        sampling: SamplingParams | None = None,
        *,
        eos: Sequence[int] = (),
        output: Sequence[int] = (),
        next_logprobs: bool = False,
        lease: int = 0,
        released: Sequence[int] = (),
        joins: bytes = b"",
        program: int = 0,
        tenant: str = "",
        namespace: str = "",
        joining: bool = False,
    ) -> Asked:
        """Ask for a generation, or for a row of log-probabilities."""
        sampling = sampling or SamplingParams(max_new_tokens=4, seed=number)
        asked = self.asked[number] = Asked(prompt, sampling, eos, output)
        asked.looks_ahead, asked.joins = next_logprobs, joins
        message = Generate(
            number,
            pack(prompt),
            sampling,
            pack(output),
            pack(eos),
            next_logprobs,
            lease,
            tuple(released),
            joins=joins,
            program=program,
            tenant=tenant,
            namespace=namespace,
            joining=joining,
        )
        self.programs.add(lease)
        self.state.admit(message)
        self.collect()
        return asked

    def pause(self, program: int, tokens: Sequence[int] = (), namespace: str = "", joins: bytes = b"") -> None:
        """Let a program wait on the outside world, behind these tokens."""
        self.programs.add(program)
        self.state.pause(Paused(program, pack(tokens), namespace, joins))
        self.collect()

    def resume(self, program: int) -> None:
        self.state.resume(program)
        self.collect()

    def abort(self, number: int) -> None:
        if self.asked[number].finish is None:
            self.asked[number].aborted = True
        self.state.abort(number)
        self.collect()

    def stop(self, number: int) -> None:
        if self.asked[number].finish is None:
            self.asked[number].stopped = True
        self.state.stop(number)
        self.collect()

    def send(self) -> Step | None:
        """Plan one step if there is room in flight."""
        if len(self.state.flights) >= self.state.options.in_flight:
            return None
        step = self.planner.plan()
        self.state.count()
        if step is not None:
            if self._check:
                self._check_groups(step)
            self.pending.append(step)
            self.steps.append(step)
            for extend in step.extends:
                if extend.begin is not None and extend.begin.request in self.asked:  # else it is what nobody asked for
                    self.asked[extend.begin.request].begun_at = len(self.steps)
            begun = [extend.begin.request for extend in step.extends if extend.begin is not None]
            eager = [number for number in begun if number not in self.asked and number > PARTS]
            assert not eager or (not self.state.live and len(self.pending) == 1), "ahead, while there was work to do"
        self.collect()
        return step

    def _check_groups(self, step: Step) -> None:
        """Assert that groups leave nothing out where every group pays.  That they are true, the fake model sees to.

        Rows with duplicates of their own are left aside: they may share less than they could.
        """
        options, rows = self.state.options, self.state.rows
        decoding = np.frombuffer(step.decode_rows, np.int32)
        if not options.share_attention:
            assert not step.groups
        if not options.share_attention or options.groups != EVERY_GROUP:
            return
        plain = decoding[rows.duplicates[decoding] == 0].tolist()
        together = [(start, end, set(members)) for _, start, end, members in read_groups(step.groups)]
        for row, other in combinations(plain, 2):
            length = min(rows.length[row], rows.length[other])
            same = int(np.argmin(np.append(rows.slots[row, :length] == rows.slots[other, :length], False)))
            shared = sum(end - start for start, end, members in together if {row, other} <= members)
            assert shared == same, f"rows {row} and {other} share {same} slots, and {shared} in groups"

    def done(self) -> bool:
        """Run and settle the oldest step in flight."""
        if not self.pending:
            return False
        assert settle(self.state, self.model.run(self.pending.popleft()))
        self.collect()
        return True

    def run(self, limit: int = 20_000) -> None:
        """Go on until nothing is left to do; the same as the actor's loop with a worker that never lags."""
        for _ in range(limit):
            while self.send() is not None:
                pass
            if not self.done():
                assert not self.state.live, f"{len(self.state.live)} requests are left, and no step"
                return
        raise AssertionError(f"not done after {limit} steps")

    def collect(self) -> None:
        """Take the news in and check them, and every invariant."""
        if self._check:
            check_state(self.state)
        news = self.state.news.take(self.state.settled)
        if news is not None:
            self._collect(news)

    def _collect(self, news: Tokens) -> None:
        requests = np.frombuffer(news.requests, np.int64).tolist()
        offsets = np.frombuffer(news.offsets, np.int32).tolist()
        tokens = np.frombuffer(news.tokens, np.int32).tolist()
        for number, offset, token in zip(requests, offsets, tokens, strict=True):
            asked = self.asked[number]
            assert not asked.stopped, "a token of a request that nobody wants any more"
            assert asked.finish is None, "a token behind the terminal event"
            assert offset == len(asked.output), f"request {number}: token {offset} comes after {len(asked.output)}"
            asked.output.append(token)
        for number, logprob in news.logprobs.items():
            assert logprob.token == self.asked[number].output[-1]
            self.asked[number].logprobs.append(logprob)
        for number, logprobs in news.input_logprobs.items():
            assert not self.asked[number].input_logprobs, "input log-probabilities came twice"
            self.asked[number].input_logprobs = logprobs
        ended = {finish.request for finish in news.finished}
        for number, row in news.next_logprobs.items():
            assert number in ended, "a row comes with its request's end"
            self.asked[number].next_logprobs = row
        for finish in news.finished:
            asked = self.asked[finish.request]
            assert asked.finish is None, f"request {finish.request} ended twice"
            assert not asked.stopped, "a terminal event of a request that has one"
            asked.finish = finish
            assert finish.completion_tokens == len(asked.output)

    def verify(self) -> None:
        """Assert that every request has ended once, rightly, with the right tokens, and that nothing is held."""
        for number, asked in self.asked.items():
            right = asked.right
            assert asked.output == right[: len(asked.output)], f"request {number} was given the wrong tokens"
            if asked.stopped:
                continue
            assert asked.finish is not None, f"request {number} never ended"
            assert asked.finish.cached_tokens <= len(asked.prompt), f"request {number} found more than it asked for"
            if asked.finish.reason in {"stop", "length"}:
                assert asked.output == right, f"request {number} ended early"
                assert (asked.finish.reason == "stop") == (asked.finish.drop == 1)
                if asked.sampling.logprob_start >= 0:
                    found = [(item.token, item.logprob) for item in asked.input_logprobs]
                    assert found == expected_input_logprobs(asked.prompt, asked.sampling.logprob_start)
                row = expected_next_logprobs(asked.prompt) if asked.looks_ahead else b""
                assert asked.next_logprobs == row, f"request {number} was given the wrong row of log-probabilities"
            else:
                assert asked.finish.reason == ("abort" if asked.aborted else "error")
        tree, pool = self.state.memory.tree, self.state.memory.pool
        assert tree.locked == 0, "something is locked, and nothing runs"
        for program in self.programs:
            self.state.leases.release(program)
        assert (tree.leased, self.state.leases.count) == (0, 0), "something is leased, and nobody is left"
        check_tree(tree)
        assert tree.tokens + pool.free == pool.total, "slots are missing"
        assert self.state.rows.free == self.state.rows.max_rows


def simulate(
    seed: int,
    *,
    requests: int = 60,
    check: bool = True,
    share: float | None = None,
    bound: float | None = None,
    **options: object,
) -> ScheduleDriver:
    """Run one random life: prompts that share prefixes, aborts, stops, failures, small pools, uneven workers.

    share: what part of max_new_tokens requests are believed to write, whatever they do; None lets it be learnt.
    bound: how many have a grammar; None leaves it to the seed.
    """
    rng = random.Random(seed)
    chosen: dict[str, object] = {
        "slots": rng.choice([48, 64, 100, 200, 400]),
        "rows": rng.choice([1, 2, 4, 8]),
        "chunk_tokens": rng.choice([1, 4, 9, 32, 128]),
        "in_flight": rng.choice([1, 2, 2, 3]),
        "policy": rng.choice(["first-come", "longest-prefix"]),
        "window": rng.choice([1, 3, 32]),
        "patience": rng.choice([1, 16, 512]),
        "share_tokens": rng.choice([1, 4, 16]),
        "reserve_all": rng.choice([0, 2, 64]),
        "reserve_least": rng.choice([1, 4]),
    }
    chosen.update(options)
    habits = random.Random(seed + 1)  # apart, so that a life stays the one it was
    folk = random.Random(seed + 2)
    tenants = folk.choice([[""], ["a", "b"], ["a", "a", "b", "c"]])
    pauses = random.Random(seed + 2)
    joining = random.Random(seed + 3).choice([0.0, 0.0, 0.5])
    joined = random.Random(seed + 4)
    chosen.setdefault("eager_tokens", pauses.choice([0, 1, 5, 32]))
    some = habits.choice([0.0, 0.0, 0.5, 1.0])
    bound = some if bound is None else bound
    chosen.setdefault("share_attention", habits.random() < 0.9)
    chosen.setdefault(
        "groups", habits.choice([EVERY_GROUP, GroupOptions(least_tokens=3, item_tokens=6, step_tokens=8)])
    )
    failures = {(rng.randrange(requests), rng.randrange(60)) for _ in range(requests // 4)}
    driver = ScheduleDriver(
        SchedulerOptions(**chosen),  # type: ignore[arg-type]
        failing=lambda number, position: "a NaN" if (number, position) in failures else None,
        check=check,
    )
    if share is not None:
        estimate = driver.state.estimate
        estimate.share = share
        estimate.finished = lambda *_: None  # type: ignore[method-assign]
        estimate.retracted = lambda: None  # type: ignore[method-assign]
    slots = driver.state.memory.total
    stems = [[rng.randrange(8) for _ in range(rng.randint(1, slots // 4))] for _ in range(4)]
    for number in range(requests):
        stem = rng.choice(stems)
        prompt = stem[: rng.randint(1, len(stem))] + [rng.randrange(8) for _ in range(rng.randint(0, 8))]
        sampling = SamplingParams(
            max_new_tokens=min(rng.choice([0, 1, 3, 10, 40, 200]), slots - len(prompt)),
            stop_token_ids=tuple(rng.randrange(61) for _ in range(rng.choice([0, 0, 1, 6]))),
            seed=rng.choice([0, number]),
            ignore_eos=rng.random() < 0.2,
            logprob_start=rng.choice([-1, -1, -1, 0, rng.randrange(len(prompt) + 1)]),
            return_logprob=rng.random() < 0.2,
            regex="a" if habits.random() < bound else None,
        )
        looks_ahead = not sampling.max_new_tokens and number % 3 > 0
        lease, released = (habits.randrange(6) for _ in range(2))
        driver.submit(
            number,
            prompt,
            sampling,
            eos=(rng.randrange(61),),
            next_logprobs=looks_ahead,
            lease=lease,
            released=[released] if released else [],
            program=folk.randrange(6),
            tenant=folk.choice(tenants),
            joining=joined.random() < joining,
        )
        while rng.random() < 0.7:
            (driver.send if rng.random() < 0.6 else driver.done)()
        if rng.random() < 0.1:
            driver.abort(rng.randrange(number + 1))
        if rng.random() < 0.1:
            driver.stop(rng.randrange(number + 1))
        if rng.random() < 0.02:
            driver.state.flush()
        if pauses.random() < 0.3:
            driver.pause(pauses.randrange(1, 6), [*prompt, *(pauses.randrange(8) for _ in range(pauses.randrange(20)))])
            if pauses.random() < 0.3:
                driver.resume(pauses.randrange(1, 6))
            while pauses.random() < 0.7:
                (driver.send if pauses.random() < 0.6 else driver.done)()
    driver.run()
    driver.verify()
    return driver
