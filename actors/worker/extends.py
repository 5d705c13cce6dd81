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

    rows, sizes, ends, stops, sample: one an extend; `ends` are its row's length now, `stops` where its tokens end in
    the step.  tokens, slots, and the lines of by_token_3T, which are columns of the rows' tables, positions and the
    rows: one a new token, an extend's behind the other's.
    """

    rows: np.ndarray
    sizes: np.ndarray
    ends: np.ndarray
    stops: np.ndarray
    sample: np.ndarray
    tokens: np.ndarray
    slots: np.ndarray
    by_token_3T: np.ndarray


def read_extends(extends: Sequence[Extend], rows: Rows) -> Extends:
    """Put extends side by side, and lengthen their rows."""
    # One array of what Python's numbers tell of each extend: a call of numpy's takes as long as ten of these, if cold.
    told, stop, most = list[tuple[int, ...]](), 0, rows.context_length
    length_of, shift_of = rows.lengths.item, rows.shifts.item
    for extend in extends:
        row, start, size = extend.row, extend.start, len(extend.tokens) >> 2
        end, moved = start + size, start - stop
        assert start == length_of(row), "an extend goes on where its row ended"
        assert start < end <= most, "an extend has at least one token, and a row's table holds context_length slots"
        # Column of token i of the step: i, moved by where its extend starts and how many tokens stand before it.
        stop += size
        told.append((moved, moved + shift_of(row), row, size, end, stop, extend.sample))
    facts = np.array(told, np.int32).reshape(-1, 7).T
    numbers, sizes, ends = facts[2], facts[3], facts[4]
    rows.lengths[numbers] = ends
    tokens = np.frombuffer(b"".join([extend.tokens for extend in extends]), np.int32)
    slots = np.frombuffer(b"".join([extend.slots for extend in extends]), np.int32)
    assert len(tokens) == len(slots), "a slot a token"
    by_token = facts[:3].repeat(sizes, axis=1)
    by_token[:2] += np.arange(stop, dtype=np.int32)
    for extend, fact in zip(extends, told, strict=True):
        if extend.positions:
            by_token[1, fact[5] - fact[3] : fact[5]] = np.frombuffer(extend.positions, np.int32)
    return Extends(numbers, sizes, ends, facts[5], facts[6].astype(bool), tokens, slots, by_token)
