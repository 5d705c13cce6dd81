"""A step's extends as arrays: side by side, without a loop of numpy calls over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..messages import Extend
from .rows import Rows

__all__ = ["Extends", "read_extends"]


@dataclass(frozen=True, slots=True)
class Extends:
    """The extends of a step on the host, int32 but `sample`, bool.

    rows, sizes, sample: one an extend.  tokens, slots, columns of the rows' tables, positions: one a new token, an
    extend's behind the other's.
    """

    rows: np.ndarray
    sizes: np.ndarray
    sample: np.ndarray
    tokens: np.ndarray
    slots: np.ndarray
    columns: np.ndarray
    positions: np.ndarray


def read_extends(extends: Sequence[Extend], rows: Rows) -> Extends:
    """Put extends side by side, and lengthen their rows."""
    numbers = np.array([extend.row for extend in extends], np.int32)
    starts = np.array([extend.start for extend in extends], np.int32)
    sizes = np.array([len(extend.tokens) for extend in extends], np.int32) // 4
    tokens = np.frombuffer(b"".join([extend.tokens for extend in extends]), np.int32)
    slots = np.frombuffer(b"".join([extend.slots for extend in extends]), np.int32)
    ends = starts + sizes
    assert len(tokens) == len(slots), "a slot a token"
    assert sizes.all(), "an extend has at least one token"
    assert (rows.lengths[numbers] == starts).all(), "an extend goes on where its row ended"
    assert (ends <= rows.context_length).all(), "a row's table holds context_length slots"
    rows.lengths[numbers] = ends
    # Column of token i of the step: i, moved by where its extend starts and how many tokens stand before it.
    stops = sizes.cumsum(dtype=np.int32)
    columns = np.arange(len(tokens), dtype=np.int32) + np.repeat(ends - stops, sizes)
    positions = columns + np.repeat(rows.shifts[numbers], sizes).astype(np.int32)
    for extend, size, stop in zip(extends, sizes.tolist(), stops.tolist(), strict=True):
        if extend.positions:
            positions[stop - size : stop] = np.frombuffer(extend.positions, np.int32)
    sample = np.array([extend.sample for extend in extends], bool)
    return Extends(numbers, sizes, sample, tokens, slots, columns, positions)
