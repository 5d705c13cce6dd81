"""Which rows of a step share which keys, as the attention is told and as it packs it for its kernels.

Shape suffixes:  N groups    M memberships, a group's behind the other's    W words
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

__all__ = ["Groups", "PackedGroups", "RowGroups"]


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Groups of rows that have the same slots at columns [start, end) of their tables: all decode, or all extend.

    lines_N: the line of the table that tells these slots.  starts_N, ends_N, counts_N: the columns, and how many rows.
    members_M: the rows of the first group, then of the second, ...; numbers of decoding or of extending rows, from 0.
    All int32.
    A row's groups stand in order and tile [0, its shared part); a group inside another stands behind it.
    """

    lines_N: np.ndarray
    starts_N: np.ndarray
    ends_N: np.ndarray
    counts_N: np.ndarray
    members_M: np.ndarray


@dataclass(frozen=True, slots=True)
class PackedGroups:
    """Groups as the attention that packed them wants them on the device.

    words_W: int32.  room: how many words it needs at most for this many rows, whatever the groups.  kind: what launches
    depend on; a captured step may be replayed with any groups of its kind.  saved_tokens: how many keys are read less
    than if each row (of extends: each new token) read its own, in layers without a window.
    Of extends also: parts, how many parts of tokens there are to merge.
    """

    words_W: np.ndarray
    room: int
    kind: int
    saved_tokens: int
    parts: int = 0


@dataclass(frozen=True, slots=True)
class Groups:
    """PackedGroups on the device: words_W, int32, perhaps longer than what was packed."""

    words_W: Tensor
    kind: int
    parts: int = 0
