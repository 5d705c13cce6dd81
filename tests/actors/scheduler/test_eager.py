"""What a program that waits has said is computed while nothing else is to do, and never at the cost of what runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from callboard.actors.joins import pack_joins
from callboard.actors.messages import Step
from callboard.actors.sampling import SamplingParams
from callboard.actors.scheduler.options import SchedulerOptions

from ...support.schedule_driver import ScheduleDriver, pack

PROMPT = list(range(100, 140))
SAID = list(range(200, 250))


def driver(**options: Any) -> ScheduleDriver:
    chosen = {"slots": 400, "rows": 4, "chunk_tokens": 64, "eager_tokens": 16, **options}
    return ScheduleDriver(SchedulerOptions(**chosen))


def fill(count: int = 0) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, seed=5)


def sizes(steps: list[Step]) -> list[list[tuple[int, int]]]:
    """Tell the request and the tokens of every chunk, step by step, of rows that begin."""
    return [[(one.begin.request, len(one.tokens) // 4) for one in step.extends if one.begin] for step in steps]


def waiting_program(run: ScheduleDriver) -> list[int]:
    """Let program 7 generate, say more and wait; give all that it has said."""
    first = run.submit(1, PROMPT, fill(5), lease=7)
    run.run()
    said = [*PROMPT, *first.output, *SAID]
    run.pause(7, said)
    return said


def test_the_next_generation_finds_all_but_the_last_token() -> None:
    run = driver()
    said = waiting_program(run)
    run.run()
    after = run.submit(2, said, fill(3), lease=7)
    run.run()
    assert after.finish is not None
    assert after.finish.cached_tokens == len(said) - 1
    eager = run.state.eager
    new = len(SAID) + 1  # the last token of the first answer was never computed
    assert (eager.computed, eager.used) == (new, new - 1)
    run.verify()


def test_it_is_computed_in_steps_of_its_own_one_at_a_time_and_small() -> None:
    run = driver()
    waiting_program(run)
    before = len(run.steps)
    while run.send() is not None:
        assert run.send() is None, "a second one would make whoever comes wait twice"
        run.done()
    assert sizes(run.steps[before:]) == [[(-7, 16)], [(-7, 16)], [(-7, 16)], [(-7, 3)]]
    run.verify()


def test_whoever_comes_meanwhile_is_in_the_very_next_step_and_alone() -> None:
    run = driver()
    waiting_program(run)
    run.send()
    run.submit(2, [3] * 20, fill(6))
    before = len(run.steps)
    run.run()
    steps = run.steps[before:]
    assert sizes(steps)[0] == [(2, 20)]
    busy = max(index for index, step in enumerate(steps) if step.decode_rows)
    assert not any(step.extends for step in steps[1 : busy + 1]), "it ran beside what was asked for"
    assert any(step.extends for step in steps[busy + 1 :]), "it goes on afterwards"
    run.verify()


def test_what_was_computed_serves_a_program_that_goes_on_too_soon() -> None:
    run = driver()
    said = waiting_program(run)
    run.send()
    after = run.submit(2, said, fill(3), lease=7)
    run.run()
    assert after.finish is not None
    assert after.finish.cached_tokens == len(PROMPT) + 4 + 16
    assert len(run.state.eager) == 0
    assert run.state.eager.computed == 16
    run.verify()


@pytest.mark.parametrize("end", ["resumes", "is released", "everything is aborted", "the cache is flushed"])
def test_nothing_more_is_computed_for_a_program_that(end: str) -> None:
    run = driver()
    waiting_program(run)
    run.send()
    if end == "resumes":
        run.resume(7)
    elif end == "is released":
        run.submit(2, [1], fill(), released=[7])
    elif end == "everything is aborted":
        run.state.abort_all()
    else:
        run.state.flush()
    run.run()
    assert run.state.eager.computed == 16
    run.verify()


def test_text_that_becomes_other_tokens_is_used_as_far_as_it_is_equal() -> None:
    run = driver()
    said = waiting_program(run)
    run.run()
    after = run.submit(2, [*said[:-2], 9, 9, 9], fill(3), lease=7)
    run.run()
    assert after.finish is not None
    assert after.finish.cached_tokens == len(said) - 2
    assert run.state.eager.used == len(SAID) + 1 - 2
    run.verify()


def test_what_it_says_later_takes_the_place_of_what_it_said() -> None:
    run = driver()
    said = waiting_program(run)
    run.send()
    run.pause(7, [*said[:-10], *[8] * 20])
    run.run()
    assert run.state.eager.computed == len(SAID) + 1 - 10 + 20
    run.verify()


def test_it_takes_the_slots_of_what_nobody_leases() -> None:
    run = driver(slots=160)
    run.submit(3, [3] * 60, fill())
    run.run()
    waiting_program(run)
    run.run()
    assert run.state.eager.computed == len(SAID) + 1
    run.verify()


def test_it_takes_no_slot_that_another_program_leases_and_asks_no_more() -> None:
    run = driver(slots=160)
    run.submit(3, [3] * 60, fill(), lease=8)
    run.run()
    waiting_program(run)
    run.run()
    assert 0 < run.state.eager.computed < len(SAID)
    assert len(run.state.eager) == 0
    assert run.state.memory.tree.evicted == 0
    run.verify()


def test_what_programs_say_before_their_first_generation_is_computed_too() -> None:
    run = driver()
    for program in (7, 8):
        run.pause(program, [program, *SAID])
    run.run()
    after = run.submit(1, [8, *SAID], fill(2), lease=8)
    run.run()
    assert after.finish is not None
    assert after.finish.cached_tokens == len(SAID)
    run.verify()


@pytest.mark.parametrize("options", [{"eager_tokens": 0}, {"prefix_cache": False}])
def test_it_can_be_turned_off(options: dict[str, Any]) -> None:
    run = driver(**options)
    waiting_program(run)
    assert run.send() is None
    assert run.state.eager.computed == 0


def test_it_ends_without_a_word_to_anybody() -> None:
    run = driver()
    waiting_program(run)
    told = run.state.counters.requests, run.state.counters.prompt_tokens
    while run.send() is not None:
        run.done()
        assert run.state.news.take(0) is None
    assert (run.state.counters.requests, run.state.counters.prompt_tokens) == told
    rows = np.frombuffer(b"".join(step.decode_rows for step in run.steps[-3:]), np.int32)
    assert not len(rows)
    run.verify()


def test_it_is_computed_where_its_tenant_looks_and_nobody_else_does() -> None:
    run = driver()
    first = run.submit(1, PROMPT, fill(5), lease=7, tenant="a", namespace="a, salted")
    run.run()
    said = [*PROMPT, *first.output, *SAID]
    run.pause(7, said, "a, salted")
    run.run()
    tree = run.state.memory.tree
    known = [tree.known(pack(said), namespace=namespace) for namespace in ("a, salted", "a", "")]
    assert known == [len(said), 0, 0]
    assert [root.name for root in tree.roots()] == ["a, salted"]
    after = run.submit(2, said, fill(3), lease=7, tenant="a", namespace="a, salted")
    other = run.submit(3, said, fill(3), tenant="a")
    run.run()
    assert after.finish is not None
    assert other.finish is not None
    assert (after.finish.cached_tokens, other.finish.cached_tokens) == (len(said) - 1, 0)
    run.verify()


def test_nobody_is_charged_for_it() -> None:
    run = driver()
    waiting_program(run)
    given = run.state.queue.given("")
    run.run()
    assert run.state.eager.computed > len(SAID)
    assert run.state.queue.given("") == given > 0


STEM, BRANCHES, TAIL = [1, 2, 3, 4, 5], [[6, 7, 8], [9, 10]], list(range(300, 340))
JOINS = pack_joins([(5, 2, 3, 0, 2, 0)])


def joined_program(run: ScheduleDriver) -> list[int]:
    """Let program 7 join branches that are there, say more and wait; give all that it has said."""
    run.submit(1, STEM, fill(), lease=7)
    run.run()
    for number, branch in enumerate(BRANCHES, 2):
        run.submit(number, STEM + branch, fill(), lease=number)
    run.run()
    said = [*STEM, *BRANCHES[0], *BRANCHES[1], *TAIL]
    run.pause(7, said, joins=JOINS)
    return said


def test_text_behind_joined_branches_is_computed_behind_all_of_them() -> None:
    run = driver()
    said = joined_program(run)
    before = len(run.steps)
    run.run()
    assert sizes(run.steps[before:]) == [[(-7, 16)], [(-7, 16)], [(-7, 8)]], "of their text nothing is computed again"
    assert {step.extends[0].begin.joined for step in run.steps[before:] if step.extends[0].begin} == {True}
    after = run.submit(9, said, fill(3), lease=7, joins=JOINS)
    run.run()
    assert after.finish is not None
    assert after.finish.cached_tokens == len(said) - 1
    assert (run.state.eager.computed, run.state.eager.used) == (len(TAIL), len(TAIL) - 1)
    run.verify()


def test_branches_that_are_not_all_there_are_left_to_their_join() -> None:
    run = driver()
    joined_program(run)
    run.state.flush()
    run.pause(7, [*STEM, *BRANCHES[0], *BRANCHES[1], *TAIL], joins=JOINS)
    before = len(run.steps)
    run.run()
    assert len(run.steps) == before
    assert not run.state.eager
    assert [root for root in run.state.memory.tree.roots() if root.name] == []
    run.verify()


def test_a_branch_whose_positions_jump_before_its_first_token_is_computed_like_any_other() -> None:
    run = driver()
    run.submit(1, STEM, fill(), lease=7)
    run.run()
    run.pause(7, STEM + TAIL, joins=pack_joins([(0, 0, 9)]))
    run.run()
    assert not run.state.eager
    after = run.submit(2, STEM + TAIL, fill(3), lease=7, joins=pack_joins([(0, 0, 9)]))
    run.run()
    assert after.finish is not None
    assert after.finish.cached_tokens == len(STEM + TAIL) - 1
    run.verify()


def test_it_is_on_lease_with_its_branches() -> None:
    run = driver(slots=100)
    said = joined_program(run)
    run.run()
    for number in range(20, 26):
        run.submit(number, [number] * 40, fill(2))
        run.run()
    assert run.state.memory.tree.evicted
    after = run.submit(9, said, fill(3), lease=7, joins=JOINS)
    run.run()
    assert after.finish is not None
    assert after.finish.cached_tokens == len(said) - 1
    run.verify()
