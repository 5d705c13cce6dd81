"""The radix tree finds the longest known prefix, owns its slots, and lets go of what nobody holds."""

from __future__ import annotations

import numpy as np
import pytest

from callboard.actors.scheduler.invariants import check_tree
from callboard.actors.scheduler.radix_tree import RadixTree

from ...support.schedule_driver import pack


def slots(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.fixture
def tree() -> RadixTree:
    """Know the words 1 2 3 4 (slots 10..13) and 1 2 7 8 (10, 11, 22, 23)."""
    tree = RadixTree()
    tree.insert(pack([1, 2, 3, 4]), slots(10, 11, 12, 13))
    _, duplicates = tree.insert(pack([1, 2, 7, 8]), slots(20, 21, 22, 23))
    assert duplicates.tolist() == [20, 21]
    return tree


def found(tree: RadixTree, tokens: list[int], limit: int | None = None) -> list[int]:
    node, length = tree.match(pack(tokens), limit)
    check_tree(tree)
    assert len(tree.slots(node)) == length
    return tree.slots(node).tolist()


def test_the_longest_known_prefix_is_found(tree: RadixTree) -> None:
    assert found(tree, [1, 2, 3, 4, 5]) == [10, 11, 12, 13]
    assert found(tree, [1, 2, 7]) == [10, 11, 22]
    assert found(tree, [1, 9]) == [10]
    assert found(tree, [9]) == []
    assert found(tree, []) == []


def test_a_limit_cuts_the_match(tree: RadixTree) -> None:
    assert found(tree, [1, 2, 3, 4], 3) == [10, 11, 12]
    assert found(tree, [1, 2, 3, 4], 0) == []


def test_asking_what_is_known_changes_nothing(tree: RadixTree) -> None:
    nodes, version = len(list(tree.nodes())), tree.version
    assert tree.known(pack([1, 2, 3, 9])) == 3
    assert tree.known(pack([1, 2, 3, 4]), 1) == 1
    assert tree.known(pack([5])) == 0
    assert (len(list(tree.nodes())), tree.version) == (nodes, version)


def test_tokens_are_compared_whole() -> None:
    tree = RadixTree()
    tree.insert(pack([0x0101, 2]), slots(0, 1))
    assert found(tree, [0x0201]) == []  # the same first byte
    assert found(tree, [0x0101, 0x0102]) == [0]


def test_a_known_prefix_by_the_same_slots_is_no_duplicate(tree: RadixTree) -> None:
    _, duplicates = tree.insert(pack([1, 2, 3, 4, 5]), slots(10, 11, 12, 13, 14))
    assert duplicates.size == 0
    assert found(tree, [1, 2, 3, 4, 5]) == [10, 11, 12, 13, 14]


def test_inserting_below_a_node_goes_on_from_there(tree: RadixTree) -> None:
    node, length = tree.match(pack([1, 2, 3]))
    assert length == 3
    below, duplicates = tree.insert(pack([4, 6]), slots(30, 31), node)
    assert duplicates.tolist() == [30]
    assert tree.slots(below).tolist() == [10, 11, 12, 13, 31]
    assert tree.known(pack([4, 6]), below=node) == 2


def test_namespaces_never_meet() -> None:
    tree = RadixTree()
    tree.insert(pack([1, 2]), slots(0, 1), namespace="a")
    assert tree.match(pack([1, 2]), namespace="b")[1] == 0
    assert tree.match(pack([1, 2]), namespace="a")[1] == 2


def test_the_least_recently_used_goes_first_from_its_end(tree: RadixTree) -> None:
    tree.match(pack([1, 2, 3, 4]))
    assert tree.evict(1).tolist() == [23]
    assert tree.evict(1).tolist() == [22]
    assert tree.evict(3).tolist() == [12, 13, 11]
    assert found(tree, [1, 2, 3, 4]) == [10]


def test_what_is_locked_stays_with_its_path(tree: RadixTree) -> None:
    node, _ = tree.match(pack([1, 2, 7]))
    tree.lock(node)
    assert (tree.locked, tree.evictable) == (3, 3)
    assert sorted(tree.evict(100).tolist()) == [12, 13, 23]
    assert found(tree, [1, 2, 7, 8]) == [10, 11, 22]
    tree.unlock(node)
    assert sorted(tree.evict(100).tolist()) == [10, 11, 22]
    assert tree.tokens == 0


def test_two_locks_need_two_unlocks(tree: RadixTree) -> None:
    node, _ = tree.match(pack([1, 2, 3, 4]))
    tree.lock(node)
    tree.lock(node)
    tree.unlock(node)
    assert tree.evict(100).tolist() == [22, 23]
    tree.unlock(node)
    with pytest.raises(AssertionError, match="more often"):
        tree.unlock(node)


def test_a_lock_outlives_the_split_of_its_node(tree: RadixTree) -> None:
    node, _ = tree.match(pack([1, 2, 3, 4]))
    tree.lock(node)
    tree.match(pack([1, 2, 3, 9]))  # splits it
    check_tree(tree)
    assert tree.slots(node).tolist() == [10, 11, 12, 13]
    assert tree.evict(100).tolist() == [22, 23]
    tree.unlock(node)
    assert tree.locked == 0


def test_recent_use_saves_a_leaf() -> None:
    tree = RadixTree()
    for word in range(5):
        tree.insert(pack([word]), slots(word))
    tree.match(pack([0]))
    tree.match(pack([2]))
    assert tree.evict(3).tolist() == [1, 3, 4]


def test_a_prompt_of_many_tokens_parts_at_the_right_one() -> None:
    tree = RadixTree()
    long = list(range(5000))
    tree.insert(pack(long), np.arange(5000, dtype=np.int32))
    for place in (0, 1, 4095, 4998, 4999):
        other = [*long[:place], 9999, *long[place + 1 :]]
        assert tree.known(pack(other)) == place


def test_what_is_leased_goes_behind_all_that_is_not(tree: RadixTree) -> None:
    node, _ = tree.match(pack([1, 2, 3, 4]))
    tree.lease(node)
    tree.match(pack([1, 2, 7, 8]))  # used later, and yet
    assert tree.leased == 4
    assert tree.evict(2).tolist() == [22, 23]
    check_tree(tree)


def test_what_is_leased_goes_if_nothing_else_is_left(tree: RadixTree) -> None:
    node, _ = tree.match(pack([1, 2, 3, 4]))
    tree.lease(node)
    assert tree.evict(100).tolist() == [22, 23, 12, 13, 10, 11]
    check_tree(tree)
    tree.end_lease(node)
    assert (tree.leased, tree.tokens) == (0, 0)


def test_a_lease_whose_end_was_evicted_still_holds_the_rest(tree: RadixTree) -> None:
    node, _ = tree.match(pack([1, 2, 3, 4]))
    tree.lease(node)
    tree.evict(3)
    tree.insert(pack([5]), slots(50))
    check_tree(tree)
    assert tree.leased == 3
    assert tree.evict(1).tolist() == [50]
    tree.evict(1)
    check_tree(tree)
    assert tree.leased == 2
    tree.end_lease(node)
    check_tree(tree)
    assert tree.leased == 0
    assert tree.tokens == 2


def test_a_lease_that_is_over_leaves_a_leaf_to_its_age(tree: RadixTree) -> None:
    node, _ = tree.match(pack([1, 2, 3, 4]))
    tree.lease(node)
    tree.match(pack([1, 2, 7, 8]))
    assert tree.evict(1).tolist() == [23]  # the leased leaf has been seen, and passed over
    tree.end_lease(node)
    check_tree(tree)
    assert tree.evict(2).tolist() == [12, 13]


def test_a_lease_follows_the_split_of_its_node(tree: RadixTree) -> None:
    node, _ = tree.match(pack([1, 2, 3, 4]))
    tree.lease(node)
    tree.match(pack([1, 2, 3, 9]))
    check_tree(tree)
    assert tree.leased == 4
    tree.end_lease(node)
    assert tree.leased == 0
