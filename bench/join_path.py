"""Measure what a join costs the host: from `engine.generate` to the step in its worker's hands, and to the row begun.

The engine is whole, but for its worker's runner: it computes nothing, begins rows as a GPU's runner does, and sleeps
some milliseconds a step, as a loop beside a GPU would.  Each round has a stem and branches of random tokens that wrote
their last ones for a join (`joining`), and one request behind all of them, asked for while nothing runs; or, `--busy`,
by who has worked in the loop while the branches' last step ran, so that its result waits there, too, and 16 rows that
are to be freed.

    asked       engine.generate to the dispatcher's hands
    dispatched  the dispatcher's own work
    queued      from there to the scheduler's
    admitted    State.admit: the prompt is read, each line looked up, what is known leased
    planned     Planner.plan: candidates, the lines locked and joined, the row taken, the step packed
    sent        the step at the worker's thread
    begun       in that thread: the row begun, its prefix ready for the transfer (Rows.begin, Prefixes.tell)

Microseconds by the clock: median of the rounds, their 10th percentile, the least; and the loop's CPU time of all of it.
Reading a thread's clock takes longer than some of these parts, so it is read at both ends alone.  aim: 800 us of CPU
from asking to the worker.

    python bench/join_path.py [--branches 16] [--branch-tokens 1024] [--rounds 60] [--rows 1024] [--step-ms 2] [--busy]
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from callboard.actors.backend import Prompt
from callboard.actors.dispatcher import Dispatcher
from callboard.actors.engine import Engine
from callboard.actors.joins import pack_joins
from callboard.actors.messages import Step, StepDone
from callboard.actors.sampling import SamplingParams
from callboard.actors.scheduler.planner import Planner
from callboard.actors.scheduler.state import State
from callboard.actors.worker import WorkerDescription, worker
from callboard.actors.worker.extends import read_extends
from callboard.actors.worker.rows import Rows
from callboard.actors.worker.runner import Pass
from callboard.bench.record import write_record

RESULTS = Path(__file__).parent / "results"
STEM, TAIL, SAID, AFTER = 64, 8, 4, 8
VOCABULARY = 250
AIM_US = 800.0
MARKS = ("asked", "dispatched", "queued", "admitted", "planned", "sent", "begun")


class Marks:
    """When a join's request passed what; off until a round asks.  cpu: the loop's own clock, at both ends."""

    def __init__(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._on = False
        self.wall: dict[str, float] = {}
        self.cpu: list[float] = []

    def begin(self) -> None:
        self.wall, self.cpu = {}, [time.clock_gettime(self._clock)]
        self._on = True
        self.note("generate")

    def note(self, name: str) -> None:
        """Note the first time that something happens; with the last of these it is over."""
        if self._on and name not in self.wall:
            self.wall[name] = time.perf_counter()
            if name == "sent":
                self.cpu.append(time.clock_gettime(self._clock))
                self.wall["read"] = time.perf_counter()
            self._on = name != MARKS[-1]

    def around(self, function: Callable[..., Any], before: str, after: str) -> Callable[..., Any]:
        @wraps(function)
        def marked(*arguments: Any) -> Any:
            if before:
                self.note(before)
            given = function(*arguments)
            if given is not None or after != "planned":
                self.note(after)
            return given

        return marked


class Idle:
    """A runner that computes nothing: rows begin, tokens are drawn, and a step takes its time."""

    overlaps = True

    def __init__(self, marks: Marks, rows: int, context: int, step_s: float) -> None:
        self.rows = Rows(rows, context, VOCABULARY, torch.device("cpu"), staged=True)
        self._marks, self._step_s = marks, step_s
        self._rng = np.random.default_rng(1)
        self._done: dict[int, StepDone] = {}

    def forward(self, step: Step) -> Pass:
        self._marks.note("sent")
        rows = self.rows
        for row in np.frombuffer(step.retired_rows, np.int32).tolist():
            rows.retire(row)
        for extend in step.extends:
            if extend.begin is not None:
                rows.begin(extend.row, extend.begin, extend.prefix_slots)
        decodes = np.frombuffer(step.decode_rows, np.int32)
        read_extends(step.extends, rows)
        rows.lengths[decodes] += 1
        rows.prefixes.tell()
        self._marks.note("begun")
        begun = np.array([extend.row for extend in step.extends if extend.sample], np.int32)
        sampled = begun[:0] if step.writes else np.concatenate((begun, decodes))
        tokens = self._rng.integers(0, VOCABULARY, len(sampled)).astype(np.int32)
        self._done[step.number] = StepDone(step.number, sampled.tobytes(), tokens.tobytes())
        return Pass(step.number, time.perf_counter())

    def sample(self, running: Pass) -> None:
        """Nothing is left to do."""

    def collect(self, running: Pass) -> StepDone:
        time.sleep(self._step_s)
        return self._done.pop(running.number)

    def statistics(self) -> dict[str, Any]:
        return {}

    def end(self) -> None:
        """Nothing runs beside it."""


def stand_in(marks: Marks, rows: int, context: int, step_s: float) -> Callable[..., tuple[Idle, WorkerDescription]]:
    """Give what builds a runner, in place of `build_runner`; marks are set on the way to it."""
    Dispatcher._submit = marks.around(Dispatcher._submit, "asked", "dispatched")
    State.admit = marks.around(State.admit, "queued", "admitted")
    Planner.plan = marks.around(Planner.plan, "", "planned")

    def build(*_: Any) -> tuple[Idle, WorkerDescription]:
        return Idle(marks, rows, context, step_s), WorkerDescription(
            architecture="none", max_rows=rows, context_length=context, vocabulary=VOCABULARY, kv_slots=4 * context,
            eos_ids=(0,), joins=True, device="cpu", dtype="float32", kv_dtype="float32", kv_scales="", kv_bytes=0,
            load_s=0.0,
        )  # fmt: skip

    return build


def asked(count: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, temperature=0.0, ignore_eos=True)


async def round_of(
    engine: Engine, marks: Marks, branches: int, size: int, rng: np.random.Generator, settled_s: float, *, busy: bool
) -> None:
    """Compute branches, let their last step end, and join them."""
    stem = rng.integers(0, VOCABULARY, STEM, np.int32)
    heads = [rng.integers(0, VOCABULARY, size - SAID, np.int32) for _ in range(branches)]
    await engine.complete(stem.tobytes(), asked(0))
    branched = [Prompt(tokens=np.concatenate((stem, head)).tobytes(), joining=True) for head in heads]
    ends = await asyncio.gather(*(engine.complete(prompt, asked(SAID)) for prompt in branched))
    if busy:
        time.sleep(settled_s)  # noqa: ASYNC251  # in the loop's way, as a program's own work is
    else:
        await asyncio.sleep(settled_s)
    lines = [np.concatenate((head, np.array(end.tokens, np.int32))) for head, end in zip(heads, ends, strict=True)]
    whole = np.concatenate((stem, *lines, rng.integers(0, VOCABULARY, TAIL, np.int32))).astype(np.int32).tobytes()
    joins = pack_joins([(STEM, branches, *(word for line in lines for word in (len(line), 0)))])
    prompt, sampling = Prompt(tokens=whole, joins=joins), asked(AFTER)
    marks.begin()
    deltas = [delta async for delta in engine.generate(prompt, sampling)]
    if (finish := deltas[-1].finish) is None or finish.cached_tokens != len(whole) // 4 - TAIL:
        raise SystemExit("the join computed more than its tail")


def parts(marks: Marks) -> dict[str, float]:
    """Give microseconds by part, and of all of it."""
    wall = marks.wall
    befores = ("generate", *MARKS[:-2], "read")
    found = {name: 1e6 * (wall[name] - wall[before]) for before, name in zip(befores, MARKS, strict=True)}
    begun = found.pop("begun")
    found["to the worker"] = 1e6 * (wall["sent"] - wall["generate"])
    found["to the worker, CPU"] = 1e6 * (marks.cpu[1] - marks.cpu[0])
    return found | {"begun": begun}


async def measure(arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    marks, rng = Marks(), np.random.default_rng(arguments.seed)
    context = STEM + arguments.branches * arguments.branch_tokens + TAIL + AFTER + 16
    step_s = arguments.step_ms / 1000
    worker.build_runner = stand_in(marks, arguments.rows, context, step_s)
    rounds: list[dict[str, float]] = []
    async with Engine("embedded", max_rows=arguments.rows, chunk_tokens=8192, seed=1) as engine:
        for index in range(arguments.rounds + 3):
            await round_of(
                engine, marks, arguments.branches, arguments.branch_tokens, rng, 4 * step_s, busy=arguments.busy
            )
            if index >= 3:
                rounds.append(parts(marks))
    figures: dict[str, dict[str, float]] = {}
    for name in rounds[0]:
        times = np.array([one[name] for one in rounds])
        figures[name] = {
            "median": float(np.median(times)), "p10": float(np.quantile(times, 0.1)), "least": float(times.min()),
        }  # fmt: skip
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--branches", type=int, default=16)
    parser.add_argument("--branch-tokens", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--step-ms", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--busy", action="store_true", help="the branches' last result waits in the loop, too")
    parser.add_argument("--json", type=Path, default=RESULTS / "join_path.json")
    arguments = parser.parse_args()
    figures = asyncio.run(measure(arguments))
    table = Table(
        title=f"The host's part of a join of {arguments.branches} branches of {arguments.branch_tokens} tokens, us"
    )
    for column in ("", "median", "10 %", "least", "aim"):
        table.add_column(column, justify="left" if not column else "right")
    for name, found in figures.items():
        aim = f"{AIM_US:.0f}" if name == "to the worker, CPU" else ""
        table.add_row(name, *(f"{value:.0f}" for value in found.values()), aim)
    Console(width=100).print(table)
    write_record(
        arguments.json,
        branches=arguments.branches,
        branch_tokens=arguments.branch_tokens,
        rows=arguments.rows,
        rounds=arguments.rounds,
        step_ms=arguments.step_ms,
        busy=arguments.busy,
        aim_us=AIM_US,
        microseconds=figures,
    )


if __name__ == "__main__":
    main()
