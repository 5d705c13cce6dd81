"""Pool and tree together: free + tree + private = total, and each slot has one owner, whatever happens."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from callboard.actors.scheduler.invariants import check_tree
from callboard.actors.scheduler.memory import Memory
from callboard.actors.scheduler.radix_tree import Node

from ...support.schedule_driver import pack

TOTAL = 40
WORDS = st.lists(st.integers(0, 2), min_size=1, max_size=12)


class MemoryMachine(RuleBasedStateMachine):
    """Rows come, share, write, publish and go; a plain dict tells what every slot holds."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory(TOTAL)
        self.holds: dict[int, tuple[int, ...]] = {}  # slot -> the tokens up to and with its own
        self.rows: list[tuple[Node, list[int], np.ndarray]] = []  # node, tokens, private slots
        self.leases: list[Node] = []

    @rule(tokens=WORDS)
    def begin(self, tokens: list[int]) -> None:
        """Match, lock, take slots for the rest and write them."""
        tree = self.memory.tree
        node, known = tree.match(pack(tokens))
        prefix = tree.slots(node).tolist()
        assert [self.holds[slot] for slot in prefix] == [tuple(tokens[: at + 1]) for at in range(known)]
        tree.lock(node)
        if len(tokens) - known > self.memory.room:
            tree.unlock(node)
            return
        own = self.memory.take(len(tokens) - known)
        for at, slot in enumerate(own.tolist(), known):
            self.holds[slot] = tuple(tokens[: at + 1])
        self.rows.append((node, tokens, own))

    @rule(choice=st.integers(0, 99), publish=st.booleans())
    def end(self, choice: int, publish: bool) -> None:
        """Free a row, its tokens left in the tree or not."""
        if not self.rows:
            return
        node, tokens, own = self.rows.pop(choice % len(self.rows))
        if publish and len(own):
            rest = pack(tokens)[-4 * len(own) :]
            _, duplicates = self.memory.tree.insert(rest, own, node)
            self.memory.give(duplicates)
        else:
            self.memory.give(own)
        self.memory.tree.unlock(node)

    @rule(tokens=WORDS)
    def look(self, tokens: list[int]) -> None:
        """A match is the longest there is."""
        known = self.memory.tree.known(pack(tokens))
        _, length = self.memory.tree.match(pack(tokens))
        assert known == length
        inside = {self.holds[slot] for slot in check_tree(self.memory.tree).tolist()}
        assert tuple(tokens[: length + 1]) not in inside or length == len(tokens)
        assert all(tuple(tokens[:at]) in inside for at in range(1, length + 1))

    @rule(tokens=WORDS)
    def lease(self, tokens: list[int]) -> None:
        """Ask that what is known of these tokens is kept while it can be."""
        node, _ = self.memory.tree.match(pack(tokens))
        self.memory.tree.lease(node)
        self.leases.append(node)

    @rule(choice=st.integers(0, 99))
    def end_lease(self, choice: int) -> None:
        """End a lease, whatever has become of its node."""
        if self.leases:
            self.memory.tree.end_lease(self.leases.pop(choice % len(self.leases)))
        assert self.leases or not self.memory.tree.leased

    @rule(count=st.integers(1, 10))
    def evict(self, count: int) -> None:
        """Nothing leased goes while something else could."""
        tree = self.memory.tree
        before = {slot: node.leases > 0 for node in tree.nodes() for slot in node.slots.tolist()}
        freed = tree.evict(count)
        self.memory.give(freed)
        if any(before[slot] for slot in freed.tolist()):
            assert all(node.leases or node.locks for node in tree.nodes() if not node.children)

    @rule()
    def flush(self) -> None:
        self.memory.flush()
        assert self.memory.tree.tokens == self.memory.tree.locked

    @invariant()
    def every_slot_is_owned_once(self) -> None:
        parts = [self.memory.pool.free_slots(), check_tree(self.memory.tree), *(own for _, _, own in self.rows)]
        assert sorted(np.concatenate(parts).tolist()) == list(range(TOTAL))

    @invariant()
    def locked_paths_stand(self) -> None:
        for node, tokens, own in self.rows:
            prefix = self.memory.tree.slots(node).tolist()
            assert len(prefix) + len(own) == len(tokens)
            for at, slot in enumerate([*prefix, *own.tolist()]):
                assert self.holds[slot] == tuple(tokens[: at + 1])


TestMemory = MemoryMachine.TestCase
TestMemory.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
