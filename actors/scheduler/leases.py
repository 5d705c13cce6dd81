"""What live programs will need again: a lease a program, on all that its last request left in the tree."""

from __future__ import annotations

from collections import OrderedDict

from .node import Node
from .radix_tree import RadixTree

__all__ = ["Leases"]


class Leases:
    """Programs and the nodes their prefixes end at, the longest idle first.

    budget: tokens all leases may have together, waiting requests' included; beyond, a program loses its own: of those
    that wait on the outside world the longest idle, and then the longest idle of all.  Under pressure leased tokens go
    like any others, behind those that nobody leases, and those of programs that wait on the outside world first.
    """

    def __init__(self, tree: RadixTree, budget: int) -> None:
        self._tree = tree
        self._budget = budget
        self._held: OrderedDict[int, Node | None] = OrderedDict()  # None: it has asked, and nothing has ended yet
        self._paused: dict[int, None] = {}  # in the order in which they paused
        self.count = 0

    @property
    def paused(self) -> int:
        """How many programs wait on the outside world."""
        return len(self._paused)

    def __contains__(self, program: int) -> bool:
        return program in self._held

    def open(self, program: int) -> None:
        """Know a program that asks; until it is released, what it leaves is held for it."""
        self.resume(program)
        self._held.setdefault(program, None)

    def pause(self, program: int) -> None:
        """Let what a program has, and will have, go before what others have, until it is resumed or opened."""
        if program not in self._paused:
            if (node := self._held.setdefault(program, None)) is not None:
                self._tree.pause_lease(node)
            self._paused[program] = None

    def resume(self, program: int) -> None:
        """Undo a pause; a program that has none is ignored."""
        if program in self._paused:
            del self._paused[program]
            if (node := self._held[program]) is not None:
                self._tree.pause_lease(node, back=True)

    def hold(self, program: int, node: Node) -> None:
        """Lease the path to `node` for a program instead of what it had; one that was released gets nothing."""
        if program not in self._held:
            return
        self._tree.lease(node, paused=program in self._paused)
        self._drop(program)
        self._held[program] = node
        self._held.move_to_end(program)
        self.count += 1
        while self._tree.leased > self._budget and self.count > 1:
            self.release(self._longest_idle())

    def release(self, program: int) -> None:
        """End a program's lease; one that is unknown or has ended is ignored."""
        self._drop(program)
        self._held.pop(program, None)
        self._paused.pop(program, None)

    def _longest_idle(self) -> int:
        for line in (self._paused, self._held):
            for program in line:
                if self._held[program] is not None:
                    return program
        raise AssertionError("some program holds a lease, or they would not be beyond their budget")

    def _drop(self, program: int) -> None:
        if (node := self._held.get(program)) is not None:
            self._tree.end_lease(node, paused=program in self._paused)
            self._held[program] = None
            self.count -= 1
