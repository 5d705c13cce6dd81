"""A step's decoding rows as arrays; filled up to a size with rows that are nobody's, where that is a graph's."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ..messages import Step
from .rows import Rows

__all__ = ["Decodes", "read_decodes", "views", "write_padded"]


class Decodes:
    """The decoding rows of a step on the host, [n] each: int32 rows, slots and positions; int64 lengths, the new token
    counted, which stands in the last column of its row's table.

    Reading them lengthens the rows.
    """

    __slots__ = ("lengths", "positions", "rows", "slots")

    def __init__(self, rows: np.ndarray, slots: np.ndarray, lengths: np.ndarray, positions: np.ndarray) -> None:
        self.rows = rows
        self.slots = slots
        self.lengths = lengths
        self.positions = positions

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def columns(self) -> np.ndarray:
        return (self.lengths - 1).astype(np.int32)


_NONE = np.zeros(0, np.int32)
_NO_LENGTHS = np.zeros(0, np.int64)


def read_decodes(step: Step, rows: Rows) -> Decodes:
    """Read which rows decode, and count their new token."""
    if not step.decode_rows:
        return Decodes(_NONE, _NONE, _NO_LENGTHS, _NONE)
    decode_rows = np.frombuffer(step.decode_rows, np.int32)
    slots = np.frombuffer(step.decode_slots, np.int32)
    assert len(decode_rows) == len(slots), "a slot a decoding row"
    columns = rows.lengths[decode_rows]
    assert columns.all(), f"rows {decode_rows[columns == 0]} decode but have not begun"
    rows.lengths[decode_rows] = lengths = columns + 1
    columns += rows.shifts[decode_rows]
    return Decodes(decode_rows, slots, lengths, columns.astype(np.int32))


def write_padded(decodes: Decodes, into: np.ndarray, dummy_row: int, dummy_slot: int) -> None:
    """Write decoding rows as the lines rows, slots, positions and lengths of `into`, int32 [4, at least n].

    What is left of the lines is filled with a row that is nobody's.
    """
    count = len(decodes)
    lines = into[:, :count]
    lines[0], lines[1], lines[2], lines[3] = decodes.rows, decodes.slots, decodes.positions, decodes.lengths
    if count < into.shape[1]:
        into[:, count:] = np.array(((dummy_row,), (dummy_slot,), (0,), (1,)), np.int32)


def views(inputs: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Read what `write_padded` wrote from one tensor: rows, slots, positions and lengths, int32 [size] each."""
    rows, slots, positions, lengths = inputs[: 4 * size].view(4, size).unbind(0)
    return rows, slots, positions, lengths
