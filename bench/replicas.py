"""Measure what placing is worth: the same programs over several replicas, placed in four ways.

Programs shaped like trees (`bench/cache_workloads.py`) run on real schedulers, one a replica, with workers that take a
time of their own for a step: one unit, and more for each prompt token and each row, about as a GPU does.  Requests are
placed in the order in which they come.

    in turn    each request at the next replica: what stands in front of several servers does if it knows nothing
    least      each at the replica with the fewest tokens before it
    prefix     as the dispatcher places requests of no program: by what each replica was sent, and by loads
    program    as the dispatcher places those of programs: the first like these, the others where that went

    hit rate   1 - (prompt tokens computed) / (prompt tokens asked for)
    time       until the last program has ended, over the time it would take if the replicas had shared the work of the
               fastest of the four equally
    program    the mean time from a program's beginning to its end, over that of the first line

    python bench/replicas.py [--replicas N] [--seeds N] [--gap TIME]
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from callboard.actors.messages import Generate, Step
from callboard.actors.placing import Place, Placing
from callboard.actors.sampling import SamplingParams
from callboard.actors.scheduler.options import SchedulerOptions
from callboard.actors.scheduler.planner import Planner
from callboard.actors.scheduler.state import State
from callboard.bench.cache_workloads import WORKLOADS, Program
from callboard.bench.random_answers import said, settle_at_random
from callboard.bench.record import write_record

RESULTS = Path(__file__).parent / "results"
WAYS = ("in turn", "least", "prefix", "program")
ROWS = 16
TOKENS_A_UNIT = 100  # of prompts: on an H200 a step of Llama-3.1-8B is 5 ms and a prompt token 25 us, lengths a tenth
ROWS_A_UNIT = 64


class Replica:
    """A scheduler, and the time its steps take.  step: the one on its way; worked: the time of all of them."""

    def __init__(self, options: SchedulerOptions) -> None:
        self.state = State(options, 1)
        self.planner = Planner(self.state)
        self.step: Step | None = None
        self.worked = 0.0

    def begin(self) -> float:
        """Plan a step and tell how long it takes; 0 if there is nothing to do or one is on its way."""
        if self.step is not None or (step := self.planner.plan()) is None:
            return 0.0
        self.step = step
        prompts = sum(len(extend.tokens) // 4 for extend in step.extends)
        took = 1.0 + prompts / TOKENS_A_UNIT + (len(step.decode_rows) // 4) / ROWS_A_UNIT
        self.worked += took
        return took


class Company:
    """Runs programs on several replicas."""

    def __init__(self, programs: list[Program], seed: int, way: str, replicas: int, slots: int, gap: float) -> None:
        options = SchedulerOptions(slots=slots, rows=ROWS, share_tokens=4)
        self.replicas = [Replica(options) for _ in range(replicas)]
        self.placing = Placing(replicas, slots)
        self.way = way
        self.rng = random.Random(seed)
        self.turn = itertools.cycle(range(replicas))
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.tickets = itertools.count()
        self.requests = itertools.count()
        self.places: dict[int, Place] = {}
        self.outputs: dict[int, list[int]] = {}
        self.groups: dict[int, tuple[Program, list[int]]] = {}
        self.missing: dict[Program, int] = {}
        self.numbers = {program: number for number, program in enumerate(programs, 1)}
        self.begun: dict[Program, float] = {}
        self.took: list[float] = []
        self.asked = 0
        self.rng.shuffle(programs)
        for index, program in enumerate(programs):
            self.later(index * gap, lambda program=program: self.start(program))

    def later(self, after: float, does: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + after, next(self.tickets), does))

    def start(self, program: Program) -> None:
        self.begun[program] = self.now
        self.resume(program, None)

    def resume(self, program: Program, results: list[list[int]] | None) -> None:
        """Let a program go on with what it has waited for."""
        try:
            wish = next(program) if results is None else program.send(results)
        except StopIteration:
            self.placing.release((self.numbers[program],))
            self.took.append(self.now - self.begun[program])
            return
        if isinstance(wish, int):
            self.later(wish, lambda: self.resume(program, []))
            return
        fellows = [next(self.requests) for _ in wish]
        self.missing[program] = len(wish)
        for number, (prompt, count) in zip(fellows, wish, strict=True):
            self.groups[number] = program, fellows
            self.outputs[number] = []
            self.asked += len(prompt)
            self.admit(number, np.array(prompt, np.int32).tobytes(), count, self.numbers[program])

    def admit(self, number: int, prompt: bytes, count: int, program: int) -> None:
        place = self.places[number] = self.place(prompt, count, program)
        sampling = SamplingParams(max_new_tokens=count, seed=number, ignore_eos=True)
        self.replicas[place.replica].state.admit(Generate(number, prompt, sampling, program=program))

    def place(self, prompt: bytes, count: int, program: int) -> Place:
        match self.way:
            case "in turn":
                return Place(next(self.turn), 0)
            case "least":
                return self.placing.place(b"", "", outputs=len(prompt) // 4 + count)
            case "prefix":
                return self.placing.place(prompt, "", outputs=count)
            case _:
                return self.placing.place(prompt, "", program=program, lease=program, outputs=count)

    def run(self) -> None:
        """Run everything to its end."""
        while self.events:
            self.now, _, does = heapq.heappop(self.events)
            does()
            if self.events and self.events[0][0] == self.now:
                continue  # what comes at one time is planned together
            for replica in self.replicas:
                if took := replica.begin():
                    self.later(took, lambda replica=replica: self.answer(replica))

    def answer(self, replica: Replica) -> None:
        """Settle a step with random tokens."""
        step, replica.step = replica.step, None
        assert step is not None, "it was begun"
        if (news := settle_at_random(replica.state, step, self.rng)) is None:
            return
        for request, token in said(news):
            self.outputs[request].append(token)
        for finish in news.finished:
            assert finish.reason == "length", finish
            if self.way != "in turn":
                self.placing.over(self.places[finish.request])
            program, fellows = self.groups[finish.request]
            self.missing[program] -= 1
            if not self.missing[program]:
                self.resume(program, [self.outputs[number] for number in fellows])


def measure(
    workload: Callable[[random.Random], list[Program]], seed: int, way: str, replicas: int, slots: int, gap: float
) -> dict[str, float]:
    """Run one workload once."""
    company = Company(workload(random.Random(seed)), seed, way, replicas, slots, gap)
    company.run()
    computed = sum(replica.state.counters.computed_tokens for replica in company.replicas)
    worked = [replica.worked for replica in company.replicas]
    return {
        "hit_rate": 1 - computed / company.asked,
        "end": company.now,
        "worked": sum(worked),
        "program_time": statistics.mean(company.took),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--gap", type=float, default=0.0, help="between the beginnings of two programs")
    arguments = parser.parse_args()
    table = Table(title=f"{arguments.replicas} replicas")
    for name in ("workload", "way", "hit rate", "time", "program"):
        table.add_column(name, justify="left" if name in {"workload", "way"} else "right")
    results: list[dict[str, Any]] = []
    for name, workload, slots in WORKLOADS:
        told: dict[str, dict[str, float]] = {}
        for way in WAYS:
            runs = [
                measure(workload, seed, way, arguments.replicas, slots // 2, arguments.gap)
                for seed in range(arguments.seeds)
            ]
            told[way] = {key: statistics.mean(run[key] for run in runs) for key in runs[0]}
        least = min(figures["worked"] for figures in told.values()) / arguments.replicas
        for way, figures in told.items():
            figures["over_least"] = figures["end"] / least
            figures["program_over_in_turn"] = figures["program_time"] / told["in turn"]["program_time"]
            results.append({"workload": name, "way": way, **figures})
            cells = (figures["hit_rate"], figures["over_least"], figures["program_over_in_turn"])
            table.add_row(name if way == WAYS[0] else "", way, *(f"{cell:.3f}" for cell in cells))
    Console(width=100).print(table)
    write_record(
        RESULTS / "replicas.json",
        bench="replicas", replicas=arguments.replicas, seeds=arguments.seeds, gap=arguments.gap, results=results,
    )  # fmt: skip


if __name__ == "__main__":
    main()
