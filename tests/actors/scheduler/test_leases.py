"""Leases: what a live program or a waiting request will read again is evicted behind what nobody asks for."""

from __future__ import annotations

from typing import Any

import numpy as np

from callboard.actors.sampling import SamplingParams
from callboard.actors.scheduler.invariants import check_tree
from callboard.actors.scheduler.leases import Leases
from callboard.actors.scheduler.options import SchedulerOptions
from callboard.actors.scheduler.radix_tree import RadixTree

from ...support.schedule_driver import ScheduleDriver, pack

PROMPT = list(range(100, 140))


def driver(**options: Any) -> ScheduleDriver:
    return ScheduleDriver(SchedulerOptions(**{"slots": 200, "rows": 2, "chunk_tokens": 64, **options}))


def fill(count: int = 0) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, seed=5)


def strangers(run: ScheduleDriver, first: int, count: int) -> None:
    """Let so many prompts of 40 tokens pass that share nothing."""
    for number in range(first, first + count):
        run.submit(number, [number] * 40, fill())
        run.run()


def known(run: ScheduleDriver) -> int:
    return run.state.memory.tree.known(pack(PROMPT))


def test_what_a_live_program_left_outlives_the_strangers() -> None:
    run = driver()
    run.submit(1, PROMPT, fill(5), lease=7)
    run.run()
    strangers(run, 1000, 10)
    assert known(run) == 40
    assert run.state.leases.count == 1
    run.verify()


def test_without_a_lease_it_does_not() -> None:
    run = driver()
    run.submit(1, PROMPT, fill(5))
    run.run()
    strangers(run, 1000, 10)
    assert known(run) == 0
    run.verify()


def test_a_program_that_is_over_gives_its_lease_up() -> None:
    run = driver()
    run.submit(1, PROMPT, fill(5), lease=7)
    run.run()
    run.submit(2, [1], fill(), released=[7])
    strangers(run, 1000, 10)
    assert known(run) == 0
    run.verify()


def test_a_program_released_while_its_last_request_runs_holds_nothing() -> None:
    run = driver()
    run.submit(1, PROMPT, fill(30), lease=7)
    run.send()
    run.submit(2, [1], fill(), released=[7])
    run.run()
    assert (run.state.leases.count, run.state.memory.tree.leased) == (0, 0)
    run.verify()


def test_a_lease_yields_to_a_request_that_needs_the_room() -> None:
    run = driver()
    run.submit(1, PROMPT, fill(5), lease=7)
    run.run()
    large = run.submit(2, [9] * 150, fill(40))
    run.run()
    assert large.finish is not None
    assert large.finish.reason == "length"
    assert known(run) < 40
    run.verify()


def test_a_program_has_one_lease_on_its_latest_state() -> None:
    run = driver()
    run.submit(1, PROMPT, fill(), lease=7)
    run.run()
    run.submit(2, [3] * 20, fill(), lease=7)
    run.run()
    assert (run.state.leases.count, run.state.memory.tree.leased) == (1, 20)
    run.verify()


def test_beyond_their_budget_the_longest_idle_program_loses_its_lease() -> None:
    tree = RadixTree()
    leases = Leases(tree, 10)
    for program in range(1, 5):
        leases.open(program)
        node, _ = tree.insert(pack([program] * 4), np.arange(4 * program, 4 * program + 4, dtype=np.int32))
        leases.hold(program, node)
        if program == 2:
            leases.hold(1, tree.match(pack([1] * 4))[0])  # it has asked again: 2 is idle the longest
    assert (leases.count, tree.leased) == (2, 8)
    assert [bool(tree.match(pack([program] * 4))[0].leases) for program in range(1, 5)] == [False, False, True, True]
    check_tree(tree)


def test_what_a_waiting_request_will_read_outlives_the_strangers() -> None:
    run = driver(rows=1, slots=300)
    run.submit(1, PROMPT, fill())
    run.run()
    run.submit(2, [5] * 150, fill(40))
    run.send()
    waiting = run.submit(3, [*PROMPT, 1, 2, 3], fill(3))
    assert run.state.memory.tree.leased == 40
    run.submit(4, [6] * 80, fill(10))
    run.run()
    assert waiting.finish is not None
    assert waiting.finish.cached_tokens == 40
    run.verify()


def test_a_waiting_request_that_is_aborted_leases_nothing() -> None:
    run = driver(rows=1)
    run.submit(1, PROMPT, fill(20))
    run.send()
    run.submit(2, [*PROMPT, 1], fill(3))
    assert run.state.memory.tree.leased == 40
    run.abort(2)
    assert run.state.memory.tree.leased == 0
    run.run()
    run.verify()


def test_requests_that_come_and_begin_are_leased_nothing_on_the_way() -> None:
    run = driver(rows=3)
    run.submit(1, PROMPT, fill())
    run.run()
    came = [run.submit(2, [*PROMPT, 1], fill(3))]
    assert run.state.memory.tree.leased == 0, "nobody has compared it with another"
    run.send()
    came += [run.submit(number, [*PROMPT, number], fill(3)) for number in (3, 4, 5)]
    assert run.state.memory.tree.leased == 0, "nor these"
    run.send()
    assert len(run.state.queue) == 1
    assert run.state.memory.tree.leased == 40, "two have begun, and the one that waits has what it will read"
    run.run()
    assert [one.finish.cached_tokens for one in came if one.finish is not None] == [40] * 4
    run.verify()


def test_one_that_comes_alone_and_cannot_begin_has_a_lease_from_the_next_step_on() -> None:
    run = driver(slots=100)
    run.submit(1, PROMPT, fill())
    run.run()
    run.submit(2, [5] * 20, fill(30))
    run.send()
    waiting = run.submit(3, [*PROMPT, 1, 2], fill(30))
    run.send()
    assert len(run.state.queue) == 1
    assert run.state.memory.tree.leased == 40
    run.run()
    assert waiting.finish is not None
    assert waiting.finish.cached_tokens == 40
    run.verify()


def test_what_one_that_comes_alone_will_read_is_no_room_for_who_decodes_before_it_begins() -> None:
    run = driver(slots=100)
    run.submit(1, PROMPT, fill())
    run.run()
    run.submit(2, [7] * 38, fill())  # used later, and yet evicted before it
    run.run()
    run.submit(3, [5] * 20, fill(6))
    while run.state.memory.pool.free:
        run.send()
        run.done()
    alone = run.submit(4, [*PROMPT, 1], fill(1))
    run.send()
    assert run.state.memory.tree.evicted, "the one that decodes took a slot of somebody's"
    run.run()
    assert alone.finish is not None
    assert alone.finish.cached_tokens == 40
    run.verify()


def three_programs(run: ScheduleDriver) -> None:
    """Let programs 1, 2 and 3 leave forty tokens each, in this order."""
    for program in (1, 2, 3):
        run.submit(program, [program] * 40, fill(), lease=program)
        run.run()


def left(run: ScheduleDriver) -> list[int]:
    """Tell how much is left of each."""
    return [run.state.memory.tree.known(pack([program] * 40)) for program in (1, 2, 3)]


def test_a_program_that_waits_on_the_outside_world_loses_its_kv_before_one_that_does_not() -> None:
    run = driver()
    three_programs(run)
    run.pause(3)
    run.submit(4, [4] * 110, fill())
    run.run()
    assert left(run) == [40, 40, 10], "1 was idle for longer, and waits for nothing"
    run.verify()


def test_of_those_that_wait_the_longest_idle_goes_first() -> None:
    run = driver()
    three_programs(run)
    for program in (3, 2):
        run.pause(program)
    run.submit(4, [4] * 110, fill())
    run.run()
    assert left(run) == [40, 10, 40]
    run.verify()


def test_behind_those_nobody_leases() -> None:
    run = driver()
    run.submit(1, [1] * 40, fill(), lease=1)
    run.run()
    run.pause(1)
    run.submit(2, [2] * 40, fill())
    run.run()
    run.submit(4, [4] * 150, fill())
    run.run()
    assert left(run) == [40, 10, 0]
    run.verify()


def test_a_program_that_is_back_ranks_as_before() -> None:
    run = driver()
    three_programs(run)
    run.pause(3)
    run.resume(3)
    run.submit(4, [4] * 110, fill())
    run.run()
    assert left(run) == [10, 40, 40]
    run.verify()


def test_what_a_waiting_program_shares_with_one_that_runs_ranks_with_that() -> None:
    run = driver()
    run.submit(1, [1] * 40, fill(), lease=1)
    run.run()
    run.submit(2, [2] * 40, fill(), lease=2)
    run.run()
    run.submit(3, [2] * 30, fill(), lease=3)
    run.run()
    run.pause(2)
    run.submit(4, [4] * 140, fill())
    run.run()
    assert left(run)[:2] == [30, 30], "ten of its own first, then of the longest idle"
    run.verify()


def test_beyond_their_budget_a_program_that_waits_loses_its_lease_first() -> None:
    run = driver(slots=160)
    for program in (1, 2, 3):
        run.submit(program, [program] * 40, fill(), lease=program)
        run.run()
        if program == 2:
            run.pause(2)
    run.submit(4, [4] * 10, fill(), lease=4)
    run.run()
    assert [program in run.state.leases for program in (1, 2, 3, 4)] == [True, False, True, True]
    assert run.state.leases.paused == 0
    run.verify()
