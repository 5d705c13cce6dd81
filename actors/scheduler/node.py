"""A node of the radix tree: one run of tokens and their slots."""

from __future__ import annotations

import numpy as np

from .slot_pool import Slots

__all__ = ["Node", "Root"]


class Node:
    """One run of tokens.  locks: how many lock this node or one below it; leases: how many hold a lease on such.

    paused: how many of these leases are of programs that wait on the outside world.

    parent: None for a root, and for a node that was evicted, whose leases are its heir's from then on.
    """

    __slots__ = ("children", "heir", "key", "last_used", "leases", "locks", "parent", "paused", "queued", "slots")

    name: str = ""
    """Of a root: its namespace."""
    sources: tuple[Node, ...] = ()
    """Of a root: where the lines end that stand before what is below it."""

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


class Root(Node):
    """Where the prefixes of a namespace begin.

    Behind branches that are joined, or where positions jump, `sources` are the lines that stand before it, and `slots`
    their columns: these are not its own, and right as long as it is locked.  first: where the first source's columns
    end.  While anything below it is locked it has one lock on each of its sources, and while anything is leased, one
    lease; it is then paused if all of these are.
    """

    __slots__ = ("first", "name", "sources")

    def __init__(self, name: str) -> None:
        super().__init__(None, b"", np.empty(0, np.int32), 0)
        self.name = name
        self.first = 0
        self.sources: tuple[Node, ...] = ()

    @property
    def is_idle(self) -> bool:
        """Whether nothing speaks of it but its name."""
        return bool(self.name) and not (self.children or self.locks or self.leases)
