"""Measure what a token costs the event loop on its way from the worker to who reads it.

The engine is whole, but for its worker: a thread that answers each step with words of a text, one step every few
milliseconds, so that nothing merges and the loop sleeps in between, as beside a GPU.  What the loop's thread works
between two steps is read from that thread's own clock, and divided by the rows; what else runs on the machine counts
only as far as it empties the caches.

    stream      `async for delta in engine.generate(...)`, one task a row
    complete    `await engine.complete(...)`
    program     a program that generates once, `await program.arun()`
    floor       as many tasks of asyncio's that wait for a step and look at one object, and nothing else

Quantiles over the steps in which all rows decode.  Calls: of Python functions, frames that go on included, in a run
that is counted and not timed.  Parts, by the wall, in a run of their own: a step's plan and its settling at the
scheduler, the detokenizer, the dispatcher with its ledger and readers, waking with what the woken tasks do; what is
left is the loop's, the mailboxes' and the messages'.

    python bench/token_path.py [--rows 256] [--tokens 100] [--rounds 4] [--step-ms 8] [--text "..."]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import queue
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import anyio
import anyio.lowlevel
import numpy as np
from rich.console import Console
from rich.table import Table

import callboard
from callboard.actors import tree
from callboard.actors.core import Actor
from callboard.actors.detokenizer import Detokenizer
from callboard.actors.dispatcher import Dispatcher
from callboard.actors.engine import Engine
from callboard.actors.engine_options import model_folder
from callboard.actors.messages import Step, StepDone, WorkerStatistics
from callboard.actors.sampling import SamplingParams
from callboard.actors.scheduler import scheduler
from callboard.actors.scheduler.planner import Planner
from callboard.actors.tokenizer import load_vocabulary
from callboard.actors.waker import Sleeper, Waker
from callboard.actors.worker import Describe, WorkerDescription
from callboard.bench.record import write_record

RESULTS = Path(__file__).parent / "results"
TEXT = (
    "The committee met on Tuesday to discuss the naïve proposal, which had been sent round the week before. Nobody had "
    "read it, whatever they said; “everyone” had. 東京 is far away, and 42 people were late. "
)
SHORT = 4  # tokens of a run that only begins and ends


class Words:
    """What the stand-in answers, and what it notes: rows and the loop's clock, at each step."""

    def __init__(self, rows: int, step_s: float, text: str = TEXT) -> None:
        vocabulary = load_vocabulary(model_folder("embedded"))
        self.rows, self.step_s = rows, step_s
        self.size = vocabulary.get_vocab_size()
        self.tokens = np.array(vocabulary.encode(text * 3).ids, np.int32)
        self.clock = time.pthread_getcpuclockid(threading.get_ident())
        self.noted: list[tuple[int, float]] = []

    def costs(self) -> list[float]:
        """Give microseconds a row of each step since the last call, in order of size."""
        noted, self.noted = self.noted, []
        pairs = itertools.pairwise(noted)
        return sorted(1e6 * (b[1] - a[1]) / self.rows for a, b in pairs if a[0] == b[0] == self.rows)


class WordWorker(Actor[Any]):
    """A worker that computes nothing."""

    def __init__(self, words: Words, report: Callable[[StepDone], None]) -> None:
        self._words, self._report = words, report
        self._steps: queue.SimpleQueue[Step | None] = queue.SimpleQueue()
        threading.Thread(target=self._live, daemon=True).start()

    async def __aexit__(self, *error: object) -> None:
        self._steps.put(None)

    async def receive(self, message: Any) -> Any:
        match message:
            case Step():
                self._steps.put(message)
            case WorkerStatistics():
                return {}
            case Describe():
                return WorkerDescription(
                    architecture="words", max_rows=self._words.rows, context_length=4096, vocabulary=self._words.size,
                    kv_slots=self._words.rows * 4096, eos_ids=(0,), joins=True, device="cpu", dtype="float32",
                    kv_dtype="float32", kv_scales="", kv_bytes=0, load_s=0.0,
                )  # fmt: skip
        return None

    def _live(self) -> None:
        words, number, due = self._words, 0, 0.0
        while (step := self._steps.get()) is not None:
            begun = np.array([extend.row for extend in step.extends if extend.sample], np.int32)
            rows = np.concatenate((begun, np.frombuffer(step.decode_rows, np.int32)))
            time.sleep(max(0.0, due - time.perf_counter()))
            due = time.perf_counter() + words.step_s
            words.noted.append((len(rows), time.clock_gettime(words.clock)))
            number += 1
            tokens = words.tokens[(number + 7 * rows) % len(words.tokens)]
            self._report(StepDone(step.number, rows.tobytes(), tokens.tobytes()))


@callboard.function
def program(s: Any, count: int) -> None:
    s += "It begins. "
    s += callboard.gen("text", max_tokens=count, ignore_eos=True, temperature=0)


async def one(engine: Engine, mode: str, row: int, count: int) -> None:
    """Run one generation to its end."""
    prompt = np.array([5 + row % 200, 6 + row // 200, 7, 8], np.int32).tobytes()
    sampling = SamplingParams(max_new_tokens=count, ignore_eos=True, temperature=0.0)
    given = 0
    match mode:
        case "stream":
            async for delta in engine.generate(prompt, sampling):
                given += len(delta.tokens)
        case "complete":
            given = len((await engine.complete(prompt, sampling)).tokens)
        case _:
            state = await program.arun(count=count, backend=engine)
            given = state.get_meta_info("text")["completion_tokens"]
    if given != count:
        raise RuntimeError(f"{given} tokens came instead of {count}")


async def run(engine: Engine, words: Words, mode: str, count: int) -> None:
    async with anyio.create_task_group() as group:
        for row in range(words.rows):
            group.start_soon(one, engine, mode, row, count)


async def counted(work: Callable[[], Awaitable[None]]) -> int:
    """Count calls of Python functions in this thread while it works."""
    calls = 0

    def note(_: Any, event: str, __: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    try:
        await work()
    finally:
        sys.setprofile(None)
    return calls


@contextmanager
def parted(parts: dict[str, list[float]]) -> Iterator[None]:
    """Note how long each part takes, in microseconds, each time."""
    places: list[tuple[Any, str, str]] = [
        (Planner, "plan", "plan"), (scheduler, "settle", "settle"), (Detokenizer, "_step", "text"),
        (Dispatcher, "_news", "readers"), (Waker, "_wake_all", "wake"),
    ]  # fmt: skip
    with ExitStack() as stack:
        for owner, name, part in places:
            stack.enter_context(patch.object(owner, name, timed(getattr(owner, name), parts.setdefault(part, []))))
        yield


def timed(work: Callable[..., Any], took: list[float]) -> Callable[..., Any]:
    def note(*arguments: Any) -> Any:
        begun = time.perf_counter_ns()
        try:
            return work(*arguments)
        finally:
            took.append((time.perf_counter_ns() - begun) / 1000)

    async def note_async(*arguments: Any) -> Any:
        begun = time.perf_counter_ns()
        try:
            return await work(*arguments)
        finally:
            took.append((time.perf_counter_ns() - begun) / 1000)

    return note_async if asyncio.iscoroutinefunction(work) else note


async def floor(words: Words, steps: int) -> list[float]:
    """Measure what a step costs as many tasks that do nothing but wait for it; microseconds a row, in order of size."""
    loop, waker = asyncio.get_running_loop(), Waker()
    readers = [Sleeper(waker) for _ in range(words.rows)]

    over = False  # a step that comes before the one before it has been read wakes nobody

    async def read(reader: Sleeper) -> None:
        given = 0
        while not over:
            await reader.sleep()
            given += len(TEXT)

    def wake() -> None:
        for reader in readers:
            reader.wake()

    def end() -> None:
        nonlocal over
        over = True
        wake()

    def work() -> None:
        for _ in range(steps):
            time.sleep(words.step_s)
            words.noted.append((words.rows, time.clock_gettime(words.clock)))
            loop.call_soon_threadsafe(wake)
        loop.call_soon_threadsafe(end)

    tasks = [asyncio.create_task(read(reader)) for reader in readers]
    await anyio.lowlevel.checkpoint()
    threading.Thread(target=work).start()
    await asyncio.gather(*tasks)
    return words.costs()


async def measure(arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    words = Words(arguments.rows, arguments.step_ms / 1000, arguments.text)
    tree.Worker = lambda options, report, grammars: WordWorker(words, report)  # type: ignore[misc,assignment]  # noqa: ARG005
    found: dict[str, dict[str, float]] = {}
    async with Engine("embedded", max_rows=arguments.rows) as engine:
        for mode in ("stream", "complete", "program"):
            await run(engine, words, mode, SHORT)
            words.costs()
            for _ in range(arguments.rounds):
                await run(engine, words, mode, arguments.tokens)
            costs = words.costs()
            ends = await counted(partial(run, engine, words, mode, SHORT))
            calls = await counted(partial(run, engine, words, mode, SHORT + arguments.tokens))
            words.costs()
            parts: dict[str, list[float]] = {}
            with parted(parts):
                await run(engine, words, mode, arguments.tokens)
            words.costs()
            found[mode] = {
                **quantiles(costs),
                "calls": (calls - ends) / (arguments.rows * arguments.tokens),
                **each(parts, words.rows, arguments.tokens),
            }
    parts = {}
    with parted(parts):
        costs = await floor(words, arguments.tokens * arguments.rounds)
    found["floor"] = {**quantiles(costs), **each(parts, words.rows, arguments.tokens)}
    return found


def quantiles(costs: list[float]) -> dict[str, float]:
    return {f"us_p{percent}": costs[len(costs) * percent // 100] for percent in (5, 20, 50)}


def each(parts: dict[str, list[float]], rows: int, steps: int) -> dict[str, float]:
    """Give what each part takes a row, at 20 % of the steps; of parts that most of the steps have."""
    return {part: sorted(took)[len(took) // 5] / rows for part, took in parts.items() if len(took) > steps // 2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--step-ms", type=float, default=8.0)
    parser.add_argument("--text", default=TEXT, help="what the rows say")
    parser.add_argument("--json", type=Path, default=RESULTS / "token_path.json")
    arguments = parser.parse_args()
    found = asyncio.run(measure(arguments))
    table = Table(title=f"a token on the event loop, us of CPU, {arguments.rows} rows a step")
    for name in ("read by", "5 %", "20 %", "median", "calls", "plan", "settle", "text", "readers", "wake"):
        table.add_column(name, justify="left" if name == "read by" else "right")
    for mode, figures in found.items():
        table.add_row(mode, *(f"{figures[name]:.2f}" if name in figures else "" for name in found["stream"]))
    Console().print(table)
    write_record(
        arguments.json,
        rows=arguments.rows,
        tokens=arguments.tokens,
        step_ms=arguments.step_ms,
        text=arguments.text,
        aim_us=2.9,
        results=found,
    )


if __name__ == "__main__":
    main()
