"""Who is evicted next: unlocked leaves, the least recently used first, leased ones behind all others."""

from __future__ import annotations

import heapq
from itertools import count

from .node import Node

__all__ = ["EvictionOrder"]

_PLAIN, _LEASED = 1, 2


class EvictionOrder:
    """Two lines of leaves, one of them leased.  That an entry is out of date is found out when it is next."""

    def __init__(self) -> None:
        self._lines: dict[int, list[tuple[int, int, Node]]] = {_PLAIN: [], _LEASED: []}  # last_used, ticket, node
        self._tickets = count()

    def offer(self, node: Node) -> None:
        """Let a node stand in line if it is an unlocked leaf and does not stand there already."""
        if not node.queued and node.is_idle_leaf:
            node.queued = _LEASED if node.leases else _PLAIN
            heapq.heappush(self._lines[node.queued], (node.last_used, next(self._tickets), node))

    def freed(self, node: Node) -> None:
        """Let a node whose last lease is over stand among those without."""
        if node.queued == _LEASED:
            node.queued = 0
            self.offer(node)

    def next(self) -> Node | None:
        """Take the next leaf to evict out of its line, or None if there is no unlocked leaf."""
        for kind in (_PLAIN, _LEASED):
            line = self._lines[kind]
            while line:
                stamp, _, node = heapq.heappop(line)
                if node.queued != kind:
                    continue  # it has changed lines, or gone
                node.queued = 0
                if not node.is_idle_leaf:
                    continue  # it is offered again when it becomes an unlocked leaf
                if node.last_used == stamp and bool(node.leases) == (kind == _LEASED):
                    return node
                self.offer(node)
        return None
