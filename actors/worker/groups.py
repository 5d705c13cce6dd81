"""From a Step's groups to what the attention packs of them, kept for as long as the same rows decode.

Shape suffixes:  N groups    M memberships    R rows
"""

from __future__ import annotations

import numpy as np

from ...kernels.attention.interface import Attention
from ...kernels.attention.row_groups import PackedGroups, RowGroups
from ..messages import Step

__all__ = ["GroupPacker", "read_groups"]


class GroupPacker:
    """Pack each step's groups by the attention that will read them, anew only if they or the rows are others."""

    def __init__(self, attention: Attention, max_rows: int) -> None:
        self._attention = attention
        self._numbers = np.full(max_rows, -1, np.int32)
        self._groups, self._rows, self._size = b"", b"", 0
        self._packed: PackedGroups | None = None

    def pack(self, step: Step, size: int) -> PackedGroups | None:
        """Give the step's groups for a pass of `size` decoding rows, the step's first; None if they attend alone."""
        if not step.groups:
            return None
        if (step.groups, step.decode_rows, size) != (self._groups, self._rows, self._size):
            groups = read_groups(step.groups, np.frombuffer(step.decode_rows, np.int32), self._numbers)
            self._packed = self._attention.pack(groups, size)
            self._groups, self._rows, self._size = step.groups, step.decode_rows, size
        return self._packed

    def pack_extends(self, step: Step, room: int = 0) -> PackedGroups | None:
        """Give the groups of the step's extends; None if they attend alone.

        room: for how many tokens, if the extends' are padded.
        """
        if not step.extend_groups:
            return None
        rows, queries = np.array([(extend.row, len(extend.tokens) // 4) for extend in step.extends], np.int32).T
        groups = read_groups(step.extend_groups, rows, self._numbers)
        if (rest := room - int(queries.sum())) > 0:  # nobody's tokens: of a row that is in no group
            queries = np.append(queries, np.int32(rest))
        return self._attention.pack_extends(groups, queries)


def read_groups(packed: bytes, rows: np.ndarray, numbers: np.ndarray) -> RowGroups:
    """Read groups of a Step.  rows: of the step, in order.  numbers: int32 [max_rows], all -1, and left as it was."""
    words = np.frombuffer(packed, np.int32)
    listed = words.tolist()
    heads: list[int] = []
    place = 0
    while place < len(listed):
        heads.append(place)
        place += 4 + listed[place + 3]
    assert place == len(listed), "groups end where their last row stands"
    heads_N = np.array(heads)
    lines_N, starts_N, ends_N, counts_N = (words[heads_N + column] for column in range(4))
    is_member = np.ones(len(words), bool)
    is_member[heads_N[:, None] + np.arange(4)] = False
    numbers[rows] = np.arange(len(rows), dtype=np.int32)
    members_M = numbers[words[is_member]]
    numbers[rows] = -1
    assert (members_M >= 0).all(), "every row of a group is one of the step's"
    return RowGroups(lines_N, starts_N, ends_N, counts_N, members_M)
