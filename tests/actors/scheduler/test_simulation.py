"""Whole random lives: every request ends once, with the right tokens; every slot has one owner after every move."""

from __future__ import annotations

import pytest

from ...support.schedule_driver import simulate


@pytest.mark.parametrize("seed", range(24))
def test_a_random_life(seed: int) -> None:
    simulate(seed, requests=40)


@pytest.mark.parametrize("seed", range(12))
def test_a_life_in_far_too_little_memory(seed: int) -> None:
    driver = simulate(
        1000 + seed, requests=30, slots=40, rows=6, share=0.0, reserve_all=0, reserve_least=1, in_flight=1 + seed % 3
    )
    assert driver.state.memory.tree.evicted > 0


def test_too_little_memory_retracts() -> None:
    retractions = [
        simulate(
            seed, requests=30, slots=64, rows=8, share=0.0, reserve_all=0, reserve_least=1
        ).state.counters.retractions
        for seed in range(2000, 2004)
    ]
    assert all(retractions)
