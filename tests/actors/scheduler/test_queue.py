"""Who is next: the policies prefer, but nobody waits for ever, and choosing costs a window and no more."""

from __future__ import annotations

from typing import Any

import pytest

from callboard.actors.messages import Generate
from callboard.actors.sampling import SamplingParams
from callboard.actors.scheduler.options import SchedulerOptions
from callboard.actors.scheduler.queue import WaitingQueue
from callboard.actors.scheduler.radix_tree import RadixTree
from callboard.actors.scheduler.request import Request

from ...support.schedule_driver import ScheduleDriver, pack


def request(number: int, prompt: list[int], since: int = 0) -> Request:
    return Request(Generate(number, pack(prompt), SamplingParams()), number, since)


def queue(policy: str, tree: RadixTree | None = None, **options: Any) -> WaitingQueue:
    return WaitingQueue(SchedulerOptions(slots=1000, policy=policy, **options), tree or RadixTree())  # type: ignore[arg-type]


def numbers(waiting: WaitingQueue, step: int = 0) -> list[int]:
    return [candidate.number for candidate in waiting.candidates(step)]


def test_first_come_goes_by_arrival() -> None:
    waiting = queue("first-come")
    for number in (3, 1, 2):
        waiting.append(request(number, [number]))
    assert numbers(waiting) == [3, 1, 2]


def test_longest_prefix_prefers_what_the_cache_knows() -> None:
    tree = RadixTree()
    tree.insert(pack([1, 2, 3, 4]), pack_slots(4))
    waiting = queue("longest-prefix", tree)
    for number, prompt in enumerate([[9, 9], [1, 2, 9], [1, 2, 3, 9], [1, 9, 9]]):
        waiting.append(request(number, prompt))
    assert numbers(waiting) == [2, 1, 3, 0]


def test_a_preference_follows_the_tree() -> None:
    tree = RadixTree()
    waiting = queue("longest-prefix", tree)
    waiting.append(request(0, [5, 5, 5]))
    waiting.append(request(1, [6, 6, 6]))
    assert numbers(waiting) == [0, 1]
    tree.insert(pack([6, 6]), pack_slots(2))
    assert numbers(waiting) == [1, 0]
    tree.evict(2)
    assert numbers(waiting) == [0, 1]


def pack_slots(count: int) -> Any:
    import numpy as np

    return np.arange(count, dtype=np.int32)


@pytest.mark.parametrize("policy", ["first-come", "longest-prefix"])
def test_a_retracted_request_goes_ahead_oldest_first(policy: str) -> None:
    waiting = queue(policy)
    for number in (5, 6):
        waiting.append(request(number, [1]))
    for number in (4, 2):
        waiting.put_back(request(number, [2]))
    assert numbers(waiting) == [2, 4, 5, 6]
    assert len(waiting) == 4


def test_every_fourth_admission_is_the_oldest_ones_once_it_has_waited_its_patience() -> None:
    tree = RadixTree()
    tree.insert(pack([1, 2, 3, 4]), pack_slots(4))
    waiting = queue("longest-prefix", tree, patience=10)
    waiting.append(request(0, [9], since=0))
    waiting.append(request(1, [8], since=0))
    for number in range(2, 10):
        waiting.append(request(number, [1, 2, 3], since=6))
    assert numbers(waiting, 9) == [*range(2, 10), 0, 1]
    assert numbers(waiting, 10) == [2, 3, 4, 0, 5, 6, 7, 1, 8, 9]
    first, second = waiting.candidates(10)[:2]
    waiting.admitted(first)
    waiting.admitted(second)
    assert numbers(waiting, 11) == [4, 0, 5, 6, 7, 1, 8, 9]  # the count goes on from step to step


def test_a_request_begins_within_four_admissions_for_each_older_one() -> None:
    tree = RadixTree()
    tree.insert(pack([1, 2, 3, 4]), pack_slots(4))
    waiting = queue("longest-prefix", tree, patience=1, window=4)
    for number in range(10):
        waiting.append(request(number, [9, number]))
    began: dict[int, int] = {}
    for admission in range(1, 200):
        waiting.append(request(1000 + admission, [1, 2, 3, admission], since=admission))
        best = waiting.candidates(admission + 1)[0]
        waiting.admitted(best)
        began[best.number] = admission
    assert all(began[number] <= 4 * (number + 1) for number in range(10))


def test_the_neighbours_of_the_last_prompt_are_seen_however_late_they_came() -> None:
    tree = RadixTree()
    waiting = queue("longest-prefix", tree, window=4)
    for number in range(100):
        waiting.append(request(number, [number % 10, number]))
    tree.insert(pack([7]), pack_slots(1))
    waiting.admitted(next(item for item in waiting.candidates(0) if item.number == 0))
    seventh = request(1000, [7, 0])
    waiting.append(seventh)
    waiting.admitted(seventh)
    assert numbers(waiting)[0] in {7, 17, 27, 37, 47, 57, 67, 77, 87, 97}


def test_the_next_turn_of_a_conversation_is_seen_behind_any_number_of_strangers() -> None:
    tree = RadixTree()
    tree.insert(pack([50, 51, 52]), pack_slots(3))
    waiting = queue("longest-prefix", tree, window=2)
    for number in range(100):
        waiting.append(request(number, [number, number]))
    waiting.append(request(1000, [50, 51, 52, 53]))
    assert numbers(waiting)[0] == 1000


@pytest.mark.parametrize("policy", ["first-come", "longest-prefix"])
def test_choosing_among_4000_looks_at_a_window(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = RadixTree()
    looked: list[int] = []
    known = RadixTree.known

    def counted(self: RadixTree, tokens: bytes, limit: int | None = None, **more: Any) -> int:
        looked.append(1)
        return known(self, tokens, limit, **more)

    monkeypatch.setattr(RadixTree, "known", counted)
    waiting = queue(policy, tree, window=32)
    for number in range(4000):
        waiting.append(request(number, [number % 50, number]))
    looked.clear()
    tree.insert(pack([1, 2, 3]), pack_slots(3))
    assert len(waiting.candidates(0)) <= 96
    assert len(looked) <= 96
    looked.clear()
    waiting.candidates(1)
    assert not looked  # the tree has not changed


def test_removing_takes_out_the_one_that_is_meant() -> None:
    waiting = queue("longest-prefix")
    twins = [request(number, [1, 2, 3]) for number in range(4)]
    for twin in twins[:3]:
        waiting.append(twin)
    waiting.put_back(twins[3])
    waiting.remove(twins[1])
    assert twins[1] not in waiting
    assert numbers(waiting) == [3, 0, 2]
    waiting.remove(twins[3])
    assert numbers(waiting) == [0, 2]


def test_a_cold_request_is_served_while_hot_ones_keep_coming() -> None:
    """Hot requests arrive for ever; the cold one begins within its patience and twelve admissions of a few steps."""
    patience = 20
    driver = ScheduleDriver(
        SchedulerOptions(slots=200, rows=2, chunk_tokens=32, patience=patience, policy="longest-prefix")
    )
    hot = [1] * 40
    for number in range(4):
        driver.submit(number, hot)
    driver.send()
    cold = driver.submit(1000, [2] * 40)
    for number in range(4, 400):
        driver.submit(number, [*hot, number % 50])
        driver.send()
        driver.done()
        if cold.finish is not None:
            break
    assert 5 < cold.begun_at <= patience + 12 * 4
    driver.run()
    driver.verify()


def test_a_request_too_large_for_now_is_not_overtaken_for_ever() -> None:
    driver = ScheduleDriver(SchedulerOptions(slots=64, rows=8, chunk_tokens=64, policy="first-come"))
    for number in range(6):
        driver.submit(number, [number] * 8)
    large = driver.submit(100, [9] * 58)
    for number in range(6, 60):
        driver.submit(number, [number] * 8)
        driver.send()
        driver.done()
    assert large.finish is not None
    driver.run()
    driver.verify()
