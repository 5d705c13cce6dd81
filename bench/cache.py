"""Measure the prefix cache: the share of prompt tokens it saves, over the most that any scheduler could save.

Programs shaped like trees (`bench/cache_workloads.py`) run on the real scheduler, with a pool far smaller than what
they touch and a worker that takes no time.  They start together, in random order; a program's next request comes when
the last has ended.

    hit rate   1 - (prompt tokens computed, once more after a retraction included) / (prompt tokens asked for)
    optimum    the hit rate of a cache without bounds that is asked one request at a time, in order of arrival: every
               distinct prefix is computed once, whatever was generated is there, and a request whose whole prompt is
               known computes its last token.  No pool of any size, in any order, does better.
    working    tokens the optimum holds in the end, beside the slots the scheduler has
    wait       steps from a request's arrival to its first chunk, the 99th percentile

    python bench/cache.py [--seeds N] [--share-tokens N]
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
import statistics
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from callboard.actors.messages import Generate, Step
from callboard.actors.sampling import SamplingParams
from callboard.actors.scheduler.options import SchedulerOptions
from callboard.actors.scheduler.planner import Planner
from callboard.actors.scheduler.radix_tree import RadixTree
from callboard.actors.scheduler.state import State
from callboard.bench.cache_workloads import WORKLOADS, Program
from callboard.bench.random_answers import said, settle_at_random

RESULTS = Path(__file__).parent / "results"
TARGET = 0.98


# --- running them -----------------------------------------------------------------------------------------------------


class Theatre:
    """Runs programs on a scheduler; a step is its unit of time.

    leases: whether programs hold any, as streams do.  told: whether their requests say whose they are.
    """

    def __init__(
        self, programs: list[Program], seed: int, *, leases: bool = True, told: bool = True, **options: Any
    ) -> None:
        self.state = State(SchedulerOptions(**options), 1)
        self.planner = Planner(self.state)
        self.rng = random.Random(seed)
        self.asked: list[tuple[int, bytes, int]] = []  # request, prompt, output tokens: in order of arrival
        self.outputs: dict[int, list[int]] = {}
        self.groups: dict[int, tuple[Program, list[int]]] = {}  # request -> its program, its fellows
        self.missing: dict[Program, int] = {}
        self.delayed: list[tuple[int, int, Program]] = []
        self.tickets = itertools.count()
        self.now = 0
        self.leases = leases
        self.told = told
        self.numbers = itertools.count(1)  # of programs and branches
        self.leased: dict[Program, int] = {}
        self.branches: dict[Program, list[int]] = {}
        self.released: list[int] = []
        self.since: list[int] = []  # by request
        self.waits: list[int] = []
        self.rng.shuffle(programs)
        for program in programs:
            self.resume(program, None)

    def resume(self, program: Program, results: list[list[int]] | None) -> None:
        """Let a program go on with what it has waited for; branches of a fork are over by then."""
        self.released += self.branches.pop(program, [])
        try:
            wish = next(program) if results is None else program.send(results)
        except StopIteration:
            self.released.append(self.leased.pop(program, 0))
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
            self.since.append(self.now)
            sampling = SamplingParams(max_new_tokens=count, seed=number, ignore_eos=True)
            lease, released = self._lease(program, len(wish))
            own = self.leased[program] if self.told else 0
            self.state.admit(
                Generate(
                    number, packed, sampling, lease=lease, released=released, program=own, tenant=self.tenant(program)
                )
            )

    def tenant(self, program: Program) -> str:  # noqa: ARG002
        """Tell on whose behalf a program runs."""
        return ""

    def _lease(self, program: Program, fellows: int) -> tuple[int, tuple[int, ...]]:
        """Give a request its program's number, or one of its own if it is one of several branches; and who is over."""
        own = self.leased.setdefault(program, next(self.numbers))
        if fellows > 1:
            own = next(self.numbers)
            self.branches.setdefault(program, []).append(own)
        released, self.released = tuple(self.released), []
        return (own, released) if self.leases else (0, ())

    def run(self) -> None:
        """Run everything to its end."""
        pending: deque[Step] = deque()
        while True:
            while len(self.state.flights) < 2 and (step := self.planner.plan()) is not None:
                pending.append(step)
                begun = [extend.begin.request for extend in step.extends if extend.begin is not None]
                self.waits += [self.now - self.since[request] for request in begun]
            self.now += 1
            while self.delayed and self.delayed[0][0] <= self.now:
                self.resume(heapq.heappop(self.delayed)[2], [])
            if pending:
                self.answer(pending.popleft())
            elif not self.delayed and not self.state.live:
                return

    def answer(self, step: Step) -> None:
        """Settle a step with random tokens."""
        news = settle_at_random(self.state, step, self.rng)
        self.state.count()
        if news is None:
            return
        for request, token in said(news):
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


def measure(workload: Callable[[random.Random], list[Program]], seed: int, **options: Any) -> dict[str, float]:
    """Run one workload once."""
    theatre = Theatre(workload(random.Random(seed)), seed, **options)
    theatre.run()
    asked = sum(len(prompt) // 4 for _, prompt, _ in theatre.asked)
    fewest, working = theatre.optimum()
    counters = theatre.state.counters
    hit, best = 1 - counters.computed_tokens / asked, 1 - fewest / asked
    return {
        "requests": len(theatre.asked),
        "prompt_tokens": asked,
        "slots": options["slots"],
        "working_tokens": working,
        "hit_rate": hit,
        "optimum": best,
        "of_optimum": hit / best,
        "retractions": counters.retractions,
        "steps": counters.steps,
        "p99_wait": float(np.percentile(theatre.waits, 99)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--share-tokens", type=int, default=4, help="4 as an engine has it on a CPU, 16 on a GPU")
    arguments = parser.parse_args()
    table = Table(title="prefix cache: hit rate over the optimum")
    for name in (
        "workload",
        "policy",
        "requests",
        "slots",
        "working",
        "hit rate",
        "optimum",
        "of optimum",
        "steps",
        "wait",
    ):
        table.add_column(name, justify="left" if name in {"workload", "policy"} else "right")
    results: list[dict[str, Any]] = []
    for name, workload, slots in WORKLOADS:
        for policy, leases in (("longest-prefix", True), ("longest-prefix", False), ("first-come", True)):
            options = {"slots": slots, "rows": 16, "policy": policy, "share_tokens": arguments.share_tokens}
            options["leases"] = leases
            runs = [measure(workload, seed, **options) for seed in range(arguments.seeds)]
            figures = {key: statistics.mean(run[key] for run in runs) for key in runs[0]}
            results.append({"workload": name, "policy": policy, "leases": leases, **figures, "target": TARGET})
            table.add_row(
                name,
                policy if leases else f"{policy}, no leases",
                f"{figures['requests']:.0f}",
                str(slots),
                f"{figures['working_tokens']:.0f}",
                f"{figures['hit_rate']:.3f}",
                f"{figures['optimum']:.3f}",
                f"{figures['of_optimum']:.3f}",
                f"{figures['steps']:.0f}",
                f"{figures['p99_wait']:.0f}",
            )
    Console(width=140).print(table)
    RESULTS.mkdir(exist_ok=True)
    record = {
        "bench": "cache",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seeds": arguments.seeds,
        "rows": 16,
        "share_tokens": arguments.share_tokens,
        "results": results,
    }
    (RESULTS / "cache.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
