"""A list in order, of which hundreds come and go together as well as one."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any, Generic, TypeVar

__all__ = ["SortedList"]

T = TypeVar("T", bound=tuple[Any, ...])

_MANY = 32  # one in so many: a pass over all costs less than finding each one's place


class SortedList(Generic[T]):
    """Tuples in order, each with a number as its last part that no other has.

    Those that leave are taken out when somebody looks, so that all that left meanwhile cost one pass.
    """

    __slots__ = ("_gone", "_items")

    def __init__(self) -> None:
        self._items: list[T] = []
        self._gone: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self._items) - len(self._gone)

    def items(self) -> list[T]:
        """Give all there are, in order; the list is this one's."""
        if self._gone:
            self._take_out()
        return self._items

    def put(self, *new: T) -> None:
        """Take in new ones."""
        items = self.items()
        if _MANY * len(new) > len(items):
            items += new
            items.sort()
        else:
            for item in new:
                insort(items, item)

    def drop(self, item: T) -> None:
        """Let go of one that is there."""
        self._gone[item[-1]] = item

    def _take_out(self) -> None:
        gone, self._gone = self._gone, {}
        if _MANY * len(gone) > len(self._items):
            self._items = [item for item in self._items if item[-1] not in gone]
        else:
            for item in gone.values():
                del self._items[bisect_left(self._items, item)]
