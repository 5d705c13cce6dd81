"""What live programs will need again: a lease a program, on all that its last request left in the tree."""

from __future__ import annotations

from collections import OrderedDict

from .node import Node
from .radix_tree import RadixTree

__all__ = ["Leases"]


class Leases:
    """Programs and the nodes their prefixes end at, the longest idle first.

    budget: tokens all leases may have together, waiting requests' included; beyond, the longest idle program loses its
    own.  Under pressure leased tokens go like any others, behind those that nobody leases.
    """

    def __init__(self, tree: RadixTree, budget: int) -> None:
        self._tree = tree
        self._budget = budget
        self._held: OrderedDict[int, Node | None] = OrderedDict()  # None: it has asked, and nothing has ended yet
        self.count = 0

    def open(self, program: int) -> None:
        """Know a program that asks; until it is released, what it leaves is held for it."""
        self._held.setdefault(program, None)

    def hold(self, program: int, node: Node) -> None:
        """Lease the path to `node` for a program instead of what it had; one that was released gets nothing."""
        if program not in self._held:
            return
        self._tree.lease(node)
        self._drop(program)
        self._held[program] = node
        self._held.move_to_end(program)
        self.count += 1
        while self._tree.leased > self._budget and self.count > 1:
            self.release(next(idle for idle, held in self._held.items() if held is not None))

    def release(self, program: int) -> None:
        """End a program's lease; one that is unknown or has ended is ignored."""
        self._drop(program)
        self._held.pop(program, None)

    def _drop(self, program: int) -> None:
        if (node := self._held.get(program)) is not None:
            self._tree.end_lease(node)
            self._held[program] = None
            self.count -= 1
