"""Run random lives of the scheduler for as long as one likes: `python -m tests.support.soak [lives] [first seed]`."""

from __future__ import annotations

import random
import sys
from typing import Any

from .schedule_driver import simulate

__all__ = ["soak"]


def soak(lives: int, first: int = 0) -> dict[str, int]:
    """Simulate so many lives, half of them in too little memory; raises what the first broken one raises."""
    counted = {"lives": 0, "requests": 0, "steps": 0, "retractions": 0, "surplus tokens": 0, "evicted tokens": 0}
    for seed in range(first, first + lives):
        rng = random.Random(seed)
        short: dict[str, Any] = {}
        if rng.random() < 0.5:
            short = {"slots": rng.choice([40, 64]), "rows": 8, "share": rng.choice([0.0, 0.3]), "reserve_all": 0}
        try:
            driver = simulate(seed, requests=rng.choice([10, 40, 80]), **short)
        except BaseException as error:
            error.add_note(f"in the life of seed {seed}, {short}")
            raise
        counters = driver.state.counters
        counted["lives"] += 1
        counted["requests"] += counters.requests
        counted["steps"] += counters.steps
        counted["retractions"] += counters.retractions
        counted["surplus tokens"] += counters.surplus_tokens
        counted["evicted tokens"] += driver.state.memory.tree.evicted
    return counted


if __name__ == "__main__":
    print(soak(*map(int, sys.argv[1:] or ["100"])))
