"""The KV memory: the slot pool and the radix tree, between which slots go to and fro."""

from __future__ import annotations

from collections.abc import Callable

from .node import Node
from .radix_tree import RadixTree
from .slot_pool import SlotPool, Slots

__all__ = ["Memory"]


class Memory:
    """Slots are free, in the tree, or private to a row; what the tree holds unlocked counts as room.

    before_evicting: called where something will be let go, for who has not said yet what it will need.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.pool = SlotPool(total)
        self.tree = RadixTree()
        self.before_evicting: Callable[[], None] = lambda: None

    @property
    def room(self) -> int:
        """How many slots could be taken now."""
        return self.pool.free + self.tree.evictable

    def take(self, count: int) -> Slots:
        """Take `count` slots, evicting as many tokens as it needs; asking for more than `room` is a bug."""
        short = count - self.pool.free
        if short > 0:
            self.before_evicting()
            self.pool.give(self.tree.evict(short))
        return self.pool.take(count)

    def spare(self, wanted: int) -> int:
        """Tell how many slots, of so many, are free, or hold what nobody leases, which is evicted for it."""
        short = wanted - self.pool.free
        if short > 0:
            self.before_evicting()
            self.pool.give(self.tree.evict(short, plain=True))
        return min(wanted, self.pool.free)

    def give(self, slots: Slots) -> None:
        """Take back private slots."""
        if len(slots):
            self.pool.give(slots)

    def prefix(self, node: Node, count: int) -> tuple[Slots, bytes]:
        """Collect the first `count` slots of the path to a node that is locked, as an array and packed."""
        slots = self.tree.slots(node)[:count]
        return slots, slots.tobytes()

    def flush(self) -> int:
        """Empty the tree of everything unlocked; tells how many tokens went."""
        freed = self.tree.evict(self.tree.evictable)
        self.pool.give(freed)
        return len(freed)
