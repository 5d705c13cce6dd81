"""Next-token log-probabilities: rows/s at 100 concurrent callers, beside genlm-backend's transformers backend.

    python bench/async_lm.py --peer PYTHON [--rounds 3] [--callers 100] [--prompt 64] [--tokens 16]

PYTHON is an interpreter that can import genlm.backend, torch and transformers.  The same weights (the model that ships,
float32), one torch thread each; the two are processes of their own and take turns, so that only one runs at a time.

    particles   every caller begins with the same prompt and asks again after each of `tokens` tokens of its own
    strangers   every caller has a prompt of its own and asks once: nothing to share, nothing to go on from

Before each round all caches are emptied.  Times are of the best round, wall and CPU (of all threads of the process).
The peer runs with its defaults (batches of 20, 20 ms), with batches of as many as there are callers, and with the
common prompt's keys and values cached by hand before the clock starts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parent.parent
WEIGHTS = ROOT / "models" / "embedded" / "weights"
AIM = 3.0


def prompts(kind: str, callers: int, length: int) -> list[list[int]]:
    rng = random.Random(1)
    common = [rng.randrange(300, 4096) for _ in range(length)]
    if kind == "particles":
        return [list(common) for _ in range(callers)]
    return [[rng.randrange(300, 4096) for _ in range(length)] for _ in range(callers)]


async def caller(lm: Any, index: int, ids: list[int], tokens: int) -> float:
    """Ask, append a token, ask again; gives one number of the last row, to compare."""
    rng = random.Random(index)
    row = None
    for _ in range(tokens):
        row = await lm.next_token_logprobs(ids)
        ids = [*ids, rng.randrange(300, 4096)]
    assert row is not None
    return float(row[index])


async def round_of(lm: Any, work: dict[str, Any], prepare: Any) -> dict[str, Any]:
    """Run all callers at once, from empty caches."""
    asked = prompts(work["kind"], work["callers"], work["prompt"])
    prepare(asked)
    wall, cpu = time.perf_counter(), time.process_time()
    seen = await asyncio.gather(*(caller(lm, index, ids, work["tokens"]) for index, ids in enumerate(asked)))
    return {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu, "seen": seen}


# --- the children: one line of work in, one line of result out ---


async def serve(lm: Any, prepare: Any) -> None:
    print(json.dumps("ready"), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        work = json.loads(line)
        print(json.dumps(await round_of(lm, work, lambda asked: prepare(asked, work))), flush=True)  # noqa: B023


async def ours(callers: int) -> None:
    from callboard import AsyncLM

    async with AsyncLM.from_name("embedded", max_rows=callers, dtype="float32", threads=1) as lm:
        await serve(lm, lambda *_: lm.clear_kv_cache())


async def peer() -> None:
    from genlm.backend.llm.hf import AsyncTransformer
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    torch.set_num_threads(1)
    model = LlamaForCausalLM.from_pretrained(WEIGHTS, dtype=torch.float32)
    lm = AsyncTransformer(model, PreTrainedTokenizerFast(tokenizer_file=str(WEIGHTS / "tokenizer.json")))

    def prepare(asked: list[list[int]], work: dict[str, Any]) -> None:
        lm.clear_cache()
        lm.batch_size = work["batch_size"]
        if work["cache_kv"]:
            lm.cache_kv(asked[0][:-1])

    await serve(lm, prepare)


class Child:
    def __init__(self, python: str, name: str, callers: int) -> None:
        command = [python, __file__, "--child", name, "--callers", str(callers)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": "", "TRANSFORMERS_VERBOSITY": "error"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line[:1] in '{"':
                return json.loads(line)
        raise RuntimeError("a child ended before it answered")

    def run(self, work: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(work) + "\n")
        self._process.stdin.flush()
        return self._read()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def main(options: argparse.Namespace) -> None:
    callers = options.callers
    base = {"callers": callers, "prompt": options.prompt, "batch_size": callers, "cache_kv": False}
    particles = {**base, "kind": "particles", "tokens": options.tokens}
    strangers = {**base, "kind": "strangers", "tokens": 1}
    cases = [
        ("particles", "callboard", particles),
        ("particles", "genlm, defaults", {**particles, "batch_size": 20}),
        ("particles", f"genlm, batches of {callers}", particles),
        ("particles", f"genlm, batches of {callers}, prompt cached", {**particles, "cache_kv": True}),
        ("strangers", "callboard", strangers),
        ("strangers", f"genlm, batches of {callers}", strangers),
    ]
    children = {"callboard": Child(sys.executable, "ours", callers), "genlm": Child(options.peer, "peer", callers)}
    best: list[dict[str, Any]] = [{} for _ in cases]
    for _ in range(options.rounds + 1):  # the first warms up
        for place, (_, who, work) in enumerate(cases):
            found = children[who.split(",")[0]].run(work)
            for key in ("wall_s", "cpu_s"):
                best[place][key] = min(found[key], best[place].get(key, found[key]))
            best[place]["seen"] = found["seen"]
    for child in children.values():
        child.end()
    report(options, cases, best)


def report(
    options: argparse.Namespace, cases: list[tuple[str, str, dict[str, Any]]], best: list[dict[str, Any]]
) -> None:
    figures: list[dict[str, Any]] = []
    print(f"{'':10} {'':44} {'rows/s':>8} {'x':>6} {'rows/CPU s':>11} {'x':>6}")
    for (kind, who, work), found in zip(cases, best, strict=True):
        rows = work["callers"] * work["tokens"]
        own = best[0] if kind == "particles" else best[4]
        wrong = max(abs(a - b) for a, b in zip(found["seen"], own["seen"], strict=True))
        assert wrong < 1e-3, f"{who} gives other log-probabilities: {wrong}"
        figure = {
            "workload": kind,
            "who": who,
            "rows_per_s": rows / found["wall_s"],
            "rows_per_cpu_s": rows / found["cpu_s"],
            "callboard_over_it_wall": found["wall_s"] / own["wall_s"],
            "callboard_over_it_cpu": found["cpu_s"] / own["cpu_s"],
            "largest_difference": wrong,
        }
        figures.append(figure)
        print(
            f"{kind:10} {who:44} {figure['rows_per_s']:8.0f} {figure['callboard_over_it_wall']:6.2f} "
            f"{figure['rows_per_cpu_s']:11.0f} {figure['callboard_over_it_cpu']:6.2f}"
        )
    print(f"x: callboard over it; the aim is {AIM:g}. Load average {os.getloadavg()[0]:.1f}.")
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "versions": {name: metadata.version(name) for name in ("torch", "transformers")}
        | {"genlm-backend": options.peer_version},
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": 1,
        "load_average": os.getloadavg(),
        "workload": {key: getattr(options, key) for key in ("callers", "prompt", "tokens", "rounds")},
        "aim": AIM,
        "figures": figures,
    }
    path = ROOT / "bench" / "results" / "async_lm.json"
    path.write_text(json.dumps(result, indent=2) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--callers", type=int, default=100)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--child", choices=("ours", "peer"))
    return parser.parse_args()


if __name__ == "__main__":
    arguments = parse()
    if arguments.child == "ours":
        asyncio.run(ours(arguments.callers))
    elif arguments.child == "peer":
        asyncio.run(peer())
    else:
        asked = [arguments.peer, "-c", "from importlib.metadata import version; print(version('genlm-backend'))"]
        arguments.peer_version = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        main(arguments)
