"""The slot pool gives every slot to one owner at a time."""

import numpy as np
import pytest

from callboard.actors.scheduler.slot_pool import SlotPool


def test_all_slots_are_given_once() -> None:
    pool = SlotPool(10)
    slots = np.concatenate((pool.take(3), pool.take(7)))
    assert sorted(slots.tolist()) == list(range(10))
    assert pool.free == 0


def test_slots_given_back_are_free_again() -> None:
    pool = SlotPool(4)
    slots = pool.take(3)
    pool.give(slots[:2])
    assert pool.free == 3
    assert slots[2] not in pool.free_slots()
    assert sorted([*pool.take(3).tolist(), int(slots[2])]) == [0, 1, 2, 3]


def test_what_was_taken_does_not_change_when_others_give_back() -> None:
    pool = SlotPool(4)
    first, second = pool.take(2), pool.take(2)
    before = second.tolist()
    pool.give(first)
    pool.give(np.array([], np.int32))
    assert second.tolist() == before


def test_more_than_are_free_is_a_bug() -> None:
    pool = SlotPool(2)
    with pytest.raises(AssertionError, match="3 slots asked for, 2 free"):
        pool.take(3)


def test_more_than_there_are_cannot_be_given_back() -> None:
    pool = SlotPool(2)
    with pytest.raises(AssertionError, match="given back"):
        pool.give(np.array([0], np.int32))


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="slots: 0 given"):
        SlotPool(0)
