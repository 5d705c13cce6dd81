"""Who waits for whom: the program with the least out goes first, tenants take turns, and what is cold has its lane."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from callboard.actors.messages import Generate
from callboard.actors.sampling import SamplingParams
from callboard.actors.scheduler.fair_share import FairShare
from callboard.actors.scheduler.options import SchedulerOptions
from callboard.actors.scheduler.programs import Programs
from callboard.actors.scheduler.queue import WaitingQueue
from callboard.actors.scheduler.radix_tree import RadixTree
from callboard.actors.scheduler.request import Request
from callboard.bench.fairness import NEVER, cold, programs, tenants

from ...support.schedule_driver import ScheduleDriver, pack


def request(number: int, *, program: int = 0, tenant: str = "", since: int = 0, prompt: int = 0) -> Request:
    tokens = pack([prompt or number, number])
    return Request(Generate(number, tokens, SamplingParams(), program=program, tenant=tenant), number, since)


def options(**more: Any) -> SchedulerOptions:
    return SchedulerOptions(slots=1000, **more)


def names(queue: WaitingQueue | FairShare, step: int = 0) -> list[int]:
    return [candidate.number for candidate in queue.candidates(step)]


# --- programs ---------------------------------------------------------------------------------------------------------


def test_the_program_with_the_fewest_requests_out_goes_first() -> None:
    waiting = WaitingQueue(options(), RadixTree())
    for number in range(1, 9):
        waiting.append(request(number, program=1))
    waiting.append(request(20, program=2))
    waiting.append(request(21, program=2))
    waiting.append(request(30))
    assert names(waiting) == [30, 20, 21, *range(1, 9)]


def test_the_last_branch_of_a_fork_goes_before_others_forks() -> None:
    """Those that run count too: nobody is ahead of a join that misses one branch for having sent fewer requests."""
    waiting = WaitingQueue(options(), RadixTree())
    branches = [request(number, program=1) for number in range(1, 5)]
    for branch in branches:
        waiting.append(branch)
    for number in (20, 21):
        waiting.append(request(number, program=2))
    for branch in branches[:3]:
        waiting.admitted(branch)
    assert names(waiting) == [20, 21, 4]  # three others still run
    for branch in branches[:3]:
        waiting.ended(branch)
    assert names(waiting) == [4, 20, 21]


def test_a_large_program_is_promoted_until_it_is_overtaken_no_more() -> None:
    moves: list[tuple[int, int]] = []
    ranks = Programs(10, lambda request, rank: moves.append((request.number, rank)))
    assert [ranks.came(request(number, program=1, since=100)) for number in range(5)] == [0, 1, 2, 2, 3]
    moves.clear()
    ranks.age(109)
    assert not moves
    ranks.age(110)
    assert moves == [(number, 2) for number in range(5)]
    ranks.age(500)
    assert moves[-1] == (4, 0)


def test_a_program_is_forgotten_when_it_is_released_and_nothing_is_out() -> None:
    ranks = Programs(10, lambda *_: None)
    one = request(1, program=5)
    ranks.came(one)
    ranks.left(one)
    ranks.release(5)
    assert len(ranks) == 1
    ranks.ended(one)
    assert len(ranks) == 0
    ranks.came(one)
    ranks.ended(one)
    assert len(ranks) == 1  # its age counts for what it asks next
    ranks.release(5)
    assert len(ranks) == 0


# --- tenants ----------------------------------------------------------------------------------------------------------


def served(share: FairShare, count: int, tokens: int = 10) -> list[int]:
    """Admit the first candidate, time after time."""
    numbers: list[int] = []
    for _ in range(count):
        chosen = next(iter(share.candidates(0)))
        share.admitted(chosen, tokens)
        numbers.append(chosen.number)
    return numbers


def test_a_thousand_requests_of_one_tenant_delay_anothers_by_one_admission() -> None:
    share = FairShare(options(policy="first-come"), RadixTree())
    for number in range(1000):
        share.append(request(number, tenant="many"))
    served(share, 100)
    share.append(request(5000, tenant="one"))
    assert 5000 in served(share, 2)


def test_tenants_that_wait_get_tokens_by_their_weights() -> None:
    share = FairShare(options(weights={"heavy": 3.0}), RadixTree())
    for number in range(100):
        share.append(request(number, tenant="heavy"))
        share.append(request(1000 + number, tenant="light"))
    heavy = sum(number < 1000 for number in served(share, 80))
    assert heavy == pytest.approx(60, abs=1)


def test_within_a_step_turns_follow_what_each_admission_costs() -> None:
    share = FairShare(options(policy="first-come"), RadixTree())
    for number in range(4):
        share.append(request(number, tenant="long"))
        share.append(request(10 + number, tenant="short"))
    order: list[int] = []
    for candidate in share.candidates(0):
        share.admitted(candidate, 30 if candidate.tenant == "long" else 10)
        order.append(candidate.number)
    assert order == [0, 10, 11, 12, 1, 13, 2, 3]
    assert len(share) == 0


def test_who_was_away_has_saved_nothing_up_and_owes_what_was_too_much() -> None:
    share = FairShare(options(policy="first-come"), RadixTree())
    for number in range(50):
        share.append(request(number, tenant="always"))
    served(share, 20)
    for number in range(100, 150):
        share.append(request(number, tenant="back"))
    first = served(share, 20)
    assert 9 <= sum(number >= 100 for number in first) <= 11
    share.correct(request(0, tenant="always"), 50)  # it took five times more than was expected
    assert all(number >= 100 for number in served(share, 4))


def test_tenants_share_nothing_in_the_cache() -> None:
    driver = ScheduleDriver(options())
    prompt = pack(list(range(40)))
    for number, tenant in enumerate(["a", "a", "b"]):
        sampling = SamplingParams(max_new_tokens=2, seed=1)
        driver.submit(100 + number, list(range(40)), sampling, tenant=tenant)
        driver.run()
        tree = driver.state.memory.tree
        assert tree.known(prompt, namespace=tenant) == 40
        assert tree.known(prompt, namespace="b") == (40 if tenant == "b" else 0)
    assert driver.state.counters.cached_tokens == 39


def test_a_weight_is_above_nothing() -> None:
    with pytest.raises(ValueError, match=r"weights: 0\.0 given for 'free'"):
        options(weights={"free": 0.0}).verify()


# --- aging ------------------------------------------------------------------------------------------------------------


def test_of_what_has_waited_the_oldest_and_the_coldest_take_turns() -> None:
    """However many that the cache knows pile up, one that it does not know waits for its like alone."""
    tree = RadixTree()
    tree.insert(pack([7]), np.arange(1, dtype=np.int32))
    waiting = WaitingQueue(options(patience=10), tree)
    for number in range(1000, 1500):
        waiting.append(request(number, prompt=7))
    waiting.append(request(1, prompt=1))
    admitted: list[int] = []
    while 1 not in admitted:
        best = waiting.candidates(10)[0]
        waiting.admitted(best)
        admitted.append(best.number)
    assert len(admitted) <= 8


# --- in simulation ----------------------------------------------------------------------------------------------------


def test_programs_end_sooner_if_the_scheduler_knows_whose_requests_are_whose() -> None:
    first, longest, told = (
        programs(3, policy=policy, told=told, count=120)
        for policy, told in (("first-come", False), ("longest-prefix", False), ("longest-prefix", True))
    )
    assert told["mean"] < 0.9 * min(longest["mean"], first["mean"])
    assert told["p99"] < 1.1 * min(longest["p99"], first["p99"])


@pytest.mark.parametrize("load", [0.9, 1.1])
def test_a_cold_requests_wait_is_bounded_whatever_the_hot_load(load: float) -> None:
    figures = cold(1, load=load, patience=64, steps=800)
    assert figures["most"] <= figures["bound"]


def test_without_a_lane_a_cold_request_waits_until_the_hot_ones_end() -> None:
    assert cold(1, load=1.1, patience=NEVER, steps=800)["most"] > cold(1, load=1.1, patience=64, steps=800)["bound"]


def test_one_tenants_thousand_requests_delay_anothers_by_a_turn() -> None:
    assert tenants(1, apart=True)["most"] <= 26
    assert tenants(1, apart=False)["most"] > 500
