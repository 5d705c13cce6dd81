"""What holds between two moves of the scheduler, whatever has happened: for tests, at the cost of every slot."""

from __future__ import annotations

import numpy as np

from .radix_tree import RadixTree, Root
from .slot_pool import Slots
from .state import State

__all__ = ["check_state", "check_tree"]


def check_tree(tree: RadixTree) -> Slots:
    """Verify every count and link, and give all slots the tree owns.  Costs as much as the tree is large."""
    parts: list[Slots] = [np.empty(0, np.int32)]
    locked = leased = 0
    for node in tree.nodes():
        assert node.key, "an empty node"
        assert len(node.key) == 4 * len(node.slots), "tokens and slots of a node differ in number"
        assert node.parent is not None
        assert node.parent.children.get(node.key[:4]) is node, "a child that its parent does not know"
        assert node.locks >= sum(child.locks for child in node.children.values()), "a lock below is missing above"
        assert node.leases >= sum(child.leases for child in node.children.values()), "a lease is missing above"
        assert node.paused >= sum(child.paused for child in node.children.values()), "a pause is missing above"
        assert node.paused <= node.leases, "more leases are paused than there are"
        assert node.queued or node.locks or node.children, "an unlocked leaf is not offered for eviction"
        assert (node in tree.crowded) == (node.locks > 1), "a node's crowd is not what its locks say"
        locked += len(node.slots) if node.locks else 0
        leased += len(node.slots) if node.leases else 0
        parts.append(node.slots)
    for root in tree.roots():
        assert not root.is_idle, "a root that nobody needs is left"
        below = root.children.values()
        assert not root.name or root.locks >= sum(child.locks for child in below), "a lock below is missing above"
        assert not root.name or root.leases >= sum(child.leases for child in below), "a lease is missing above"
        assert (root in tree.crowded) == (root.locks > 1), "a root's crowd is not what its locks say"
        # Where positions jump before the first token the source is the root of all prompts, which nobody locks.
        sources = [source for source in root.sources if source.name or not isinstance(source, Root)]
        assert all(source.locks for source in sources) or not root.locks, "a source of a join is not locked"
    slots = np.concatenate(parts)
    assert len(slots) == tree.tokens, f"{len(slots)} tokens in the tree, {tree.tokens} counted"
    assert locked == tree.locked, f"{locked} tokens are locked, {tree.locked} counted"
    assert leased == tree.leased, f"{leased} tokens are leased, {tree.leased} counted"
    return slots


def check_state(state: State) -> None:
    """Assert that every slot is owned once, and that every row is in one condition.  For tests: O(slots)."""
    rows = state.rows
    state.count()
    owned = [state.memory.pool.free_slots(), check_tree(state.memory.tree)]
    owned += [rows.own(row) for row in np.flatnonzero(rows.taken).tolist()]
    slots = np.sort(np.concatenate(owned))
    assert np.array_equal(slots, np.arange(state.memory.total)), "a slot is owned twice, or by nobody"
    assert rows.free + int(rows.taken.sum()) == rows.max_rows, "a row is neither free nor taken"
    assert rows.bound_rows == rows.bound.sum(), "other rows have a grammar than are counted"
    assert not (rows.leaving & rows.taken & rows.decoding).any(), "a leaving row would decode"
    locked = 0
    for row in np.flatnonzero(rows.taken).tolist():
        node, request = rows.node[row], rows.request[row]
        assert node is not None
        assert request is not None
        assert rows.length[row] <= request.most_slots, "a row has written more than it may"
        path = state.memory.tree.slots(node)
        assert len(path) == rows.shared[row], "a row's lock does not end where its shared part does"
        own = rows.slots[row, : rows.shared[row]]
        assert np.isin(own[own != path], rows.spare[row]).all(), "a shared slot is neither the tree's nor the row's"
        agreed = int(rows.agreed[row])
        assert np.array_equal(own[:agreed], path[:agreed]), "a row's slots differ from the tree's before `agreed`"
        locked += 1
    locked += sum(len(request.held) for request in state.live.values())
    locked += sum(len(root.sources) for root in state.memory.tree.roots() if root.locks)
    roots_locks = sum(child.locks for child in state.memory.tree.tops())
    assert roots_locks <= locked, "a lock outlived its row"
    waiting = sum(request.row < 0 for request in state.live.values())
    assert len(state.queue) == waiting, f"{len(state.queue)} wait, {waiting} live requests have no row"
