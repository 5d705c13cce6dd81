"""Messages: our tell and ask beside a bare deque, asyncio.Queue, pykka and xoscar, in one run.

    python bench/messages.py [--xoscar PYTHON] [--rounds 60]

Each figure is the best of the rounds, microseconds a message; rounds are short and the contenders take turns, so that a
busy machine slows none of them alone. xoscar runs in an interpreter of its own, which has it installed. The table also
has the cost of an actor (spawn, close, memory of 10,000 live ones, beside bare tasks) and the simulation's speed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import time
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import psutil
import pykka

from callboard.actors.core import Actor, Ask, Inbox, Message, Supervisor, simulate

MESSAGES = 4_000  # a few milliseconds: short enough to fall between two turns of other processes
ASKS = 500
ACTORS = 10_000
BOUND = 1024
SIMULATED = 32


class Note(Message, frozen=True):
    number: int


class Double(Ask[int], frozen=True):
    number: int


class BareQueue:
    """The least that can be: a bounded deque with one waiter, a coroutine to put and a coroutine to handle."""

    def __init__(self) -> None:
        self.data: deque[Any] = deque()
        self.waiter: asyncio.Future[None] | None = None
        self.room: asyncio.Future[None] | None = None

    async def put(self, item: Any) -> None:
        while len(self.data) >= BOUND:
            self.room = asyncio.get_running_loop().create_future()
            await self.room
        self.data.append(item)
        if self.waiter is not None:
            self.waiter.set_result(None)
            self.waiter = None

    async def serve(self, handle: Callable[[Any], Awaitable[None]]) -> None:
        while True:
            while self.data:
                await handle(self.data.popleft())
                if self.room is not None:
                    self.room.set_result(None)
                    self.room = None
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter


class Count:
    """Sees messages; sets `done` at the last."""

    def __init__(self, total: int) -> None:
        self.left = total
        self.done = asyncio.Event()

    async def handle(self, _: Any) -> None:
        self.left -= 1
        if not self.left:
            self.done.set()


class Counter(Actor[Message]):
    def __init__(self, count: Count) -> None:
        self.left = count.left
        self.done = count.done

    async def receive(self, _: Message) -> Any:
        self.left -= 1
        if not self.left:
            self.done.set()


class Doubler(Actor[Double]):
    async def receive(self, message: Double) -> int:
        return 2 * message.number


class BatchCounter(Actor[Message]):
    def __init__(self, count: Count) -> None:
        self.count = count

    async def run(self, inbox: Inbox[Message]) -> None:
        while True:
            batch = await inbox.batch()
            self.count.left -= len(batch)
            if not self.count.left:
                self.count.done.set()


class PykkaCounter(pykka.ThreadingActor):
    def on_receive(self, message: Any) -> Any:
        return message


async def time_bare() -> float:
    queue, count, note = BareQueue(), Count(MESSAGES), Note(1)
    task = asyncio.create_task(queue.serve(count.handle))
    begin = time.perf_counter()
    for _ in range(MESSAGES):
        await queue.put(note)
    await count.done.wait()
    spent = time.perf_counter() - begin
    task.cancel()
    return spent / MESSAGES


async def time_bare_inline() -> float:
    """No coroutine at all: the producer appends, the consumer pops, waiting only when it is empty."""
    data: deque[Any] = deque()
    note, left = Note(1), MESSAGES
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] | None = None
    done = asyncio.Event()

    async def serve() -> None:
        nonlocal left, waiter
        while True:
            while data:
                data.popleft()
                left -= 1
            if not left:
                done.set()
            waiter = loop.create_future()
            await waiter

    task = asyncio.create_task(serve())
    await asyncio.sleep(0)
    begin = time.perf_counter()
    for number in range(MESSAGES):
        data.append(note)
        if waiter is not None:
            waiter.set_result(None)
            waiter = None
        if number % BOUND == 0:
            await asyncio.sleep(0)
    await done.wait()
    spent = time.perf_counter() - begin
    task.cancel()
    return spent / MESSAGES


async def time_queue() -> float:
    queue: asyncio.Queue[Any] = asyncio.Queue(BOUND)
    count, note = Count(MESSAGES), Note(1)

    async def serve() -> None:
        while True:
            await count.handle(await queue.get())

    task = asyncio.create_task(serve())
    begin = time.perf_counter()
    for _ in range(MESSAGES):
        await queue.put(note)
    await count.done.wait()
    spent = time.perf_counter() - begin
    task.cancel()
    return spent / MESSAGES


async def time_tell(kind: type[Counter] | type[BatchCounter]) -> float:
    count, note = Count(MESSAGES), Note(1)
    async with Supervisor("bench") as root:
        ref = await root.spawn(lambda: kind(count), name="counter", mailbox=BOUND)
        begin = time.perf_counter()
        for _ in range(MESSAGES):
            await ref.tell(note)
        await count.done.wait()
        return (time.perf_counter() - begin) / MESSAGES


async def time_ask() -> float:
    async with Supervisor("bench") as root:
        ref = await root.spawn(Doubler, name="doubler")
        question = Double(1)
        begin = time.perf_counter()
        for _ in range(ASKS):
            await ref.ask(question)
        return (time.perf_counter() - begin) / ASKS


def time_pykka() -> tuple[float, float]:
    ref = PykkaCounter.start()
    begin = time.perf_counter()
    for _ in range(ASKS):
        ref.tell(1)
    ref.ask(1)
    tell = (time.perf_counter() - begin) / ASKS
    begin = time.perf_counter()
    for _ in range(ASKS):
        ref.ask(1)
    ask = (time.perf_counter() - begin) / ASKS
    ref.stop()
    return tell, ask


XOSCAR = f"""
import asyncio, time, xoscar
class Counter(xoscar.Actor):
    def double(self, number): return 2 * number
async def main():
    await xoscar.create_actor_pool("127.0.0.1:28513", n_process=0)
    ref = await xoscar.create_actor(Counter, address="127.0.0.1:28513", uid="counter")
    best = 1.0
    for _ in range(20):
        begin = time.perf_counter()
        for _ in range({ASKS}): await ref.double(1)
        best = min(best, (time.perf_counter() - begin) / {ASKS})
    print("RESULT", best, xoscar.__version__)
asyncio.run(main())
"""


def time_xoscar(python: str) -> tuple[float, str]:
    done = subprocess.run([python, "-c", XOSCAR], capture_output=True, text=True, timeout=120, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT"):
            _, seconds, version = line.split()
            return float(seconds), version
    raise RuntimeError(f"xoscar gave no figure: {done.stderr[-500:]}")


async def time_actors() -> dict[str, float]:
    """Spawn, hold and close many actors, beside as many bare tasks."""

    async def bare() -> None:
        await asyncio.get_running_loop().create_future()

    process = psutil.Process()
    gc.collect()
    tasks: list[asyncio.Task[None]] = []
    bare_spawn = spawn = math.inf
    for _ in range(ACTORS // 100):
        begin = time.perf_counter()
        tasks.extend(asyncio.create_task(bare()) for _ in range(100))
        await asyncio.sleep(0)
        bare_spawn = min(bare_spawn, (time.perf_counter() - begin) / 100)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    del tasks
    gc.collect()
    before = process.memory_info().rss
    root = Supervisor("bench")
    async with root:
        count = Count(1)
        whole = time.perf_counter()
        for _ in range(ACTORS // 100):
            begin = time.perf_counter()
            for number in range(100):
                await root.spawn(lambda: Counter(count), name=f"{number}", restart="temporary")
            await asyncio.sleep(0)
            spawn = min(spawn, (time.perf_counter() - begin) / 100)
        mean = (time.perf_counter() - whole) / ACTORS
        memory = (process.memory_info().rss - before) / ACTORS
        begin = time.perf_counter()
    close = (time.perf_counter() - begin) / ACTORS
    return {
        "bare_task_spawn": bare_spawn,
        "spawn": spawn,
        "spawn_mean": mean,
        "close_mean": close,
        "memory_bytes": memory,
    }


def time_simulation() -> float:
    """Virtual seconds a real second, with 32 actors that each answer ten asks a virtual second."""

    async def main() -> None:
        class Worker(Actor[Message]):
            async def receive(self, _: Message) -> Any:
                await anyio.sleep(0.05)
                return 1

        async with Supervisor("bench") as root:
            refs = [await root.spawn(Worker, name=f"{number}") for number in range(SIMULATED)]

            async def client(key: int) -> None:
                for _ in range(100):
                    await refs[key].ask(Double(key))
                    await anyio.sleep(0.05)

            async with anyio.create_task_group() as tasks:
                for key in range(SIMULATED):
                    tasks.start_soon(client, key)

    best = 0.0
    for seed in range(5):
        begin = time.perf_counter()
        result = simulate.run(main, seed=seed)
        best = max(best, result.now / (time.perf_counter() - begin))
    return best


def measure(rounds: int, xoscar: str | None) -> tuple[dict[str, float], str | None]:
    samples: dict[str, list[float]] = {}
    version = None

    def keep(name: str, seconds: float) -> None:
        samples.setdefault(name, []).append(seconds * 1e6)

    for _ in range(rounds):
        keep("bare deque, inline", anyio.run(time_bare_inline))
        keep("bare deque and waiter", anyio.run(time_bare))
        keep("asyncio.Queue", anyio.run(time_queue))
        keep("callboard tell -> receive", anyio.run(time_tell, Counter))
        keep("callboard tell -> batch", anyio.run(time_tell, BatchCounter))
        keep("callboard ask", anyio.run(time_ask))
        tell, ask = time_pykka()
        keep("pykka tell", tell)
        keep("pykka ask", ask)
    if xoscar is not None:
        for _ in range(5):
            seconds, version = time_xoscar(xoscar)
            keep("xoscar ask, same pool", seconds)
    return {name: min(values) for name, values in samples.items()}, version


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--xoscar", help="a Python interpreter that has xoscar", default=None)
    options = parser.parse_args()
    figures, xoscar_version = measure(options.rounds, options.xoscar)
    actors = anyio.run(time_actors)
    speed = time_simulation()
    ratios = {
        "tell -> receive over bare deque and waiter (limit 1.5)": figures["callboard tell -> receive"]
        / figures["bare deque and waiter"],
        "pykka ask over ours (at least 3)": figures["pykka ask"] / figures["callboard ask"],
    }
    if "xoscar ask, same pool" in figures:
        ratios["xoscar ask over ours (at least 5)"] = figures["xoscar ask, same pool"] / figures["callboard ask"]
    ratios["simulated seconds a second (at least 10)"] = speed
    ratios["spawn over a bare task's"] = actors["spawn"] / actors["bare_task_spawn"]
    for name, value in figures.items():
        print(f"{name:56} {value:9.2f} us")
    for name in ("bare_task_spawn", "spawn", "spawn_mean", "close_mean"):
        print(f"{name + f', {ACTORS} live':56} {actors[name] * 1e6:9.2f} us")
    print(f"{'memory an actor':56} {actors['memory_bytes']:9.0f} bytes")
    for name, value in ratios.items():
        print(f"{name:56} {value:9.2f}")
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "load": os.getloadavg()[0],
        "versions": {
            "python": platform.python_version(),
            "pykka": importlib.metadata.version("pykka"),
            "anyio": importlib.metadata.version("anyio"),
            "xoscar": xoscar_version,
        },
        "rounds": options.rounds,
        "microseconds": figures,
        "actors": actors,
        "ratios": ratios,
    }
    path = Path(__file__).parent / "results" / "messages.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
