"""A step's decoding rows as arrays; filled up to a size with rows that are nobody's, where that is a graph's."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ..messages import Step
from .rows import Rows

__all__ = ["Decodes", "padded", "read_decodes", "views"]


class Decodes:
    """The decoding rows of a step on the host: rows, slots, columns of their tables and positions, int32 [n] each.

    Reading them lengthens the rows.
    """

    __slots__ = ("columns", "positions", "rows", "slots")

    def __init__(self, rows: np.ndarray, slots: np.ndarray, columns: np.ndarray, positions: np.ndarray) -> None:
        self.rows = rows
        self.slots = slots
        self.columns = columns
        self.positions = positions

    def __len__(self) -> int:
        return len(self.rows)


def read_decodes(step: Step, rows: Rows) -> Decodes:
    """Read which rows decode, and count their new token."""
    decode_rows = np.frombuffer(step.decode_rows, np.int32)
    slots = np.frombuffer(step.decode_slots, np.int32)
    assert len(decode_rows) == len(slots), "a slot a decoding row"
    columns = rows.lengths[decode_rows]
    assert columns.all(), f"rows {decode_rows[columns == 0]} decode but have not begun"
    rows.lengths[decode_rows] += 1
    positions = columns + rows.shifts[decode_rows]
    return Decodes(decode_rows, slots, columns.astype(np.int32), positions.astype(np.int32))


def padded(decodes: Decodes, size: int, dummy_row: int, dummy_slot: int) -> tuple[np.ndarray, ...]:
    """Fill decoding rows up to `size` with a row that is nobody's: rows, slots, positions and lengths, int32 [size]."""
    rest = size - len(decodes)
    fill = np.zeros(rest, np.int32)
    rows = np.concatenate((decodes.rows, fill + np.int32(dummy_row)))
    slots = np.concatenate((decodes.slots, fill + np.int32(dummy_slot)))
    positions, columns = np.concatenate((decodes.positions, fill)), np.concatenate((decodes.columns, fill))
    return rows, slots, positions, columns + np.int32(1)


def views(inputs: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Read what `padded` gave back from one tensor: rows, slots, positions and lengths, int32 [size] each."""
    rows, slots, positions, lengths = inputs[: 4 * size].view(4, size).unbind(0)
    return rows, slots, positions, lengths
