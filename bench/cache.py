"""Measure the prefix cache: the share of prompt tokens it saves, over the most that any scheduler could save.

Five workloads shaped like trees run on the real scheduler, with a pool far smaller than what they touch and a worker
that takes no time.  Programs start together, in random order; a program's next request comes when the last has ended.

    hit rate   1 - (prompt tokens computed, once more after a retraction included) / (prompt tokens asked for)
    optimum    the hit rate of a cache without bounds that is asked one request at a time, in order of arrival: every
               distinct prefix is computed once, whatever was generated is there, and a request whose whole prompt is
               known computes its last token.  No pool of any size, in any order, does better.
    working    tokens the optimum holds in the end, beside the slots the scheduler has

    python bench/cache.py [--seeds N]
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
import statistics
from collections import deque
from collections.abc import Callable, Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from callboard.actors.messages import Generate, Step, StepDone
from callboard.actors.sampling import SamplingParams
from callboard.actors.scheduler.options import SchedulerOptions
from callboard.actors.scheduler.planner import Planner
from callboard.actors.scheduler.radix_tree import RadixTree
from callboard.actors.scheduler.settle import settle
from callboard.actors.scheduler.state import State

RESULTS = Path(__file__).parent / "results"
TARGET = 0.96

# A program yields the requests it wants run together, as (prompt, output tokens), or a delay in steps; it is sent their
# outputs, in order.
Wish = list[tuple[list[int], int]] | int
Program = Generator[Wish, list[list[int]], None]


def words(rng: random.Random, low: int, high: int | None = None) -> list[int]:
    """Draw a text of so many tokens."""
    return [rng.randrange(4000) for _ in range(rng.randint(low, high or low))]


# --- the workloads ----------------------------------------------------------------------------------------------------


def few_shot(rng: random.Random) -> list[Program]:
    """400 questions behind one of 8 lists of 300 tokens of examples."""
    examples = [words(rng, 300) for _ in range(8)]

    def program(shots: list[int]) -> Program:
        yield [(shots + words(rng, 20, 60), 8)]

    return [program(rng.choice(examples)) for _ in range(400)]


def chat(rng: random.Random) -> list[Program]:
    """100 conversations of 5 turns behind one system prompt."""
    system = words(rng, 60)

    def program() -> Program:
        text = list(system)
        for _ in range(5):
            text += words(rng, 20, 40)
            (answer,) = yield [(list(text), 40)]
            text += answer

    return [program() for _ in range(100)]


def tree_of_thought(rng: random.Random) -> list[Program]:
    """30 problems; 4 thoughts each, 3 levels deep, the best 2 of each level gone on with, each thought judged."""

    def program() -> Program:
        beams = [words(rng, 120, 200)]
        for _ in range(3):
            asked = [([*beam, 1, 2, 3, 4, branch], 24) for beam in beams for branch in range(4)]
            thoughts = yield asked
            paths = [prompt + thought for (prompt, _), thought in zip(asked, thoughts, strict=True)]
            yield [([*path, 9, 8, 7, 6], 2) for path in paths]
            beams = rng.sample(paths, min(2, len(paths)))

    return [program() for _ in range(30)]


def self_consistency(rng: random.Random) -> list[Program]:
    """80 questions behind one instruction, each answered 8 times."""
    instruction = words(rng, 80)

    def program() -> Program:
        question = instruction + words(rng, 60, 150)
        yield [(list(question), 30) for _ in range(8)]

    return [program() for _ in range(80)]


def agents(rng: random.Random) -> list[Program]:
    """60 agents of 3 kinds, 6 actions each; a tool takes 1 to 10 steps to answer with 30 to 80 tokens."""
    kinds = [words(rng, 250) for _ in range(3)]

    def program(kind: list[int]) -> Program:
        text = kind + words(rng, 20, 60)
        for _ in range(6):
            (action,) = yield [(list(text), 20)]
            yield rng.randint(1, 10)
            text += action + words(rng, 30, 80)

    return [program(rng.choice(kinds)) for _ in range(60)]


# name, workload, slots
WORKLOADS: list[tuple[str, Callable[[random.Random], list[Program]], int]] = [
    ("few-shot", few_shot, 2500),
    ("chat, many turns", chat, 8000),
    ("tree of thought", tree_of_thought, 8000),
    ("self-consistency", self_consistency, 4000),
    ("agents", agents, 12000),
]


# --- running them -----------------------------------------------------------------------------------------------------


class Theatre:
    """Runs programs on a scheduler; a step is its unit of time."""

    def __init__(self, programs: list[Program], slots: int, rows: int, policy: str, seed: int) -> None:
        self.state = State(SchedulerOptions(slots=slots, rows=rows, policy=policy), 1)  # type: ignore[arg-type]
        self.planner = Planner(self.state)
        self.rng = random.Random(seed)
        self.asked: list[tuple[int, bytes, int]] = []  # request, prompt, output tokens: in order of arrival
        self.outputs: dict[int, list[int]] = {}
        self.groups: dict[int, tuple[Program, list[int]]] = {}  # request -> its program, its fellows
        self.missing: dict[Program, int] = {}
        self.delayed: list[tuple[int, int, Program]] = []
        self.tickets = itertools.count()
        self.now = 0
        self.rng.shuffle(programs)
        for program in programs:
            self.resume(program, None)

    def resume(self, program: Program, results: list[list[int]] | None) -> None:
        """Let a program go on with what it has waited for."""
        try:
            wish = next(program) if results is None else program.send(results)
        except StopIteration:
            return
        if isinstance(wish, int):
            heapq.heappush(self.delayed, (self.now + wish, next(self.tickets), program))
            return
        numbers = list(range(len(self.asked), len(self.asked) + len(wish)))
        self.missing[program] = len(wish)
        for number, (prompt, count) in zip(numbers, wish, strict=True):
            packed = np.array(prompt, np.int32).tobytes()
            self.asked.append((number, packed, count))
            self.groups[number] = (program, numbers)
            self.outputs[number] = []
            sampling = SamplingParams(max_new_tokens=count, seed=number, ignore_eos=True)
            self.state.admit(Generate(number, packed, sampling))

    def run(self) -> None:
        """Run everything to its end."""
        pending: deque[Step] = deque()
        while True:
            while len(self.state.flights) < 2 and (step := self.planner.plan()) is not None:
                pending.append(step)
            self.now += 1
            while self.delayed and self.delayed[0][0] <= self.now:
                self.resume(heapq.heappop(self.delayed)[2], [])
            if pending:
                self.answer(pending.popleft())
            elif not self.delayed and not self.state.live:
                return

    def answer(self, step: Step) -> None:
        """Settle a step with random tokens."""
        begun = np.array([extend.row for extend in step.extends if extend.sample], np.int32)
        rows = np.concatenate((begun, np.frombuffer(step.decode_rows, np.int32)))
        tokens = np.array([self.rng.randrange(4000) for _ in rows], np.int32)
        settle(self.state, StepDone(step.number, rows.tobytes(), tokens.tobytes()))
        self.state.count()
        news = self.state.news.take(step.number)
        if news is None:
            return
        requests = np.frombuffer(news.requests, np.int64).tolist()
        for request, token in zip(requests, np.frombuffer(news.tokens, np.int32).tolist(), strict=True):
            self.outputs[request].append(token)
        for finish in news.finished:
            assert finish.reason == "length", finish
            program, numbers = self.groups[finish.request]
            self.missing[program] -= 1
            if not self.missing[program]:
                self.resume(program, [self.outputs[number] for number in numbers])

    def optimum(self) -> tuple[int, int]:
        """Tell the fewest prompt tokens that must be computed, and how many tokens the unbounded cache holds."""
        tree, computed = RadixTree(), 0
        for number, prompt, _ in self.asked:
            length = len(prompt) // 4
            computed += length - min(tree.known(prompt), length - 1)
            whole = prompt + np.array(self.outputs[number][:-1], np.int32).tobytes()
            tree.insert(whole, np.zeros(len(whole) // 4, np.int32))
        return computed, tree.tokens


def measure(workload: Callable[[random.Random], list[Program]], slots: int, policy: str, seed: int) -> dict[str, float]:
    """Run one workload once."""
    theatre = Theatre(workload(random.Random(seed)), slots, 16, policy, seed)
    theatre.run()
    asked = sum(len(prompt) // 4 for _, prompt, _ in theatre.asked)
    fewest, working = theatre.optimum()
    counters = theatre.state.counters
    hit, best = 1 - counters.computed_tokens / asked, 1 - fewest / asked
    return {
        "requests": len(theatre.asked),
        "prompt_tokens": asked,
        "slots": slots,
        "working_tokens": working,
        "hit_rate": hit,
        "optimum": best,
        "of_optimum": hit / best,
        "retractions": counters.retractions,
        "steps": counters.steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    table = Table(title="prefix cache: hit rate over the optimum")
    for name in ("workload", "policy", "requests", "slots", "working", "hit rate", "optimum", "of optimum", "steps"):
        table.add_column(name, justify="left" if name in {"workload", "policy"} else "right")
    results: list[dict[str, Any]] = []
    for name, workload, slots in WORKLOADS:
        for policy in ("longest-prefix", "first-come"):
            runs = [measure(workload, slots, policy, seed) for seed in range(arguments.seeds)]
            figures = {key: statistics.mean(run[key] for run in runs) for key in runs[0]}
            results.append({"workload": name, "policy": policy, **figures, "target": TARGET})
            table.add_row(
                name,
                policy,
                f"{figures['requests']:.0f}",
                str(slots),
                f"{figures['working_tokens']:.0f}",
                f"{figures['hit_rate']:.3f}",
                f"{figures['optimum']:.3f}",
                f"{figures['of_optimum']:.3f}",
                f"{figures['steps']:.0f}",
            )
    Console(width=120).print(table)
    RESULTS.mkdir(exist_ok=True)
    record = {
        "bench": "cache",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seeds": arguments.seeds,
        "rows": 16,
        "results": results,
    }
    (RESULTS / "cache.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
