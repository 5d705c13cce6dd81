"""Measure who waits for whom: programs of many kinds, cold requests among hot ones, one tenant beside another.

Everything runs on the real scheduler, with a worker that takes no time; a step is the unit of time.

    programs   mixed arrivals (single calls, forks of 4 to 32 with a join behind them, agents with tools, trees of
               thought) at a load the rows just bear: steps from a program's first request to its end.  `told` is
               longest-prefix that is told which requests are one program's
    cold       requests that the cache knows nothing of, one for twenty hot ones: steps until they begin, at loads below
               and above what the rows bear; `bound` is what the options promise
    tenants    one request of a tenant behind a thousand of another: steps until it begins

    python bench/fairness.py [--seeds N]
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from callboard.bench.cache import Theatre
from callboard.bench.cache_workloads import Program, words

RESULTS = Path(__file__).parent / "results"
ROWS = 16
NEVER = 1 << 30  # steps of patience: no lane for those that wait


# --- programs of many kinds -------------------------------------------------------------------------------------------


def _some(rng: random.Random, mean: int) -> int:
    """Draw a length that many have less of than the mean, and some ten times as much."""
    return max(1, min(400, int(rng.expovariate(1 / mean))))


def _single(rng: random.Random, head: list[int]) -> Program:
    yield [(head + words(rng, 20, 60), _some(rng, 40))]


def _fork(rng: random.Random, head: list[int]) -> Program:
    text = head + words(rng, 60, 200)
    branches = range(rng.choice([4, 8, 16, 32]))
    said = yield [([*text, 1, 2, branch], _some(rng, 40)) for branch in branches]
    yield [(text + [token for part in said for token in part[:20]], _some(rng, 30))]


def _agent(rng: random.Random, head: list[int]) -> Program:
    text = head + words(rng, 20, 60)
    for _ in range(5):
        (action,) = yield [(list(text), _some(rng, 25))]
        yield rng.randint(2, 30)
        text += action + words(rng, 30, 80)


def _tree(rng: random.Random, head: list[int]) -> Program:
    beams = [head + words(rng, 60, 120)]
    for _ in range(3):
        asked = [([*beam, 1, 2, 3, branch], _some(rng, 24)) for beam in beams for branch in range(4)]
        thoughts = yield asked
        paths = [prompt + thought for (prompt, _), thought in zip(asked, thoughts, strict=True)]
        yield [([*path, 9, 8, 7], 2) for path in paths]
        beams = rng.sample(paths, 2)


KINDS: dict[str, tuple[Callable[[random.Random, list[int]], Program], float]] = {
    "single": (_single, 0.5),
    "fork": (_fork, 0.2),
    "agent": (_agent, 0.2),
    "tree": (_tree, 0.1),
}


class Life(NamedTuple):
    """One program's: the steps it began and ended at."""

    kind: str
    begin: int
    end: int


class Clocked(Theatre):
    """Programs that begin at a time of their own, and whose lives are noted.  apart: every kind is a tenant."""

    def __init__(
        self, programs: list[tuple[str, int, Program]], seed: int, *, apart: bool = False, **options: Any
    ) -> None:
        self.lives: list[Life] = []
        self.now = 0
        timed = [(kind, self._timed(kind, begins, program)) for kind, begins, program in programs]
        self.tenants = {program: kind for kind, program in timed} if apart else {}
        super().__init__([program for _, program in timed], seed, **options)

    def _timed(self, kind: str, begins: int, program: Program) -> Program:
        yield begins
        since = self.now
        yield from program
        self.lives.append(Life(kind, since, self.now))

    def tenant(self, program: Program) -> str:
        return self.tenants.get(program, "")

    def waited(self, kind: str, output: int) -> npt.NDArray[np.int64]:
        """Tell how many steps those of a kind waited that wrote `output` tokens each."""
        return np.array([life.end - life.begin - output for life in self.lives if life.kind == kind])


def programs(seed: int, *, policy: str, told: bool, count: int = 600, gap: float = 15.5) -> dict[str, float]:
    """Run the mixture once; a program arrives every `gap` steps in the mean."""
    rng = random.Random(seed)
    heads = [words(rng, 200) for _ in range(6)]
    begins, arrivals = 0.0, []
    for number in range(count):
        begins += rng.expovariate(1 / gap)
        kind = rng.choices(list(KINDS), [share for _, share in KINDS.values()])[0]
        make = KINDS[kind][0]
        arrivals.append((kind, int(begins), make(random.Random(seed * count + number), rng.choice(heads))))
    theatre = Clocked(arrivals, seed, told=told, policy=policy, rows=ROWS, slots=16_000, share_tokens=4)
    theatre.run()
    lasted = {kind: [life.end - life.begin for life in theatre.lives if life.kind == kind] for kind in KINDS}
    every = np.concatenate(list(lasted.values()))
    figures = {"mean": every.mean(), "p99": np.percentile(every, 99), "most": every.max()}
    figures["busy"] = theatre.state.counters.output_tokens / (ROWS * theatre.now)
    figures.update({kind: np.mean(steps) for kind, steps in lasted.items()})
    return {name: float(figure) for name, figure in figures.items()}


# --- cold among hot ---------------------------------------------------------------------------------------------------

OUTPUT = 20  # tokens of every answer
TURN = OUTPUT + 4  # the most steps a row is taken: a step for the prompt, the answer, two in flight


def cold(seed: int, *, load: float, patience: int, steps: int = 6000) -> dict[str, float]:
    """Let hot requests come at `load`, of what the rows bear, and a cold one for twenty of them."""
    rng = random.Random(seed)
    hot = words(rng, 100)
    gap = TURN / ROWS / load
    arrivals: list[tuple[str, int, Program]] = []
    begins = 0.0

    def one(prompt: list[int]) -> Program:
        yield [(prompt, OUTPUT)]

    while begins < steps:
        begins += rng.expovariate(1 / gap)
        arrivals.append(("hot", int(begins), one(hot + words(rng, 4, 12))))
        if rng.random() < 1 / 20:
            arrivals.append(("cold", int(begins), one(words(rng, 60, 100))))
    options: dict[str, Any] = {"patience": patience, "rows": ROWS, "slots": 16_000, "share_tokens": 4}
    theatre = Clocked(arrivals, seed, **options)
    theatre.run()
    waits = theatre.waited("cold", OUTPUT)
    spans = [(life.begin, life.end - OUTPUT) for life in theatre.lives if life.kind == "cold"]
    together = max(sum(begin <= at <= end for begin, end in spans) for at, _ in spans)
    return {
        "p99": float(np.percentile(waits, 99)),
        "most": float(waits.max()),
        "hot_p99": float(np.percentile(theatre.waited("hot", OUTPUT), 99)),
        "bound": float(patience + math.ceil(8 * together / ROWS) * TURN),
    }


# --- tenants ----------------------------------------------------------------------------------------------------------


def tenants(seed: int, *, apart: bool) -> dict[str, float]:
    """Let one tenant send a thousand requests at once, and another one every 200 steps."""
    rng = random.Random(seed)

    def one(prompt: list[int]) -> Program:
        yield [(prompt, OUTPUT)]

    many = [("many", 0, one(words(rng, 60, 100))) for _ in range(1000)]
    few = [("few", 200 * turn, one(words(rng, 60, 100))) for turn in range(1, 6)]
    theatre = Clocked(many + few, seed, apart=apart, rows=ROWS, slots=16_000, share_tokens=4, policy="first-come")
    theatre.run()
    waits = theatre.waited("few", OUTPUT)
    return {"mean": float(waits.mean()), "most": float(waits.max()), "steps": float(theatre.now)}


# --- the table --------------------------------------------------------------------------------------------------------


def cases() -> list[tuple[str, str, Callable[[int], dict[str, float]], tuple[str, ...]]]:
    """Name what is run: part, case, how, and which figures are shown."""
    shown = ("mean", "p99", "most", "busy", *KINDS)
    found: list[tuple[str, str, Callable[[int], dict[str, float]], tuple[str, ...]]] = [
        ("programs", name, partial(programs, policy=policy, told=told), shown)
        for name, policy, told in (
            ("first-come", "first-come", False),
            ("longest-prefix", "longest-prefix", False),
            ("longest-prefix, told", "longest-prefix", True),
        )
    ]
    for load in (0.9, 1.0, 1.1):
        for name, patience in (("no lane", NEVER), ("patience 512", 512), ("patience 128", 128)):
            show = ("p99", "most", "hot_p99") if patience == NEVER else ("p99", "most", "hot_p99", "bound")
            found.append(("cold", f"hot load {load:.0%}, {name}", partial(cold, load=load, patience=patience), show))
    for name, apart in (("one tenant", False), ("two tenants", True)):
        found.append(("tenants", name, partial(tenants, apart=apart), ("mean", "most", "steps")))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    table = Table(title="who waits for whom: steps, over all seeds the mean, of most and bound the largest")
    for name in ("part", "case", "figures"):
        table.add_column(name)
    results: list[dict[str, Any]] = []
    for part, name, run, shown in cases():
        runs = [run(seed) for seed in range(arguments.seeds)]
        figures = {
            key: (max if key in {"most", "bound"} else statistics.mean)(one[key] for one in runs) for key in shown
        }
        results.append({"part": part, "case": name, **figures})
        told = [f"{key} {figure:.2f}" if key == "busy" else f"{key} {figure:.0f}" for key, figure in figures.items()]
        table.add_row(part, name, ", ".join(told))
    Console(width=140).print(table)
    RESULTS.mkdir(exist_ok=True)
    record = {
        "bench": "fairness",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seeds": arguments.seeds,
        "rows": ROWS,
        "results": results,
    }
    (RESULTS / "fairness.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
