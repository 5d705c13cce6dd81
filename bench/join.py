"""Measure how long the next token takes behind joined branches: their KV joined, and all of it computed as one text.

Each round has a stem and branches of random tokens, a few of which each branch has generated.  Then one request goes on
behind all of them: time from there to its first token, and the time of a token once it decodes.  Rounds differ in their
tokens, so that nothing but the branches is cached.

    kv      branches that a join waits for: their last tokens' KV is written behind them
    unsaid  branches of which nobody said so: the join computes their last tokens
    text    all of it computed again

limit: a decode step of the joined row, which no join can go below; aim: that and 2 ms.

    python bench/join.py [--model embedded] [--device cpu] [--load-format auto] [--branches 16] [--branch-tokens 32]
    python bench/join.py --model FOLDER --device cuda --load-format dummy --branch-tokens 1024 [--pause-ms 20]

Without a pause, the step that writes the branches' last tokens may be on its way when the join is asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from callboard.actors.backend import Prompt
from callboard.actors.engine import Engine
from callboard.actors.joins import pack_joins
from callboard.actors.sampling import SamplingParams
from callboard.bench.shapes import SHAPES, write_shape

RESULTS = Path(__file__).parent / "results"
STEM, TAIL, SAID, AFTER = 64, 8, 4, 17
AIM_MS = 2.0
KINDS = {"kv": "KV join", "unsaid": "KV join nobody told of", "text": "text join"}


def asked(count: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, temperature=0.0, ignore_eos=True)


def pack(tokens: list[int]) -> bytes:
    return np.array(tokens, np.int32).tobytes()


async def first_token(engine: Engine, prompt: Prompt) -> tuple[float, float, int]:
    """Give milliseconds to the first token and between later ones, and how many tokens the cache held."""
    begun, times, cached = perf_counter(), list[float](), 0
    async for delta in engine.generate(prompt, asked(AFTER)):
        times += [perf_counter()] * len(delta.tokens)
        cached = delta.finish.cached_tokens if delta.finish is not None else 0
    return 1e3 * (times[0] - begun), 1e3 * (times[-1] - times[0]) / (AFTER - 1), cached


async def round_of(engine: Engine, branches: int, size: int, seed: int, pause_ms: float = 0.0) -> dict[str, float]:
    """Run one round: branches, the join, and, from other branches' tokens, the same as text."""
    rng = np.random.default_rng(seed)
    vocabulary = min(engine.limits.vocabulary, 250)
    found: dict[str, float] = {}
    for kind in KINDS:
        stem = rng.integers(0, vocabulary, STEM).tolist()
        heads = [rng.integers(0, vocabulary, size - SAID).tolist() for _ in range(branches)]
        await engine.complete(pack(stem), asked(0))
        branched = [Prompt(tokens=pack(stem + head), joining=kind == "kv") for head in heads]
        ends = await asyncio.gather(*(engine.complete(prompt, asked(SAID)) for prompt in branched))
        lines = [head + list(end.tokens) for head, end in zip(heads, ends, strict=True)]
        whole = stem + [token for line in lines for token in line] + rng.integers(0, vocabulary, TAIL).tolist()
        joins = pack_joins([(STEM, branches, *(word for line in lines for word in (len(line), 0)))])
        prompt = Prompt(tokens=pack(whole), joins=b"" if kind == "text" else joins)
        if pause_ms:
            await asyncio.sleep(pause_ms / 1e3)
        found[f"{kind}_ms"], found[f"{kind}_step_ms"], cached = await first_token(engine, prompt)
        found[f"{kind}_computed"] = len(whole) - cached
    return found


async def measure(arguments: argparse.Namespace) -> dict[str, float]:
    context = STEM + arguments.branches * arguments.branch_tokens + TAIL + AFTER + 16
    async with Engine(
        arguments.model,
        device=arguments.device,
        load_format=arguments.load_format,
        context_length=context,
        kv_slots=4 * context,
        seed=1,
    ) as engine:
        if not engine.joins:
            raise SystemExit(f"{arguments.model} has windows: its branches are joined as text")
        if engine.limits.context_length < context:
            raise SystemExit(f"{context} positions are needed, the model has {engine.limits.context_length}")
        rounds = [
            await round_of(engine, arguments.branches, arguments.branch_tokens, seed, arguments.pause_ms)
            for seed in range(arguments.rounds + 2)
        ][2:]  # the first compile and capture
        device = engine.limits.device
    figures = {name: median(one[name] for one in rounds) for name in rounds[0]}
    figures["aim_ms"] = figures["kv_step_ms"] + AIM_MS
    return figures | {"device": device}  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--model", default="embedded", help="a folder, or a shape of shapes.py, its weights drawn")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--load-format", default="auto", choices=("auto", "dummy"))
    parser.add_argument("--branches", type=int, default=16)
    parser.add_argument("--branch-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pause-ms", type=float, default=0.0, help="between the branches' ends and the join")
    parser.add_argument("--json", type=Path, default=RESULTS / "join.json")
    arguments = parser.parse_args()
    name = arguments.model
    with tempfile.TemporaryDirectory() as folder:
        if name in SHAPES:
            arguments.model, arguments.load_format = str(write_shape(Path(folder) / name, name)), "dummy"
        figures = asyncio.run(measure(arguments))
    size = f"{arguments.branches} branches of {arguments.branch_tokens} tokens"
    table = Table(title=f"Time to the next token behind {size}; {name} on {figures['device']}")
    for column in ("", "next token, ms", "tokens computed", "a decode step, ms", "aim, ms"):
        table.add_column(column, justify="right")
    for kind, label in KINDS.items():
        figured = (figures[f"{kind}_ms"], figures[f"{kind}_computed"], figures[f"{kind}_step_ms"])
        aim = f"{figures['aim_ms']:.2f}" if kind == "kv" else ""
        table.add_row(label, f"{figured[0]:.2f}", f"{figured[1]:.0f}", f"{figured[2]:.2f}", aim)
    Console(width=100).print(table)
    told = {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "model": name,
        "branches": arguments.branches,
        "branch_tokens": arguments.branch_tokens,
        "rounds": arguments.rounds,
        "pause_ms": arguments.pause_ms,
        **figures,
    }
    arguments.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
