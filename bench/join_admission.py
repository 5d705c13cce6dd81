"""Measure what a join costs the scheduler: from its request to the step that computes it, with no worker beside.

A stem, branches that have each generated a few tokens, and one request behind all of them.  Of branches that a join
waits for everything is cached, and its step has one row; of branches of which nobody said so the last token is still
to be computed, and its step has a row for each of them, too (unsaid).  State and Planner run in a plain loop.

    admit   State.admit: the prompt is read, each line looked up, what is known leased
    plan    Planner.plan: parts made and begun, published, joined, the step packed

CPU time of the thread: median of the rounds, their 10th percentile, the least.  aim: 0.5 ms for both.

    python bench/join_admission.py [--branches 16] [--branch-tokens 1024] [--rounds 60]
"""

from __future__ import annotations

import argparse
from collections import deque
from pathlib import Path
from time import thread_time

import numpy as np
from rich.console import Console
from rich.table import Table

from callboard.actors.joins import pack_joins
from callboard.actors.messages import Generate, Step, StepDone
from callboard.actors.sampling import SamplingParams
from callboard.actors.scheduler.options import SchedulerOptions
from callboard.actors.scheduler.planner import Planner
from callboard.actors.scheduler.settle import settle
from callboard.actors.scheduler.state import State
from callboard.bench.record import write_record

RESULTS = Path(__file__).parent / "results"
STEM, TAIL, SAID, AFTER = 64, 8, 4, 17
AIM_US = 500.0


class Bench:
    """A scheduler's state, and a worker that answers at once with random tokens."""

    def __init__(self, branches: int, size: int) -> None:
        self.branches, self.size = branches, size
        slots = 4 * (STEM + branches * size + TAIL + 2 * AFTER)
        self.state = State(SchedulerOptions(slots=slots, rows=256, chunk_tokens=8192), 1)
        self.planner = Planner(self.state)
        self._rng = np.random.default_rng(1)
        self._number = 0
        self._said: dict[int, list[int]] = {}

    def ask(self, tokens: list[int], count: int, joins: bytes = b"", *, joining: bool = False) -> Generate:
        self._number += 1
        sampling = SamplingParams(max_new_tokens=count, seed=1, ignore_eos=True)
        return Generate(self._number, np.array(tokens, np.int32).tobytes(), sampling, joins=joins, joining=joining)

    def words(self, count: int) -> list[int]:
        return self._rng.integers(0, 250, count).tolist()

    def run(self, *steps: Step) -> None:
        """Go on until nothing is left to do."""
        pending = deque(steps)
        while True:
            while len(self.state.flights) < 2 and (step := self.planner.plan()) is not None:
                pending.append(step)
            if not pending:
                return
            step = pending.popleft()
            begun = np.array([extend.row for extend in step.extends if extend.sample], np.int32)
            decoding = np.frombuffer(b"" if step.writes else step.decode_rows, np.int32)
            rows = np.concatenate((begun, decoding))
            tokens = self._rng.integers(0, 250, len(rows)).astype(np.int32)
            settle(self.state, StepDone(step.number, rows.tobytes(), tokens.tobytes()))
            if (news := self.state.news.take(step.number)) is not None:
                numbers, said = np.frombuffer(news.requests, np.int64), np.frombuffer(news.tokens, np.int32)
                for number, token in zip(numbers.tolist(), said.tolist(), strict=True):
                    self._said.setdefault(number, []).append(token)

    def round(self, *, joining: bool) -> tuple[float, float]:
        """Compute branches, then join them; give the microseconds of `admit` and of `plan`."""
        state, stem = self.state, self.words(STEM)
        heads = [self.words(self.size - SAID) for _ in range(self.branches)]
        state.admit(self.ask(stem, 0))
        self.run()
        asked = [self.ask(stem + head, SAID, joining=joining) for head in heads]
        for message in asked:
            state.admit(message)
        self.run()
        lines = [head + self._said[message.request] for head, message in zip(heads, asked, strict=True)]
        joins = pack_joins([(STEM, self.branches, *(word for line in lines for word in (len(line), 0)))])
        whole = stem + [token for line in lines for token in line] + self.words(TAIL)
        message = self.ask(whole, AFTER, joins)
        begun = thread_time()
        state.admit(message)
        admitted = thread_time()
        step = self.planner.plan()
        planned = thread_time()
        if step is None or len(step.extends) != (1 if joining else self.branches + 1):
            raise SystemExit("the join was not computed in one step, or in other rows")
        self.run(step)
        state.flush()
        return 1e6 * (admitted - begun), 1e6 * (planned - admitted)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--branches", type=int, default=16)
    parser.add_argument("--branch-tokens", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    bench = Bench(arguments.branches, arguments.branch_tokens)
    rounds = [(*bench.round(joining=True), *bench.round(joining=False)) for _ in range(arguments.rounds + 3)][3:]
    times = np.array(rounds)
    parts = {
        "admit": times[:, 0],
        "plan": times[:, 1],
        "both": times[:, :2].sum(1),
        "both, unsaid": times[:, 2:].sum(1),
    }
    title = (
        f"A join of {arguments.branches} branches of {arguments.branch_tokens} tokens, microseconds of the scheduler"
    )
    table = Table(title=title)
    for column in ("", "median", "10 %", "least", "aim"):
        table.add_column(column, justify="right")
    figures: dict[str, dict[str, float]] = {}
    for name, part in parts.items():
        found = {"median": float(np.median(part)), "p10": float(np.quantile(part, 0.1)), "least": float(part.min())}
        figures[name] = found
        table.add_row(name, *(f"{value:.0f}" for value in found.values()), f"{AIM_US:.0f}" if name == "both" else "")
    Console(width=100).print(table)
    write_record(
        RESULTS / "join_admission.json",
        branches=arguments.branches,
        branch_tokens=arguments.branch_tokens,
        rounds=arguments.rounds,
        aim_us=AIM_US,
        microseconds=figures,
    )


if __name__ == "__main__":
    main()
