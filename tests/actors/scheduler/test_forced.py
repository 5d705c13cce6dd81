"""Tokens that a grammar forces are taken at once, and computed in one chunk; nothing else changes."""

from __future__ import annotations

import pytest

from callboard.actors.messages import GRAMMAR_CUT
from callboard.actors.sampling import SamplingParams
from callboard.actors.scheduler.options import SchedulerOptions

from ...support.schedule_driver import ScheduleDriver, simulate


def bound(seed: int, **changes: object) -> SamplingParams:
    return SamplingParams(**{"max_new_tokens": 60, "seed": seed, "regex": "a", **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(24))
def test_a_random_life_in_which_much_is_forced(seed: int) -> None:
    driver = simulate(3000 + seed, requests=40, bound=1.0 if seed % 2 else 0.5)
    assert driver.state.counters.forced_tokens > 0


@pytest.mark.parametrize("seed", range(12))
def test_a_forced_life_in_far_too_little_memory(seed: int) -> None:
    in_flight = 1 + seed % 4
    options = {"slots": 40, "rows": 6, "reserve_all": 0, "reserve_least": 1, "in_flight": in_flight}
    simulate(4000 + seed, requests=30, share=0.0, bound=1.0, **options)


def test_forced_tokens_cost_no_steps() -> None:
    driver = ScheduleDriver(SchedulerOptions(slots=400, rows=8))
    asked = driver.submit(1, [1, 2, 3], bound(1))
    driver.run()
    driver.verify()
    counters = driver.state.counters
    assert asked.output == asked.right
    assert counters.forced_tokens > 20
    assert counters.surplus_tokens <= 1  # often forced, so not sent ahead
    assert counters.steps == 60 - counters.forced_tokens + counters.surplus_tokens


def test_what_a_step_on_its_way_samples_behind_them_is_surplus() -> None:
    # a row without a grammar goes on, so that steps are sent ahead
    driver = ScheduleDriver(SchedulerOptions(slots=400, rows=8))
    asked = driver.submit(1, [1, 2, 3], bound(1))
    driver.submit(2, [4, 5], SamplingParams(max_new_tokens=60, seed=2))
    driver.run()
    driver.verify()
    assert asked.output == asked.right
    assert driver.state.counters.surplus_tokens >= driver.state.counters.forced_tokens // 6 > 0


def test_rows_that_are_never_forced_are_sent_ahead() -> None:
    driver = ScheduleDriver(SchedulerOptions(slots=400, rows=8))
    driver.model._force = lambda *_: []  # type: ignore[method-assign]
    driver.submit(1, [1, 2, 3], bound(1))
    in_flight = []
    while driver.state.live:
        while driver.send() is not None:
            pass
        in_flight.append(len(driver.state.flights))
        driver.done()
    assert in_flight[:2] == [1, 2]
    assert set(in_flight[1:-1]) == {2}


@pytest.mark.parametrize("limit", range(1, 30))
def test_a_limit_cuts_what_is_forced(limit: int) -> None:
    driver = ScheduleDriver(SchedulerOptions(slots=100, rows=2))
    asked = driver.submit(1, [1, 2, 3], bound(1, max_new_tokens=limit))
    driver.run()
    driver.verify()
    assert len(asked.output) == limit
    assert asked.finish is not None
    assert asked.finish.reason == "length"
    assert asked.finish.message == GRAMMAR_CUT


def test_a_stop_token_among_them_ends_the_request() -> None:
    right = ScheduleDriver(SchedulerOptions(slots=100, rows=2)).submit(1, [1, 2, 3], bound(1)).right
    for token in sorted(set(right)):
        driver = ScheduleDriver(SchedulerOptions(slots=100, rows=2))
        asked = driver.submit(1, [1, 2, 3], bound(1, stop_token_ids=(token,)))
        driver.run()
        driver.verify()
        assert asked.output == right[: right.index(token) + 1]
