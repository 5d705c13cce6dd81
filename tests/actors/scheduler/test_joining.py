"""What a join waits for is in the cache to its last token, and costs nobody else anything."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from callboard.actors.joins import pack_joins
from callboard.actors.messages import Step
from callboard.actors.sampling import SamplingParams
from callboard.actors.scheduler.options import SchedulerOptions
from callboard.actors.scheduler.state import State

from ...support.schedule_driver import Asked, ScheduleDriver, pack

STEM, FIRST, SECOND, TAIL = [1, 2, 3, 4, 5], [6, 7, 8], [9, 10], [11, 12]


def driver(**options: object) -> ScheduleDriver:
    return ScheduleDriver(SchedulerOptions(**{"slots": 200, **options}))  # type: ignore[arg-type]


def asks(count: int, **options: object) -> SamplingParams:
    return SamplingParams(**{"max_new_tokens": count, "seed": 0, "ignore_eos": True, **options})  # type: ignore[arg-type]


def computed(step: Step) -> tuple[int, int]:
    """Tell how many tokens a step extends rows by, and how many rows decode."""
    return sum(len(extend.tokens) // 4 for extend in step.extends), len(step.decode_rows) // 4


def cached(one: ScheduleDriver, asked: Asked) -> int:
    """Tell how many of a request's own tokens the cache has behind its prompt."""
    return one.state.memory.tree.known(pack(asked.prompt + asked.output)) - len(asked.prompt)


def join(one: ScheduleDriver, branches: list[Asked]) -> list[tuple[int, int]]:
    """Ask for two tokens behind branches of one stem; tell what the first step computes, and the second."""
    lines = [(asked.prompt + asked.output)[len(STEM) :] for asked in branches]
    joins = pack_joins([(len(STEM), len(lines), *(word for line in lines for word in (len(line), 0)))])
    before = len(one.steps)
    one.submit(99, STEM + [token for line in lines for token in line] + TAIL, asks(2), joins=joins)
    one.run()
    return [computed(step) for step in one.steps[before:]]


def test_the_last_token_is_written_by_the_step_behind_it_before_it_is_known() -> None:
    one = driver()
    branches = [one.submit(1, STEM + FIRST, asks(3), joining=True), one.submit(2, STEM + SECOND, asks(3), joining=True)]
    one.run()
    assert [cached(one, asked) for asked in branches] == [3, 3]
    assert [computed(step) for step in one.steps][-3:] == [(0, 2)] * 3, "two that sample, and one behind them"
    assert join(one, branches) == [(len(TAIL), 0), (0, 1)], "one row begins, with its tail alone"
    one.verify()


def test_a_step_in_which_rows_only_write_samples_nothing() -> None:
    one = driver()
    one.submit(1, STEM + FIRST, asks(3), joining=True)
    one.submit(2, STEM + SECOND, asks(3), joining=True)
    one.run()
    assert [step.writes for step in one.steps[-3:]] == [False, False, True]
    assert one.state.counters.surplus_tokens == 0
    one.verify()


@pytest.mark.parametrize(("count", "joining", "writes"), [(3, False, [3]), (4, True, [4]), (4, False, [])])
def test_a_step_samples_as_long_as_one_of_its_rows_has_more_to_say(
    count: int, joining: bool, writes: list[int]
) -> None:
    one = driver()
    one.submit(1, STEM + FIRST, asks(3), joining=True)
    one.submit(2, STEM + SECOND, asks(count), joining=joining)
    one.run()
    assert [index for index, step in enumerate(one.steps) if step.writes] == writes
    assert [len(asked.output) for asked in one.asked.values()] == [3, count]
    one.verify()


@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_rows_with_a_grammar_are_sampled_in_every_step(in_flight: int) -> None:
    """What is forced on one may be behind what was sampled: only the worker knows where it ends."""
    for seed in range(20):
        one = driver(in_flight=in_flight)
        one.submit(1, STEM + FIRST, asks(4 + seed % 5, seed=seed, regex="a"), joining=True)
        one.run()
        assert not any(step.writes for step in one.steps)
        one.verify()


def test_the_last_token_is_left_to_be_computed_where_no_join_waits() -> None:
    one = driver()
    branches = [one.submit(1, STEM + FIRST, asks(3)), one.submit(2, STEM + SECOND, asks(3))]
    one.run()
    assert [cached(one, asked) for asked in branches] == [2, 2]
    assert [computed(step) for step in one.steps][-2:] == [(0, 2)] * 2
    assert join(one, branches) == [(2 + len(TAIL), 0), (0, 1)]
    one.verify()


def test_it_is_written_in_a_step_that_runs_anyway_if_there_is_one() -> None:
    one = driver()
    one.submit(1, [20, 21, 22], asks(20))
    one.submit(2, STEM + FIRST, asks(3), joining=True)
    one.run()
    assert cached(one, one.asked[2]) == 3
    assert len(one.steps) == 20, "as many as the longest of them takes by itself"
    one.verify()


def test_a_branch_that_says_one_token_is_written_too() -> None:
    one = driver()
    branches = [one.submit(1, STEM + FIRST, asks(1), joining=True), one.submit(2, STEM + SECOND, asks(1), joining=True)]
    one.run()
    assert join(one, branches) == [(len(TAIL), 0), (0, 1)]
    one.verify()


@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_with_any_number_of_steps_in_flight_all_is_there(in_flight: int) -> None:
    one = driver(in_flight=in_flight)
    branches = [one.submit(1, STEM + FIRST, asks(3), joining=True), one.submit(2, STEM + SECOND, asks(5), joining=True)]
    one.run()
    assert [cached(one, asked) for asked in branches] == [3, 5]
    assert join(one, branches)[0] == (len(TAIL), 0)
    one.verify()


@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_join_that_is_asked_for_while_the_last_token_is_on_its_way_waits_for_no_step(in_flight: int) -> None:
    one = driver(in_flight=in_flight)
    branches = [one.submit(1, STEM + FIRST, asks(2), joining=True), one.submit(2, STEM + SECOND, asks(2), joining=True)]
    while any(asked.finish is None for asked in branches):
        while one.send() is not None:
            pass
        one.done()
    found = join(one, branches)
    missing = 2 if in_flight == 1 else 0
    assert found[0] == (missing + len(TAIL), 0), "what is missing and the tail, in one step"
    one.verify()


def test_a_stop_token_is_not_written_for_a_join() -> None:
    one = driver(in_flight=1)
    right = one.submit(1, STEM + FIRST, asks(6))
    one.run()
    stop = right.output[3]
    one.state.flush()
    asked = one.submit(2, STEM + FIRST, asks(6, stop_token_ids=(stop,)), joining=True)
    one.run()
    assert asked.finish is not None
    assert asked.finish.reason == "stop"
    assert cached(one, asked) == len(asked.output) - 1
    one.verify()


@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_what_a_grammar_forces_last_is_written_too(in_flight: int) -> None:
    forced = 0
    for seed in range(40):
        one = driver(in_flight=in_flight)
        asked = one.submit(1, STEM + FIRST, asks(4 + seed % 5, seed=seed, regex="a"), joining=True)
        one.run()
        forced += one.model.forced
        assert cached(one, asked) == len(asked.output)
        one.verify()
    assert forced


def test_nobody_gives_way_for_it() -> None:
    """Both outputs together fill the pool when the second is at its end: its last token is left to the join."""
    one = driver(slots=19, rows=4, reserve_all=0, reserve_least=1)
    one.state.estimate.share = 0.0
    one.submit(1, [1, 2, 3, 4], asks(8))
    one.submit(2, [5, 6, 7, 8], asks(6), joining=True)
    one.run()
    assert one.state.counters.retractions == 0
    one.verify()


@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_request_that_takes_the_whole_pool_ends_without_it(in_flight: int) -> None:
    """Behind a jump a token of the stem is read once more, into a slot of the row's own."""
    one = driver(slots=20, in_flight=in_flight)
    asked = one.submit(1, STEM, asks(15), joins=pack_joins([(len(STEM), 0, 7)]), joining=True)
    one.run()
    assert asked.finish is not None
    assert len(asked.output) == 15
    one.verify()


def moves(one: ScheduleDriver) -> Iterator[None]:
    """Send and settle, each when the other cannot, until nothing is left."""
    while one.send() is not None or one.done():
        yield


@pytest.mark.parametrize("in_flight", [1, 2, 3])
@pytest.mark.parametrize("regex", [None, "a"])
@pytest.mark.parametrize("how", ["abort", "stop", "flush"])
def test_ended_at_any_point_it_leaves_every_slot_free_once(how: str, regex: str | None, in_flight: int) -> None:
    at, left = 0, True
    while left:
        one = driver(in_flight=in_flight, slots=40, rows=3)
        for number, prompt in enumerate((STEM + FIRST, STEM + SECOND), 1):
            one.submit(number, prompt, asks(2 + 3 * number, regex=regex), joining=True, lease=number)
        walk = moves(one)
        left = all(next(walk, 0) is None for _ in range(at))
        if how == "flush":
            one.state.flush()
        else:
            getattr(one, how)(1)
        one.run()
        one.verify()
        one.state.flush()
        assert one.state.memory.pool.free == 40
        at += 1
    assert at > 6


def test_only_rows_that_have_more_to_say_are_retracted(monkeypatch: pytest.MonkeyPatch) -> None:
    retract, retracted = State.retract, list[int]()

    def look(self: State, row: int) -> None:
        rows = self.rows
        assert not rows.ended[row]
        assert rows.length[row] < rows.prompt[row] + rows.max_new[row] - 1
        retracted.append(row)
        retract(self, row)

    monkeypatch.setattr(State, "retract", look)
    for seed in range(100):
        one = driver(
            slots=17 + seed % 9, rows=4, chunk_tokens=8, reserve_all=0, reserve_least=1, in_flight=1 + seed % 3
        )
        one.state.estimate.share = 0.0
        one.submit(1, [30, 31, 32, 33], asks(12, seed=seed))
        one.submit(2, [40, 41, 42, 43], asks(9, seed=seed, regex="a"), joining=True)
        one.submit(3, [50, 51, 52, 53], asks(6, seed=seed, regex="a"), joining=True)
        one.run()
        one.verify()
    assert retracted


def test_rows_on_the_device_are_begun_and_retired_alike() -> None:
    one = driver()
    for number in range(1, 9):
        one.submit(number, [*STEM, number], asks(number), joining=True)
    one.run()
    begun = [extend.row for step in one.steps for extend in step.extends if extend.begin is not None]
    retired = [row for step in one.steps for row in np.frombuffer(step.retired_rows, np.int32).tolist()]
    assert sorted(begun) == sorted(retired + one.state.retired)
    one.verify()
