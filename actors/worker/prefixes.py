"""The cached slots that rows begin with: sent once however many rows share them, and put into the tables on the device.

Shape suffixes:  B rows that begin    S slots sent    R rows of the tables    L columns
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ...kernels.prefixes import write_prefixes

__all__ = ["Prefixes", "Told"]


class Told(NamedTuple):
    """What the rows of a step begin with, on its way.

    parts: int32, for the step's transfer: side by side how many slots each has, its line of the tables, and where its
    slots stand; and the slots.  longest: the most that a row has.
    """

    parts: tuple[np.ndarray, np.ndarray]
    longest: int

    def write(self, sent: Sequence[Tensor], tables_RL: Tensor) -> None:
        """Put `parts`, once they have been sent, into the rows' lines."""
        if not self.longest:
            return
        begun, slots_S = sent
        if len(begun) == 3:  # one row: a copy, which is launched sooner than a kernel of ours
            tables_RL[int(self.parts[0][1]), : self.longest].copy_(slots_S)
        else:
            write_prefixes(tables_RL, begun, slots_S, self.longest)


class Prefixes:
    """Keep what rows begin with until the step that begins them is sent."""

    __slots__ = ("_ends", "_last", "_offsets", "_rows", "_sent", "_slots", "_told")

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._rows: list[int] = []
        self._ends: list[int] = []  # each one's number of slots
        self._offsets: list[int] = []  # where its slots begin among those sent
        self._slots: list[bytes] = []
        self._sent = 0  # how many slots these are
        self._told: dict[tuple[int, bytes], list[tuple[bytes, int]]] = {}  # by length and last slot
        self._last = (b"", 0)  # what was told last: branches come one behind the other

    def add(self, row: int, slots: bytes) -> None:
        """Let a row begin with slots, int32; those of an earlier row are not sent again."""
        if slots != self._last[0]:
            self._last = (slots, self._offset(slots))
        self._rows.append(row)
        self._ends.append(len(slots) // 4)
        self._offsets.append(self._last[1])

    def _offset(self, slots: bytes) -> int:
        """Tell where slots stand among those sent; they join them if they do not yet."""
        # A step of 256 branches would else hash or copy megabytes; those that look the same are compared.
        known = self._told.setdefault((len(slots), slots[-4:]), [])
        offset = next((offset for other, offset in known if other == slots), None)
        if offset is None:
            offset = self._sent
            self._slots.append(slots)
            self._sent += len(slots) // 4
            known.append((slots, offset))
        return offset

    def tell(self) -> Told:
        """Give what has been added, and forget it."""
        begun = np.array([*self._ends, *self._rows, *self._offsets], np.int32)
        slots = np.frombuffer(b"".join(self._slots), np.int32)
        told = Told((begun, slots), max(self._ends, default=0))
        self._clear()
        return told
