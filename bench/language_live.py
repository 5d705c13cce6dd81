"""What the language costs while programs live: memory and threads, a tree of branches, and the first streamed chunk."""

from __future__ import annotations

import asyncio
import gc
import statistics
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

LIVE = 10_000
STREAMED = 1000
PACE_S = 0.002
"""How far apart the backends' first chunks are: what is measured is one chunk's way, not a queue of them."""

ITEM = {"first": "What is the capital of France?", "second": "And of Japan?"}


def question_body(lang: Any) -> Any:
    def question(s, number):
        s += f"Question {number}: "
        s += lang.gen("answer", max_tokens=64)

    return lang.function(question)


def tree_body(lang: Any, width: int) -> Any:
    """Give a program that forks `width` times, and each branch as often again."""

    def tree(s):
        s += "root "
        outer = s.fork(width)
        inners = []
        for index, branch in enumerate(outer):
            branch += f"{index} "
            inner = branch.fork(width)
            inner += lambda number: f"{number} " + lang.gen("leaf", max_tokens=64)
            inners.append(inner)
        for inner in inners:
            inner.join()
        outer.join()

    return lang.function(tree)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def settle(backend: Any, generations: int) -> None:
    while backend.generations < generations:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def live(body: Any) -> dict[str, float]:
    """Hold many programs that wait in their first generation, then cancel them."""
    import psutil

    import callboard

    process = psutil.Process()
    async with callboard.NullBackend(latency_s=3600.0, text="Paris") as backend:
        tasks = [asyncio.ensure_future(body.arun(backend=backend, **ITEM)) for _ in range(100)]
        await settle(backend, 100)
        threads, before = process.num_threads(), process.memory_info().rss
        tasks += [asyncio.ensure_future(body.arun(backend=backend, **ITEM)) for _ in range(LIVE)]
        await settle(backend, 100 + LIVE)
        after, threads = process.memory_info().rss, process.num_threads() - threads
        started = time.process_time()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        cancelling = time.process_time() - started
    return {
        "bytes": (after - before) / LIVE,
        "cancel_us": cancelling / len(tasks) * 1e6,
        "threads_more": float(threads),
    }


async def branches(width: int) -> dict[str, float]:
    """Run a tree of width x width branches to its end, and hold another while all of its leaves generate."""
    import psutil

    import callboard

    body, leaves = tree_body(callboard, width), width * width
    async with callboard.NullBackend(text="Paris") as backend:
        await tree_body(callboard, 5).arun(backend=backend)
        wall, cpu = time.perf_counter(), time.process_time()
        state = await body.arun(backend=backend)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        assert state["leaf"] == [["Paris"] * width] * width, "a branch did not come to its end"
    del state
    gc.collect()
    process = psutil.Process()
    async with callboard.NullBackend(latency_s=3600.0, text="Paris") as backend:
        before = process.memory_info().rss
        task = asyncio.ensure_future(body.arun(backend=backend))
        await settle(backend, leaves)
        size = (process.memory_info().rss - before) / leaves
        started = time.process_time()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        cancelling = time.process_time() - started
    return {
        "branches": float(leaves),
        "cpu_us": cpu / leaves * 1e6,
        "wall_s": wall,
        "bytes": size,
        "cancel_us": cancelling / leaves * 1e6,
    }


async def first_chunk() -> dict[str, float]:
    """Stream many programs at once, and time each first chunk from the backend to its reader."""
    import callboard
    from callboard.actors.backend import Prompt
    from callboard.actors.messages import Delta, Finish
    from callboard.actors.sampling import SamplingParams

    said: dict[str, float] = {}
    heard: dict[str, float] = {}
    waiting: deque[asyncio.Future[None]] = deque()
    ends = asyncio.Event()

    class Dripping(callboard.NullBackend):
        async def generate(self, prompt: Prompt, sampling: SamplingParams) -> AsyncGenerator[Delta, None]:  # noqa: ARG002
            go = asyncio.get_running_loop().create_future()
            waiting.append(go)
            await go
            said[prompt.text] = time.perf_counter()
            yield Delta(text="Paris")
            await ends.wait()
            yield Delta(finish=Finish(reason="stop", completion_tokens=5))

    body = question_body(callboard)

    async def read(number: int, backend: Any) -> None:
        state = await body.arun(number, backend=backend, stream=True)
        async for _ in state.text_async_iter("answer"):
            heard.setdefault(f"Question {number}: ", time.perf_counter())

    async with Dripping() as backend:
        tasks = [asyncio.ensure_future(read(number, backend)) for number in range(STREAMED)]
        while len(waiting) < STREAMED:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        while waiting:
            waiting.popleft().set_result(None)
            await asyncio.sleep(PACE_S)
        ends.set()
        await asyncio.gather(*tasks)
    return _delays(said, heard)


def peer_first_chunk() -> dict[str, float]:
    """Do the same with SGLang's frontend, whose programs and readers are threads."""
    import sglang
    from sglang.lang.backend.base_backend import BaseBackend
    from sglang.lang.chat_template import get_chat_template

    said: dict[str, float] = {}
    heard: dict[str, float] = {}
    waiting: deque[threading.Event] = deque()
    ends = threading.Event()

    class Dripping(BaseBackend):
        def __init__(self) -> None:
            super().__init__()
            self.chat_template = get_chat_template("default")

        def get_chat_template(self):
            return self.chat_template

        def generate_stream(self, s, sampling_params):  # noqa: ARG002
            go = threading.Event()
            waiting.append(go)
            go.wait()
            said[s.text_] = time.perf_counter()
            yield "Paris", {}
            ends.wait()

    body, backend = question_body(sglang), Dripping()

    def read(number: int) -> None:
        state = body.run(number, backend=backend, stream=True)
        for text in state.text_iter("answer"):
            if text:
                heard.setdefault(f"Question {number}: ", time.perf_counter())

    readers = [threading.Thread(target=read, args=(number,)) for number in range(STREAMED)]
    for reader in readers:
        reader.start()
    while len(waiting) < STREAMED:
        time.sleep(0.01)
    while waiting:
        waiting.popleft().set()
        time.sleep(PACE_S)
    ends.set()
    for reader in readers:
        reader.join()
    return _delays(said, heard)


def _delays(said: dict[str, float], heard: dict[str, float]) -> dict[str, float]:
    assert said.keys() == heard.keys(), "a reader got no chunk"
    delays = [(heard[text] - said[text]) * 1e3 for text in said]
    return {"median_ms": statistics.median(delays), "p99_ms": percentile(delays, 0.99), "programs": float(len(delays))}
