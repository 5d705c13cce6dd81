"""The KV memory: the slot pool and the radix tree, between which slots go to and fro."""

from __future__ import annotations

from .radix_tree import RadixTree
from .slot_pool import SlotPool, Slots

__all__ = ["Memory"]


class Memory:
    """Slots are free, in the tree, or private to a row; what the tree holds unlocked counts as room."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.pool = SlotPool(total)
        self.tree = RadixTree()

    @property
    def room(self) -> int:
        """How many slots could be taken now."""
        return self.pool.free + self.tree.evictable

    def take(self, count: int) -> Slots:
        """Take `count` slots, evicting as many tokens as it needs; asking for more than `room` is a bug."""
        short = count - self.pool.free
        if short > 0:
            self.pool.give(self.tree.evict(short))
        return self.pool.take(count)

    def spare(self, wanted: int) -> int:
        """Tell how many slots, of so many, are free, or hold what nobody leases, which is evicted for it."""
        short = wanted - self.pool.free
        if short > 0:
            self.pool.give(self.tree.evict(short, plain=True))
        return min(wanted, self.pool.free)

    def give(self, slots: Slots) -> None:
        """Take back private slots."""
        self.pool.give(slots)

    def flush(self) -> int:
        """Empty the tree of everything unlocked; tells how many tokens went."""
        freed = self.tree.evict(self.tree.evictable)
        self.pool.give(freed)
        return len(freed)
