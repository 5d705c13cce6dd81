"""Constrained JSON on the embedded engine: the steps that fast-forward saves, and what a mask costs a token.

    python bench/constrained.py [--rounds 5] [--rows 32] [--tokens 128]

One process, the model that ships, one torch thread.

    steps    the tutorial's character (a regex), greedily and at temperature 1, one request alone and `rows` at once;
             the scheduler's steps with fast-forward off and on
    token    `rows` requests of `tokens` tokens each, at temperature 1, fast-forward off: free, bound by the schema of
             an array of objects too long to end, by many characters' regex, and by one of words; CPU time of the
             process, in turns, best of rounds
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
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


async def token_costs(rounds: int, rows: int, tokens: int) -> dict[str, float]:
    """Measure CPU microseconds a token of each kind, best of rounds."""
    best = dict.fromkeys(BOUND, float("inf"))
    async with Engine("embedded", fast_forward=False, **OPTIONS) as engine:
        for turn in range(rounds + 1):
            for kind, constraint in BOUND.items():
                samplings = [
                    SamplingParams(max_new_tokens=tokens, temperature=1.0, seed=index, ignore_eos=True, **constraint)
                    for index in range(rows)
                ]
                cpu = time.process_time()
                done = await together(engine, samplings)
                cpu = time.process_time() - cpu
                written = sum(one.finish.completion_tokens for one in done)
                assert written == rows * tokens, f"{kind}: {written} tokens"
                if turn:
                    best[kind] = min(best[kind], cpu / written * 1e6)
    return best


async def measure(rounds: int, rows: int, tokens: int) -> dict[str, Any]:
    """Measure everything."""
    found: list[dict[str, Any]] = []
    for count in (1, rows):
        for temperature in (0.0, 1.0):
            off = await steps(count, temperature, fast_forward=False)
            on = await steps(count, temperature, fast_forward=True)
            found.append({"rows": count, "temperature": temperature, "off": off, "on": on})
    return {"steps": found, "token_us": await token_costs(rounds, rows, tokens)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    arguments = parser.parse_args()
    measured = asyncio.run(measure(arguments.rounds, arguments.rows, arguments.tokens))
    print(f"{'character':24}{'steps off':>10}{'on':>6}{'saved':>8}{'aim':>6}{'CPU ms off':>12}{'on':>8}")
    for line in measured["steps"]:
        off, on = line["off"], line["on"]
        line["saved"] = 1 - on["steps"] / off["steps"]
        name = f"{line['rows']} rows, temperature {line['temperature']:g}"
        times = f"{off['cpu_s'] * 1e3:>12.0f}{on['cpu_s'] * 1e3:>8.0f}"
        print(f"{name:24}{off['steps']:>10}{on['steps']:>6}{line['saved']:>8.0%}{SAVED_AIM:>6.0%}{times}")
    free = measured["token_us"]["free"]
    print(f"\n{'a token':24}{'CPU us':>10}{'more':>8}{'aim':>8}")
    for kind, cost in measured["token_us"].items():
        print(f"{kind:24}{cost:>10.1f}{cost / free - 1:>8.1%}" + ("" if kind == "free" else f"{COST_AIM:>8.0%}"))
    record = {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": platform.processor() or platform.machine(),
        "versions": {name: metadata.version(name) for name in ("torch", "llguidance", "numpy")},
        "rows": arguments.rows,
        "tokens": arguments.tokens,
        "rounds": arguments.rounds,
        "aims": {"saved": SAVED_AIM, "more_a_token": COST_AIM},
        **measured,
    }
    (RESULTS / "constrained.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
