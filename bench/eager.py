"""What a program that waits on a tool has said, computed meanwhile: time to the first token behind it, on and off.

    python bench/eager.py [--rounds 12] [--tokens 400] [--tool-ms 50]

A chat of two turns on the model that ships, one torch thread.  Behind the first answer the program says `tokens` tokens
of constant instructions, calls a tool that takes its time (`short`, and `long`, ten times that), says its result, and
generates again.  Two engines live side by side, one with `eager=False`; they take turns.

    turn two    from the tool's return to the first token of the second turn
    beside      a stranger's request of one short prompt, asked 5 ms after the tool is called: to its first token

The limit of turn two is what a warm cache would take: the same turn again, all but the last tokens cached.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import anyio

import callboard as cb
from callboard import Engine, SamplingParams

ROOT = Path(__file__).parent.parent
RESULT = "\nThe tool says: nineteen degrees, and no rain.\n"


@cb.function
async def chat(s: Any, question: str, rules: str, tool_s: float, found: dict[str, float]) -> None:
    s += f"user: {question}\nassistant: " + cb.gen("first", max_tokens=8, temperature=0)
    await s.aget("first")
    s += rules
    await anyio.sleep(tool_s)
    begun = time.perf_counter()
    s += RESULT + cb.gen("second", max_tokens=1, temperature=0)
    await s.aget("second")
    found["turn_two_s"] = time.perf_counter() - begun
    found["cached"] = (await s.aget_meta_info("second"))["cached_tokens"]


async def stranger(engine: Engine, number: int, found: dict[str, float]) -> None:
    begun = time.perf_counter()
    await engine.complete(f"{number} strangers came by.", SamplingParams(max_new_tokens=1))
    found["beside_s"] = time.perf_counter() - begun


async def turn(engine: Engine, number: int, rules: str, tool_s: float, *, beside: bool) -> dict[str, float]:
    """Run one chat from an empty cache, and a stranger beside it if asked for."""
    await engine.flush()
    found: dict[str, float] = {}
    async with anyio.create_task_group() as group:
        group.start_soon(chat_of, engine, number, rules, tool_s, found)
        if beside:
            while not (await engine.statistics())["scheduler"]["programs_paused"]:  # noqa: ASYNC110 - two actors away
                await anyio.sleep(0.001)
            await anyio.sleep(0.005)
            await stranger(engine, number, found)
    return found


async def chat_of(engine: Engine, number: int, rules: str, tool_s: float, found: dict[str, float]) -> None:
    await chat.arun(f"What is number {number}?", rules, tool_s, found, backend=engine)


async def warm(engine: Engine, number: int, rules: str) -> float:
    """Tell how long the second turn takes if all of it is there."""
    text = f"user: {number}\n{rules}{RESULT}"
    await engine.complete(text, SamplingParams(max_new_tokens=0))
    begun = time.perf_counter()
    await engine.complete(text, SamplingParams(max_new_tokens=1))
    return time.perf_counter() - begun


async def main(options: argparse.Namespace) -> None:
    kinds = [("short", options.tool_ms / 1e3, False), ("long", options.tool_ms / 1e2, False)]
    kinds.append(("long, a stranger beside", options.tool_ms / 1e2, True))
    async with Engine(threads=1) as ahead, Engine(threads=1, eager=False) as plain:
        sentence = "Say what the tool has said, in one short line, and add nothing of your own. "
        size = len(await plain.encode(sentence, beginning=False)) // 4
        rules = sentence * (options.tokens // size)
        found: dict[str, dict[str, list[dict[str, float]]]] = {}
        limits: list[float] = []
        for number in range(options.rounds + 1):
            for kind, tool_s, beside in kinds:
                for name, engine in (("eager", ahead), ("not", plain)):
                    told = await turn(engine, number, rules, tool_s, beside=beside)
                    if number:  # the first round compiles and warms
                        found.setdefault(kind, {}).setdefault(name, []).append(told)
            limits.append(await warm(plain, number, rules))
        scheduler = (await ahead.statistics())["scheduler"]
    report(options, found, median(limits[1:]), {key: scheduler[key] for key in ("eager_tokens", "eager_tokens_used")})


def report(
    options: argparse.Namespace,
    found: dict[str, dict[str, list[dict[str, float]]]],
    limit_s: float,
    counts: dict[str, int],
) -> None:
    figures: list[dict[str, Any]] = []
    print(f"{'tool':24} {'':6} {'turn two ms':>12} {'cached':>7} {'beside ms':>10}")
    for kind, both in found.items():
        for name, runs in both.items():
            line: dict[str, Any] = {
                "tool": kind,
                "eager": name == "eager",
                "turn_two_ms": 1e3 * median(run["turn_two_s"] for run in runs),
                "cached_tokens": median(run["cached"] for run in runs),
            }
            if "beside_s" in runs[0]:
                line["beside_ms"] = 1e3 * median(run["beside_s"] for run in runs)
            figures.append(line)
            beside = f"{line['beside_ms']:10.1f}" if "beside_ms" in line else ""
            print(f"{kind:24} {name:6} {line['turn_two_ms']:12.1f} {line['cached_tokens']:7.0f} {beside}")
    print(f"limit: {1e3 * limit_s:.1f} ms. {counts}. Medians of {options.rounds}; load {os.getloadavg()[0]:.1f}.")
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "versions": {name: metadata.version(name) for name in ("callboard", "torch")},
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "workload": {key: getattr(options, key) for key in ("rounds", "tokens", "tool_ms")},
        "limit_ms": 1e3 * limit_s,
        "figures": figures,
        **counts,
    }
    (ROOT / "bench" / "results" / "eager.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--tool-ms", type=float, default=50.0)
    anyio.run(main, parser.parse_args())
