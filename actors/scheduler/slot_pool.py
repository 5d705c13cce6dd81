"""The slot pool: which KV slots nobody owns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["SlotPool", "Slots"]

Slots = npt.NDArray[np.int32]


class SlotPool:
    """A stack of free slots, numbered 0 to total - 1.  Whoever takes a slot owns it until it is given back."""

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError(f"slots: {total} given, at least 1 needed")
        self.total = total
        self.free = total
        self._stack = np.arange(total - 1, -1, -1, dtype=np.int32)  # slot 0 lies on top

    def take(self, count: int) -> Slots:
        """Take `count` slots; asking for more than are free is a bug of the caller."""
        assert 0 <= count <= self.free, f"{count} slots asked for, {self.free} free"
        top = self.free
        self.free = top - count
        return self._stack[self.free : top].copy()

    def give(self, slots: Slots) -> None:
        """Take slots back."""
        top = self.free + len(slots)
        assert top <= self.total, f"{len(slots)} slots given back to {self.free} free of {self.total}"
        self._stack[self.free : top] = slots
        self.free = top

    def free_slots(self) -> Slots:
        """Copy the free slots, in no order."""
        return self._stack[: self.free].copy()
