"""Joined requests begin behind their branches' slots: nothing is copied, nothing computed twice, all freed once."""

from __future__ import annotations

import random

import numpy as np
import pytest

from callboard.actors.joins import pack_joins
from callboard.actors.messages import Generate, Step
from callboard.actors.sampling import SamplingParams
from callboard.actors.scheduler.options import SchedulerOptions

from ...support.fake_worker import read_groups
from ...support.schedule_driver import EVERY_GROUP, ScheduleDriver

Fork = tuple[int, ...]

STEM, FIRST, SECOND, TAIL = [1, 2, 3, 4, 5], [6, 7, 8], [9, 10], [11, 12]
JOINED: tuple[Fork, ...] = ((5, 2, 3, 0, 2, 0),)


def driver(**options: object) -> ScheduleDriver:
    return ScheduleDriver(SchedulerOptions(**{"slots": 200, "groups": EVERY_GROUP, **options}))  # type: ignore[arg-type]


def asks(count: int, seed: int = 0) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, seed=seed, ignore_eos=True)


def computed(steps: list[Step]) -> list[int]:
    """Tell how many tokens each step extends rows by."""
    return [sum(len(extend.tokens) // 4 for extend in step.extends) for step in steps]


def test_a_join_of_cached_branches_computes_its_tail_alone_in_one_step_behind_their_very_slots() -> None:
    one = driver()
    one.submit(1, STEM + FIRST, asks(0))
    one.submit(2, STEM + SECOND, asks(0))
    one.run()
    steps = len(one.steps)
    one.submit(3, STEM + FIRST + SECOND + TAIL, asks(3), joins=pack_joins(JOINED))
    one.send()
    assert computed(one.steps[steps:]) == [len(TAIL)]
    extend = one.steps[-1].extends[0]
    tree = one.state.memory.tree
    first, second = (tree.slots(tree.match(np.array(STEM + part, np.int32).tobytes())[0]) for part in (FIRST, SECOND))
    assert np.frombuffer(extend.prefix_slots, np.int32).tolist() == [*first, *second[len(STEM) :]]
    assert extend.begin is not None
    assert (extend.begin.joined, extend.begin.shift) == (True, -2)
    one.run()
    one.verify()
    assert one.asked[3].finish is not None
    assert one.asked[3].finish.cached_tokens == 10


def test_what_a_branch_has_not_computed_is_computed_in_the_very_step_that_joins_it() -> None:
    one = driver()
    first = one.submit(1, STEM + FIRST, asks(2))
    second = one.submit(2, STEM + SECOND, asks(2))
    one.run()
    said = [first.output, second.output]  # nobody has computed what comes of the last token of each
    branches = [FIRST + said[0], SECOND + said[1]]
    joins = pack_joins([(5, 2, len(branches[0]), 0, len(branches[1]), 0)])
    steps = len(one.steps)
    whole = STEM + branches[0] + branches[1] + TAIL
    asked = one.submit(3, whole, asks(1), joins=joins)
    one.run()
    assert computed(one.steps[steps:]) == [1 + 1 + len(TAIL)]
    assert asked.finish is not None
    assert asked.finish.cached_tokens == len(whole) - (1 + 1 + len(TAIL)), "the stem, once"
    one.verify()


def test_a_join_that_the_cache_knows_nothing_of_is_computed_once() -> None:
    one = driver(share_tokens=1)
    one.submit(1, STEM + FIRST + SECOND + TAIL, asks(4), joins=pack_joins(JOINED))
    one.run()
    one.verify()
    assert one.state.counters.computed_tokens == 12
    assert not one.state.assemblies


def test_joins_that_arrive_together_share_their_lines_and_their_tail() -> None:
    one = driver(share_tokens=1)
    for number in range(1, 7):
        one.submit(number, STEM + FIRST + SECOND + TAIL, asks(4, number), joins=pack_joins(JOINED))
    one.run()
    one.verify()
    assert one.state.counters.computed_tokens == 12 + 5, "each but the first computes its last token"


def test_what_was_said_behind_a_join_is_cached_for_who_goes_on_and_for_nobody_else() -> None:
    one = driver()
    said = one.submit(1, STEM + FIRST + SECOND + TAIL, asks(4), joins=pack_joins(JOINED))
    one.run()
    whole = STEM + FIRST + SECOND + TAIL + said.output
    one.submit(2, [*whole, 13], asks(2), joins=pack_joins(JOINED))
    one.run()
    assert one.asked[2].finish is not None
    assert one.asked[2].finish.cached_tokens == len(whole) - 1
    one.submit(3, [*whole, 13], asks(2))
    one.run()
    assert one.asked[3].finish is not None
    assert one.asked[3].finish.cached_tokens == len(STEM + FIRST), "as one line it is other text"
    one.verify()


def test_positions_that_jump_share_no_cache_with_those_that_do_not() -> None:
    one = driver()
    for number, offset in enumerate((0, 7, 7)):
        one.submit(number, STEM + FIRST, asks(3), joins=pack_joins([(5, 0, offset)]))
        one.run()
    one.verify()
    found = [asked.finish.cached_tokens for asked in one.asked.values() if asked.finish is not None]
    assert found == [0, len(STEM), len(STEM + FIRST) - 1]


def test_a_branch_that_says_nothing_of_its_own_goes_on_behind_the_stem_at_once() -> None:
    one = driver()
    one.submit(1, STEM, asks(0))
    one.run()
    asked = one.submit(2, STEM, asks(4), joins=pack_joins([(5, 0, 7)]))
    one.run()
    one.submit(3, [*STEM, *asked.output], asks(2), joins=pack_joins([(5, 0, 7)]))
    one.run()
    one.verify()
    assert one.asked[3].finish is not None
    assert one.asked[3].finish.cached_tokens == 8, "all that was written"


def test_rows_behind_one_join_attend_together_and_with_those_of_its_stem() -> None:
    one = driver(share_tokens=1)
    one.submit(1, STEM + FIRST + SECOND + TAIL, asks(0), joins=pack_joins(JOINED))
    one.submit(2, [*STEM, 20], asks(12))
    one.run()
    for number in (3, 4, 5):
        one.submit(number, STEM + FIRST + SECOND + TAIL + [number], asks(8), joins=pack_joins(JOINED))
    one.submit(6, [*STEM, 21], asks(8))
    one.run()
    one.verify()
    grouped = [read_groups(step.groups) for step in one.steps if step.groups]
    spans = {(start, end, len(rows)) for groups in grouped for _, start, end, rows in groups}
    assert {(0, 5, 4), (5, 12, 3)} <= spans


@pytest.mark.parametrize(
    ("prompt", "joins", "start", "message"),
    [
        (STEM + FIRST + SECOND, JOINED, -1, "sees all before it"),
        (STEM + FIRST + SECOND + TAIL, ((5, 2, 30, 0, 2, 0),), -1, "beyond column"),
        (STEM + FIRST + SECOND + TAIL, JOINED, 10, "logprob_start"),
    ],
)
def test_what_cannot_be_joined_ends_with_a_reason(
    prompt: list[int], joins: tuple[Fork, ...], start: int, message: str
) -> None:
    one = driver()
    sampling = SamplingParams(max_new_tokens=1, seed=0, logprob_start=start)
    one.state.admit(_generate(1, prompt, sampling, joins))
    news = one.state.news.take(0)
    assert news is not None
    assert news.finished[0].reason == "error"
    assert message in news.finished[0].message
    assert not one.state.live


def _generate(number: int, prompt: list[int], sampling: SamplingParams, joins: tuple[Fork, ...]) -> Generate:
    return Generate(number, np.array(prompt, np.int32).tobytes(), sampling, joins=pack_joins(joins))


def test_two_joins_that_do_not_fit_together_both_come_to_their_end() -> None:
    one = driver(slots=64, rows=2, chunk_tokens=8)
    for number in range(4):
        branches = [[number * 8 + branch] * 8 for branch in range(4)]
        prompt = [*STEM, *(token for branch in branches for token in branch), *TAIL]
        one.submit(number, prompt, asks(20, number), joins=pack_joins([(5, 4, *(8, 0) * 4)]))
    one.run()
    one.verify()


def context(rng: random.Random, most: int, depth: int = 0) -> tuple[list[int], list[Fork]]:
    """Write a random prompt of at most `most` tokens, joins in joins."""
    tokens = [rng.randrange(6) for _ in range(rng.randint(1, max(1, most // 3)))]
    forks: list[Fork] = []
    while depth < 3 and len(tokens) + 4 < most and rng.random() < 0.6:
        start, room = len(tokens), (most - len(tokens) - 1) // 3
        place, parts = len(forks), list[int]()
        for _ in range(rng.randint(1, 3)):
            branch, inner = context(rng, max(1, room), depth + 1)
            if rng.random() < 0.1:
                branch, inner = [], []
            forks += [(fork[0] + len(tokens), *fork[1:]) for fork in inner]
            tokens += branch
            parts += (len(branch), rng.choice([0, 0, 0, 5]))
        forks.insert(place, (start, len(parts) // 2, *parts))
        tokens += [rng.randrange(6) for _ in range(rng.randint(1, 4))]
    return tokens, forks


def live(seed: int) -> ScheduleDriver:
    """Run one random life: joins of joins in small pools, aborts, stops, flushes, beside plain requests."""
    rng = random.Random(seed)
    slots = rng.choice([60, 100, 200])
    one = driver(
        slots=slots,
        rows=rng.choice([1, 2, 4, 8]),
        chunk_tokens=rng.choice([1, 5, 16, 128]),
        in_flight=rng.choice([1, 2, 3]),
        policy=rng.choice(["first-come", "longest-prefix"]),
        share_tokens=rng.choice([1, 4, 16]),
        reserve_all=rng.choice([0, 64]),
        reserve_least=rng.choice([1, 4]),
    )
    contexts = [context(rng, slots // 2) for _ in range(5)]
    joining = random.Random(seed + 1)
    for number in range(20):
        tokens, forks = rng.choice(contexts)
        tokens = tokens + [rng.randrange(6) for _ in range(rng.randint(0, 5))]
        if rng.random() < 0.2:
            forks = [*forks, (len(tokens), 0, rng.randint(1, 9))]
        if rng.random() < 0.3:
            forks = []
        sampling = asks(min(rng.choice([0, 1, 4, 30]), slots - len(tokens)), number)
        lease, released = rng.randrange(4), rng.randrange(4)
        waited = joining.random() < 0.4
        one.submit(number, tokens, sampling, joins=pack_joins(forks), lease=lease, released=(released,), joining=waited)
        while rng.random() < 0.7:
            (one.send if rng.random() < 0.6 else one.done)()
        if joining.random() < 0.2:
            more = [joining.randrange(6) for _ in range(joining.randrange(12))]
            one.pause(joining.randrange(1, 4), tokens + more, joins=pack_joins(forks))
            while joining.random() < 0.7:
                (one.send if joining.random() < 0.6 else one.done)()
        if rng.random() < 0.15:
            one.abort(rng.randrange(number + 1))
        if rng.random() < 0.1:
            one.stop(rng.randrange(number + 1))
        if rng.random() < 0.05:
            one.state.flush()
    one.run()
    one.verify()
    return one


# In the last a request begins whose part, a join itself, waits behind it: somebody else has computed what it was for.
@pytest.mark.parametrize("seed", [*range(24), 109062])
def test_random_lives_of_joins_keep_every_slot_and_say_what_is_right(seed: int) -> None:
    one = live(seed)
    assert not one.state.assemblies
    one.state.flush()
    assert [root.name for root in one.state.memory.tree.roots() if root.name] == []


def test_an_abort_after_any_number_of_moves_leaves_nothing_behind() -> None:
    for moves in range(14):
        one = driver(slots=40, rows=2, chunk_tokens=4)
        one.submit(1, STEM + FIRST + SECOND + TAIL, asks(4), joins=pack_joins(JOINED))
        one.submit(2, STEM + FIRST + SECOND + [30], asks(4), joins=pack_joins(JOINED))
        for move in range(moves):
            (one.done if move % 2 else one.send)()
        one.abort(1)
        one.run()
        one.verify()
        one.state.flush()
        assert one.state.memory.pool.free == 40


@pytest.mark.parametrize("seed", [27, 30, 31, 40, 70, 78, 103, 107, 112, 120])
def test_joins_of_several_tenants_that_do_not_fit_together_all_come_to_their_end(seed: int) -> None:
    """Whose turn it is changes with what each was given: without the oldest's right each undid what another had."""
    rng = random.Random(seed)
    slots, count = rng.choice([50, 60, 80]), rng.choice([3, 4, 5, 6])
    one = driver(
        slots=slots, rows=rng.choice([1, 2, 3]), chunk_tokens=rng.choice([2, 5, 16]), in_flight=1, share_tokens=2
    )
    for number in range(count):
        tokens, forks = context(rng, slots * 3 // 4)
        one.submit(number, tokens, asks(2, number), joins=pack_joins(forks), tenant=rng.choice("ab"))
    one.run(600)
    one.verify()
    assert not one.state.assemblies
