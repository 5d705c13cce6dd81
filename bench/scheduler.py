"""Measure what one step costs the scheduler, alone, against a worker that answers at once.

The real actor runs in a real supervisor; the worker is a ref that answers each Step with random tokens, so the time
of a step is the scheduler's own plus two messages (and, where requests come and go, the bench's making of them).

    step, p90   wall time between two steps, median and 90th percentile
    CPU         thread time a step, the mean: what else runs on the machine does not count
    own CPU     that part of it inside the scheduler, as it counts it itself, its start included

Of several rounds the one with the least CPU time counts: what other processes take away is nobody's merit.

    python bench/scheduler.py [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from callboard.actors.core import Supervisor
from callboard.actors.messages import Generate, SchedulerStatistics, Step, StepDone
from callboard.actors.sampling import SamplingParams
from callboard.actors.scheduler import Scheduler, SchedulerOptions
from callboard.bench.record import write_record

RESULTS = Path(__file__).parent / "results"
TARGETS = {1: 150.0, 256: 400.0}


class NullWorker:
    """A ref to a worker that takes no time: it answers as it is told."""

    name = "worker"

    def __init__(self) -> None:
        self.scheduler: Any = None
        self.held: list[Step] = []
        self.hold = True  # answer nothing while requests are being posted
        self.steps = 0
        self.decodes = 0
        self.marks: list[float] = []
        self.cpu: list[float] = []
        self.until = 1 << 60
        self.reached = asyncio.Event()

    def post(self, message: Any) -> None:
        if isinstance(message, Step):
            self.answer(message)

    async def tell(self, message: Any) -> None:
        self.post(message)

    def answer(self, step: Step) -> None:
        if self.hold:
            self.held.append(step)
            return
        begun = np.array([extend.row for extend in step.extends if extend.sample], np.int32)
        rows = np.concatenate((begun, np.frombuffer(step.decode_rows, np.int32)))
        self.steps += 1
        self.decodes += len(rows)
        self.marks.append(time.perf_counter())
        self.cpu.append(time.thread_time())
        if self.steps >= self.until:
            self.reached.set()
        tokens = np.full(len(rows), 7, np.int32)
        self.scheduler.post(StepDone(step.number, rows.tobytes(), tokens.tobytes()))

    def release(self) -> None:
        self.hold = False
        held, self.held = self.held, []
        for step in held:
            self.answer(step)


class Sink:
    """A ref to a detokenizer that reads nothing."""

    name = "detokenizer"

    def post(self, message: Any) -> None:
        pass

    async def tell(self, message: Any) -> None:
        pass


def _prompt(rng: np.random.Generator, length: int) -> bytes:
    return rng.integers(0, 4000, length, dtype=np.int32).tobytes()


async def measure(
    *,
    rows: int,
    waiting: int = 0,
    tree: int = 0,
    policy: str = "longest-prefix",
    steps: int = 400,
    churn: bool = False,
    stems: int = 0,
    share_attention: bool = True,
) -> dict[str, float]:
    """Run `rows` requests with `waiting` behind them and `tree` tokens in the cache; time the steps in the middle.

    churn: requests of 32 tokens each end and begin all the time, so that every step admits; else all only decode.
    stems: prompts begin with one of so many texts of 2,048 tokens, so that rows attend to these together.
    """
    rng = np.random.default_rng(1)
    worker = NullWorker()
    length = 32 if churn else steps * 3
    options = SchedulerOptions(
        slots=rows * (length + 128) + tree + 4096 + 2048 * stems,
        rows=rows,
        chunk_tokens=max(8192, rows * 64),
        policy=policy,  # type: ignore[arg-type]
        share_attention=share_attention,
    )
    begins = [_prompt(rng, 2048) for _ in range(stems)]

    def prompt(number: int) -> bytes:
        return (begins[number % stems] if stems else b"") + _prompt(rng, 32)

    async with Supervisor("bench") as root:
        actor: list[Scheduler] = []

        def make() -> Scheduler:
            actor.append(Scheduler(options, worker, Sink(), None, clock=time.thread_time))  # type: ignore[arg-type]
            return actor[0]

        ref = await root.spawn(make, name="scheduler", mailbox=100_000)
        worker.scheduler = ref
        memory = actor[0].state.memory
        while memory.tree.tokens < tree:  # prompts of 64 tokens that share 16 with others
            stem = _prompt(np.random.default_rng(int(rng.integers(0, 1 + tree // 256))), 16)
            text = stem + _prompt(rng, 48)
            known = memory.tree.known(text)
            memory.give(memory.tree.insert(text, memory.take(64))[1]) if known < 64 else None
        sampling = SamplingParams(max_new_tokens=length, seed=1, ignore_eos=True)
        for number in range(rows + waiting):
            ref.post(Generate(number, prompt(number), sampling))
        await ref.ask(SchedulerStatistics())  # behind them all
        told = rows + waiting
        start = 100
        worker.until = start + steps
        worker.release()
        while churn and worker.steps < start + steps:  # as many come as go
            for _ in range(rows + waiting - len(actor[0].state.live)):
                ref.post(Generate(told, prompt(told), sampling))
                told += 1
            await asyncio.sleep(0)
        await worker.reached.wait()
        host = await ref.ask(SchedulerStatistics())
        marks = np.diff(np.array(worker.marks[start : start + steps])) * 1e6
        cpu = (worker.cpu[start + steps - 1] - worker.cpu[start]) / (steps - 1) * 1e6
        worker.hold = True
    return {
        "step_us": float(np.median(marks)),
        "p90_us": float(np.percentile(marks, 90)),
        "cpu_us": cpu,
        "own_us": host["host_seconds_a_step"] * 1e6,
    }


def best(rounds: int, **case: Any) -> dict[str, float]:
    """Take the best of several rounds, each in a loop of its own."""
    return min((asyncio.run(measure(**case)) for _ in range(rounds)), key=lambda figures: figures["cpu_us"])


def cases(quick: bool) -> list[tuple[str, dict[str, Any]]]:
    """Name what is varied: rows, queue length, tree size, churn."""
    rows = [1, 256] if quick else [1, 4, 16, 64, 128, 256, 512]
    found: list[tuple[str, dict[str, Any]]] = [("rows", {"rows": count}) for count in rows]
    found += [("waiting", {"rows": 64, "waiting": count}) for count in ([4000] if quick else [0, 100, 1000, 4000])]
    found += [
        ("tree", {"rows": 64, "tree": count}) for count in ([100_000] if quick else [0, 10_000, 100_000, 1_000_000])
    ]
    for policy in ("first-come", "longest-prefix"):
        queues = [4000] if quick else [0, 1000, 4000]
        found += [
            (f"churn {policy}", {"rows": 64, "waiting": count, "tree": 50_000, "churn": True, "policy": policy})
            for count in queues
        ]
    for churn in (False, True):  # rows that share nothing, then 4 texts, without and with groups
        for stems, share in ((0, False), (0, True), (4, False), (4, True)):
            name = f"{stems or 'no'} groups, {'churn' if churn else 'steady'}{'' if share else ', off'}"
            found.append((name, {"rows": 256, "stems": stems, "share_attention": share, "churn": churn}))
    return found


def plot(results: list[dict[str, Any]]) -> str:
    """Draw CPU microseconds a step against what is varied, one panel each, as SVG."""
    panels = [
        ("rows", "rows", "rows"),
        ("waiting", "waiting", "requests waiting, 64 rows"),
        ("tree", "tree", "tokens in the tree, 64 rows"),
    ]
    drawn = {name for name, _, _ in panels}
    top = 1.15 * max(item["cpu_us"] for item in results if item["varied"] in drawn)
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="960" height="300" font-family="sans-serif" font-size="11">'
    ]
    parts.append(
        '<rect width="960" height="300" fill="white"/><text x="20" y="18">CPU time a step, microseconds</text>'
    )
    for panel, (name, key, label) in enumerate(panels):
        chosen = [item for item in results if item["varied"] == name]
        left, width = 50 + 310 * panel, 260
        places = [left + width * index / max(1, len(chosen) - 1) for index in range(len(chosen))]
        heights = [250 - 210 * item["cpu_us"] / top for item in chosen]
        parts.append(f'<path d="M{left} 40V250H{left + width}" fill="none" stroke="black"/>')
        line = " ".join(f"{x:.0f},{y:.0f}" for x, y in zip(places, heights, strict=True))
        parts.append(f'<polyline points="{line}" fill="none" stroke="#2060c0" stroke-width="2"/>')
        for x, y, item in zip(places, heights, chosen, strict=True):
            parts.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="3" fill="#2060c0"/>')
            parts.append(f'<text x="{x:.0f}" y="{y - 8:.0f}" text-anchor="middle">{item["cpu_us"]:.0f}</text>')
            parts.append(f'<text x="{x:.0f}" y="265" text-anchor="middle">{item.get(key, 0)}</text>')
        parts.append(f'<text x="{left + width / 2}" y="285" text-anchor="middle">{label}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    table = Table(title="the scheduler alone, microseconds a step")
    for name in ("varied", "rows", "waiting", "tree tokens", "step", "p90", "CPU", "own CPU", "target"):
        table.add_column(name, justify="left" if name == "varied" else "right")
    results = []
    for name, case in cases(arguments.quick):
        figures = best(arguments.rounds, **case)
        target = TARGETS.get(case["rows"]) if name == "rows" else None
        results.append({"varied": name, **case, **figures, "target_us": target})
        table.add_row(
            name,
            str(case["rows"]),
            str(case.get("waiting", 0)),
            str(case.get("tree", 0)),
            f"{figures['step_us']:.0f}",
            f"{figures['p90_us']:.0f}",
            f"{figures['cpu_us']:.0f}",
            f"{figures['own_us']:.0f}",
            f"{target:.0f}" if target else "",
        )
    Console(width=100).print(table)
    write_record(RESULTS / "scheduler.json", bench="scheduler", rounds=arguments.rounds, results=results)
    (RESULTS / "scheduler.svg").write_text(plot(results))


if __name__ == "__main__":
    main()
