"""A node of the radix tree: one run of tokens and their slots."""

from __future__ import annotations

from .slot_pool import Slots

__all__ = ["Node"]


class Node:
    """One run of tokens.  locks: how many lock this node or one below it; leases: how many hold a lease on such.

    paused: how many of these leases are of programs that wait on the outside world.

    parent: None for a root, and for a node that was evicted, whose leases are its heir's from then on.
    """

    __slots__ = ("children", "heir", "key", "last_used", "leases", "locks", "parent", "paused", "queued", "slots")

    def __init__(self, parent: Node | None, key: bytes, slots: Slots, last_used: int) -> None:
        self.parent = parent
        self.heir: Node | None = None
        self.key = key
        self.slots = slots
        self.children: dict[bytes, Node] = {}  # by the first token
        self.locks = 0
        self.leases = 0
        self.paused = 0
        self.last_used = last_used
        self.queued = 0  # in which line it stands for eviction, if in any

    @property
    def is_idle_leaf(self) -> bool:
        """Whether it could be evicted now."""
        return not (self.locks or self.children or self.parent is None)
