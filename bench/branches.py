"""Measure what the host does to begin a level of many branches: from their parents' ends to the steps they begin in.

The engine is whole, but for its worker: a thread that answers each step after a few milliseconds (`token_path.py`).
25 parents end in one step, each asks for 25 children behind what it has said (`5^4*1024/128` has 125 and 625), and the
event loop's thread works until the last of these has begun.  Its own clock tells for how long: microseconds of CPU a
child, of the loop in all, and of its parts.

    prepare       what `engine.generate` checks and puts together
    dispatcher    a Submit
    admit         a Generate at the scheduler
    plan          the steps in which they begin
    other         ends of the parents, readers, tasks, the event loop, the garbage collector

The parts are told by rounds of their own, for a look at the clock costs a microsecond or two, and there are eight a
child; what these cost is in the parts, and in nothing else.

Then the worker's thread, without a GPU: the same steps go through the GPU's runner over tensors without memory, and
what it takes to launch those that begin rows is told in milliseconds, kernels, attention and model left out.

Of several rounds the one with the least CPU counts: what else runs on the machine does not.

    python bench/branches.py [--workload '25^2*1024/8'] [--rounds 20]
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from callboard.actors import tree
from callboard.actors.client import Client
from callboard.actors.dispatcher import Dispatcher
from callboard.actors.engine import Engine
from callboard.actors.messages import Step, StepDone, WorkerStatistics
from callboard.actors.sampling import SamplingParams
from callboard.actors.scheduler import SchedulerOptions
from callboard.actors.scheduler.planner import Planner
from callboard.actors.scheduler.state import State
from callboard.actors.worker import device_draw, prefixes
from callboard.actors.worker.decodes import read_decodes
from callboard.actors.worker.device_draw import DeviceDraw
from callboard.actors.worker.device_runner import DeviceRunner
from callboard.actors.worker.rows import Rows
from callboard.bench.record import write_record
from callboard.bench.token_path import Words, WordWorker
from callboard.commands.bench.offline import run_workload
from callboard.commands.bench.workload import Request, parse_workload
from callboard.commands.lasting import keep_lasting
from callboard.kernels.attention.tree_plan import TreePlanner
from callboard.kernels.attention.tree_tuning import TreeTuning

RESULTS = Path(__file__).parent / "results"
ROWS, CONTEXT, VOCABULARY = 1024, 4096, 4096
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
PARTS: dict[str, tuple[type, str]] = {
    "dispatcher": (Dispatcher, "_submit"),
    "admit": (State, "admit"),
    "plan": (Planner, "plan"),
}


class Level:
    """What is noted of a run: CPU of the loop by part, and each step with the loop's clock around it."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self.spent: Counter[str] = Counter()
        self.steps: list[tuple[Step, float, float, Counter[str]]] = []  # CPU when it came and was answered, parts then

    def now(self) -> float:
        return time.clock_gettime(self.words.clock)

    def costs(self, children: int) -> dict[str, float]:
        """Give microseconds a child of the last level, from its parents' end to its last beginning."""
        begins = [place for place, (step, *_) in enumerate(self.steps) if any(each.begin for each in step.extends)]
        left = children
        while left > 0:
            first = begins.pop()
            left -= len(self.steps[first][0].extends)
        last = max(place for place, (step, *_) in enumerate(self.steps) if step.extends)
        (_, _, begun, before), (_, ended, _, after) = self.steps[first - 1], self.steps[last]
        found = {name: 1e6 * (after[name] - before[name]) / children for name in ("prepare", *PARTS)}
        total = 1e6 * (ended - begun) / children
        return {"all": total, **found}


class LevelWorker(WordWorker):
    """A worker that computes nothing, and notes what it is sent."""

    def __init__(self, level: Level, report: Callable[[StepDone], None]) -> None:
        self._level = level
        super().__init__(level.words, report)

    async def receive(self, message: Any) -> Any:
        if isinstance(message, WorkerStatistics):
            return Counter[str]()  # nothing of anything
        return await super().receive(message)

    def _live(self) -> None:
        level, words = self._level, self._words
        while (step := self._steps.get()) is not None:
            came, parts = level.now(), level.spent.copy()
            begun = np.array([extend.row for extend in step.extends if extend.sample], np.int32)
            rows = np.concatenate((begun, np.frombuffer(step.decode_rows, np.int32)))
            time.sleep(words.step_s)
            level.steps.append((step, came, level.now(), parts))
            tokens = words.tokens[(len(level.steps) + 7 * rows) % len(words.tokens)]
            self._report(StepDone(step.number, rows.tobytes(), tokens.tobytes()))


def note_parts(level: Level) -> None:
    """Have the parts' CPU counted."""

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any) -> Any:
            begun = time.thread_time()
            try:
                return call(*given)
            finally:
                level.spent[name] += time.thread_time() - begun

        return wrapped

    for name, (owner, method) in PARTS.items():
        setattr(owner, method, noted(name, getattr(owner, method)))
    prepare = Client._prepare

    async def prepared(*given: Any, **named: Any) -> Any:
        begun = time.thread_time()
        try:
            return await prepare(*given, **named)  # which waits for nobody, as prompts are tokens
        finally:
            level.spent["prepare"] += time.thread_time() - begun

    Client._prepare = prepared  # type: ignore[method-assign]


async def measure_loop(arguments: argparse.Namespace) -> tuple[dict[str, float], list[Step], int]:
    """Give microseconds a child, in the best round; the steps of one; and how many children there are."""
    words = Words(ROWS, arguments.step_ms / 1000)
    level = Level(words)
    scheduler_options = tree.SchedulerOptions

    def as_on_a_gpu(**options: Any) -> SchedulerOptions:
        return scheduler_options(**{**options, "share_attention": True, "share_tokens": 16})

    tree.Worker = lambda options, report, grammars: LevelWorker(level, report)  # type: ignore[misc,assignment]  # noqa: ARG005
    tree.SchedulerOptions = as_on_a_gpu  # type: ignore[misc,assignment]
    requests: list[Request] = parse_workload(arguments.workload).requests(VOCABULARY)
    children = sum(request.inputs == requests[-1].inputs for request in requests)
    wholes: list[dict[str, float]] = []
    parts: list[dict[str, float]] = []
    async with Engine("embedded", max_rows=ROWS, chunk_tokens=8192, context_length=CONTEXT) as engine:
        await run_workload(engine, requests)
        keep_lasting()
        for found in (wholes, parts):
            if found is parts:
                note_parts(level)
            for _ in range(arguments.rounds):
                level.steps.clear()
                await run_workload(engine, requests)
                found.append(level.costs(children))
    totals = sorted(costs["all"] for costs in wholes)
    told = {name: min(costs[name] for costs in parts) for name in ("prepare", *PARTS)}
    other = totals[0] - sum(told.values())
    best = {"all": totals[0], **told, "other": other, "median": totals[len(totals) // 2]}
    return best, [step for step, *_ in level.steps], children


class NullAttention:
    """Packs groups as our attention does, and attends to nothing."""

    pads = True
    short_queries = 8

    def __init__(self) -> None:
        planner = TreePlanner(16, 8, 128, 2, TreeTuning())
        self.pack, self.pack_extends = planner.pack, planner.pack_extends

    def plan(self, *_: Any) -> None:
        return None


class NullModel:
    """Tensors of the right shapes, without memory.  Sizes are Qwen3-0.6B's, as far as anybody asks."""

    def __init__(self, device: torch.device) -> None:
        sizes = {"heads": 16, "kv_heads": 8, "head_dim": 128, "hidden": 1024, "intermediate": 3072}
        self.config = type("Config", (), {"vocabulary": VOCABULARY, "windows": (None,), **sizes})
        self._device = device

    def forward(self, tokens_T: torch.Tensor, *others: Any) -> torch.Tensor:
        wanted_N = others[-1]
        return torch.empty(len(tokens_T if wanted_N is None else wanted_N), 1, device=self._device)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.empty(len(hidden), VOCABULARY, device=self._device)


def measure_launch(steps: list[Step], rounds: int) -> list[dict[str, float]]:
    """Send steps through the GPU's runner; give the least milliseconds of CPU of each in which rows begin."""
    device = torch.device("meta")
    pool = type("Pool", (), {"entries": [torch.zeros(2, 16)], "dummy_slot": 1})()
    rows = Rows(ROWS, CONTEXT, VOCABULARY, device, staged=True)
    for module, kernel in ((prefixes, "write_prefixes"), (device_draw, "write_parameters")):
        setattr(module, kernel, lambda *_: None)  # the host's part of both is done, and nothing is launched
    made: Any = NullModel(device), pool, NullAttention(), rows
    runner = DeviceRunner(*made, draw=DeviceDraw(rows), capture=False)
    found: dict[int, list[float]] = {}
    for _ in range(rounds):
        rows.clear()
        for place, step in enumerate(steps):
            begun = time.thread_time()
            if step.extends:
                runner.forward(step)
                found.setdefault(place, []).append(1e3 * (time.thread_time() - begun))
            else:
                runner._prepare(step)
                read_decodes(step, rows)
    return [
        {"begin": len(steps[place].extends), "decode": len(steps[place].decode_rows) // 4, "ms": min(times)}
        for place, times in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="25^2*1024/8")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--step-ms", type=float, default=2.0)
    parser.add_argument("--json", type=Path, default=RESULTS / "branches.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    assert threading.current_thread() is threading.main_thread()
    loop, steps, children = asyncio.run(measure_loop(arguments))
    with torch.inference_mode():
        launches = measure_launch(steps, arguments.rounds)
    table = Table(title=f"{arguments.workload}: us of the loop's CPU a child, {children} of them")
    for name in loop:
        table.add_column(name, justify="right")
    table.add_row(*(f"{figure:.1f}" for figure in loop.values()))
    Console(width=110).print(table)
    table = Table(title="ms of the worker's CPU to launch a step")
    for name in ("begin", "decode", "ms"):
        table.add_column(name, justify="right")
    for launch in launches:
        table.add_row(f"{launch['begin']}", f"{launch['decode']}", f"{launch['ms']:.2f}")
    Console(width=110).print(table)
    write_record(
        arguments.json,
        workload=arguments.workload,
        children=children,
        rounds=arguments.rounds,
        loop_us_a_child=loop,
        launches=launches,
    )


if __name__ == "__main__":
    main()
