"""Constrained JSON on the embedded engine: the steps that fast-forward saves, and what a mask costs a token.

    python bench/constrained.py [--rounds 12] [--rows 32] [--tokens 128]

One process, the model that ships, one torch thread.

    steps    the tutorial's character (a regex), greedily and at temperature 1, one request alone and `rows` at once;
             the scheduler's steps with fast-forward off and on
    token    `rows` requests of `tokens` tokens each, at temperature 1, fast-forward off: free, bound by the schema of
             an array of objects too long to end, by many characters' regex, and by one of words.  A round is each of
             them once, each round begins with another one, and a kind is compared with the free tokens of its own
             round: what is told is the median of the rounds' ratios, and between which quartiles they lie.  Free tokens
             are measured twice a round, and "free again" is what the same work differs from itself.  Three times: by
             the clock; of the model's thread, which is what a token waits for where masks have a core to be filled on;
             and of the whole process, which is what it costs all cores together
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from callboard.actors.engine import Engine
from callboard.actors.sampling import SamplingParams

RESULTS = Path(__file__).parent / "results"
SAVED_AIM, COST_AIM = 0.60, 0.05
OPTIONS: dict[str, Any] = {"threads": 1, "seed": 0}
CHARACTER = (
    r"""\{\n "name": "[\w\d\s]{1,16}",\n "house": "(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)",\n"""
    r""" "blood status": "(Pure-blood|Half-blood|Muggle-born)",\n"""
    r""" "occupation": "(student|teacher|auror|ministry of magic|death eater|order of the phoenix)",\n"""
    r""" "wand": \{\n "wood": "[\w\d\s]{1,16}",\n "core": "[\w\d\s]{1,16}",\n "length": [0-9]{1,2}\.[0-9]{0,2}\n \},"""
    r"""\n "alive": "(Alive|Deceased)",\n "patronus": "[\w\d\s]{1,16}",\n "bogart": "[\w\d\s]{1,16}"\n\}"""
)
PEOPLE = {
    "type": "array",
    "minItems": 200,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 16},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    },
}
BOUND: dict[str, dict[str, Any]] = {
    "free": {},
    "free again": {},
    "schema": {"json_schema": json.dumps(PEOPLE)},
    "character": {"regex": f"({CHARACTER},){{50}}"},
    "words": {"regex": r"([A-Z]?[a-z]{1,12}[ ,.]){500}"},
}


async def together(engine: Engine, samplings: list[SamplingParams]) -> list[Any]:
    """Run these at once."""
    prompts = [f"{index} is a character. Fill in the following.\n" for index in range(len(samplings))]
    return await asyncio.gather(*map(engine.complete, prompts, samplings))


async def steps(rows: int, temperature: float, *, fast_forward: bool) -> dict[str, float]:
    """Count the steps of so many characters."""
    samplings = [
        SamplingParams(max_new_tokens=256, temperature=temperature, seed=index, regex=CHARACTER)
        for index in range(rows)
    ]
    async with Engine("embedded", fast_forward=fast_forward, **OPTIONS) as engine:
        await together(engine, samplings[:1])  # compiled, and warm
        before, cpu = (await engine.statistics())["scheduler"], time.process_time()
        done = await together(engine, samplings)
        cpu = time.process_time() - cpu
        after = (await engine.statistics())["scheduler"]
    assert all(one.finish.reason == "stop" for one in done)
    return {
        "steps": after["steps"] - before["steps"],
        "tokens": sum(one.finish.completion_tokens for one in done),
        "forced": after["forced_tokens"] - before["forced_tokens"],
        "cpu_s": cpu,
    }


def clocks() -> dict[str, float]:
    """Read the clock on the wall, that of the model's thread and that of the process, in seconds."""
    (model,) = [thread for thread in threading.enumerate() if thread.name == "callboard-worker"]
    assert model.ident is not None
    own = time.clock_gettime(time.pthread_getcpuclockid(model.ident))
    return {"wall": time.perf_counter(), "model_thread": own, "process": time.process_time()}


async def token_costs(rounds: int, rows: int, tokens: int) -> dict[str, list[dict[str, float]]]:
    """Measure microseconds a token of each kind, by each clock, in each round."""
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in BOUND}
    kinds = list(BOUND)
    async with Engine("embedded", fast_forward=False, **OPTIONS) as engine:
        for turn in range(rounds + 1):
            first = turn % len(kinds)
            for kind in kinds[first:] + kinds[:first]:
                samplings = [
                    SamplingParams(max_new_tokens=tokens, temperature=1.0, seed=index, ignore_eos=True, **BOUND[kind])
                    for index in range(rows)
                ]
                before = clocks()
                done = await together(engine, samplings)
                after = clocks()
                written = sum(one.finish.completion_tokens for one in done)
                assert written == rows * tokens, f"{kind}: {written} tokens"
                if turn:
                    found[kind].append({name: (after[name] - before[name]) / written * 1e6 for name in after})
    return found


def more_than_free(found: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, dict[str, float]]]:
    """Compare each round's tokens with the mean of that round's free ones: median and quartiles of what is more."""
    free = [
        {name: (one[name] + again[name]) / 2 for name in one}
        for one, again in zip(found["free"], found["free again"], strict=True)
    ]
    told: dict[str, dict[str, dict[str, float]]] = {}
    for kind, each in found.items():
        beside = found["free"] if kind == "free again" else free
        told[kind] = {}
        for name in each[0]:
            more = [one[name] / other[name] - 1 for one, other in zip(each, beside, strict=True)]
            low, middle, high = statistics.quantiles(more, n=4, method="inclusive")
            us = [one[name] for one in each]
            told[kind][name] = {
                "us": statistics.median(us), "least_us": min(us), "more": middle, "low": low, "high": high
            }  # fmt: skip
    return told


async def measure(rounds: int, rows: int, tokens: int) -> dict[str, Any]:
    """Measure everything."""
    found: list[dict[str, Any]] = []
    for count in (1, rows):
        for temperature in (0.0, 1.0):
            off = await steps(count, temperature, fast_forward=False)
            on = await steps(count, temperature, fast_forward=True)
            found.append({"rows": count, "temperature": temperature, "off": off, "on": on})
    costs = await token_costs(rounds, rows, tokens)
    return {"steps": found, "token": more_than_free(costs), "rounds_us": costs}


def tell_tokens(token: dict[str, dict[str, dict[str, float]]]) -> None:
    """Print what a token costs by each clock: the median, the least, and how much more than free."""
    for name in token["free"]:
        print(f"\n{name.replace('_', ' ') + ', us':18}{'median':>8}{'least':>8}{'more':>8}   quartiles of rounds")
        for kind, costs in token.items():
            one = costs[name]
            line = f"{kind:18}{one['us']:>8.1f}{one['least_us']:>8.1f}"
            print(line + (f"{one['more']:>8.1%}   {one['low']:.1%} to {one['high']:.1%}" if kind != "free" else ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error(f"--rounds {arguments.rounds}: quartiles want at least 2")
    measured = asyncio.run(measure(arguments.rounds, arguments.rows, arguments.tokens))
    print(f"{'character':24}{'steps off':>10}{'on':>6}{'saved':>8}{'aim':>6}{'CPU ms off':>12}{'on':>8}")
    for line in measured["steps"]:
        off, on = line["off"], line["on"]
        line["saved"] = 1 - on["steps"] / off["steps"]
        name = f"{line['rows']} rows, temperature {line['temperature']:g}"
        times = f"{off['cpu_s'] * 1e3:>12.0f}{on['cpu_s'] * 1e3:>8.0f}"
        print(f"{name:24}{off['steps']:>10}{on['steps']:>6}{line['saved']:>8.0%}{SAVED_AIM:>6.0%}{times}")
    tell_tokens(measured["token"])
    print(f"the aim is {COST_AIM:.0%} more; load average {os.getloadavg()[0]:.1f}")
    record = {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": platform.processor() or platform.machine(),
        "versions": {name: metadata.version(name) for name in ("torch", "llguidance", "numpy")},
        "load_average": os.getloadavg(),
        "rows": arguments.rows,
        "tokens": arguments.tokens,
        "rounds": arguments.rounds,
        "aims": {"saved": SAVED_AIM, "more_a_token": COST_AIM},
        **measured,
    }
    (RESULTS / "constrained.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
