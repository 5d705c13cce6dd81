"""Who is evicted next: unlocked leaves, the least recently used first, leased ones behind all others.

Of the leased ones those come first that only programs lease which wait on the outside world.
"""

from __future__ import annotations

import heapq
from itertools import count

from .node import Node

__all__ = ["PLAIN", "EvictionOrder"]

PLAIN = 1
_PAUSED, _LEASED = 2, 3


class EvictionOrder:
    """Three lines of leaves, two of them leased.  That an entry is out of date is found out when it is next."""

    def __init__(self) -> None:
        # last_used, ticket, node
        self._lines: dict[int, list[tuple[int, int, Node]]] = {PLAIN: [], _PAUSED: [], _LEASED: []}
        self._tickets = count()

    def offer(self, node: Node) -> None:
        """Let a node stand in line if it is an unlocked leaf and does not stand there already."""
        if not node.queued and node.is_idle_leaf:
            node.queued = _line(node)
            heapq.heappush(self._lines[node.queued], (node.last_used, next(self._tickets), node))

    def lowered(self, node: Node) -> None:
        """Let a node with a lease less, or one that counts less, stand in an earlier line if that is its place now."""
        if node.queued > _line(node):
            node.queued = 0
            self.offer(node)

    def next(self, *, plain: bool = False) -> Node | None:
        """Take the next leaf to evict out of its line, or None if no leaf is unlocked (plain: and not leased)."""
        for kind in (PLAIN,) if plain else (PLAIN, _PAUSED, _LEASED):
            line = self._lines[kind]
            while line:
                stamp, _, node = heapq.heappop(line)
                if node.queued != kind:
                    continue  # it has changed lines, or gone
                node.queued = 0
                if not node.is_idle_leaf:
                    continue  # it is offered again when it becomes an unlocked leaf
                if node.last_used == stamp and _line(node) == kind:
                    return node
                self.offer(node)
        return None


def _line(node: Node) -> int:
    if not node.leases:
        return PLAIN
    return _PAUSED if node.paused == node.leases else _LEASED
