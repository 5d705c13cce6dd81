"""What a step tells the attention kernels, and what they answer.

Shape suffixes:  T new tokens of the step    R rows (one a request)    L cached positions of a row
                 H query heads               D head_dim
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ..kv_pool import KVPool
from .row_groups import Groups, PackedGroups, RowGroups

__all__ = ["Attention", "AttentionBatch", "Plan"]

# What `plan` computed for a step.  Only the attention that made it can read it.
Plan = Any


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Which tokens of which rows a step computes, and where their keys lie.

    Row r's new tokens are [query_starts_R1[r], query_starts_R1[r + 1]) of the step; it has at least one.  Its last new
    token sees lengths[r] keys, itself included; the one before sees one less, and so on.

        row r:  [0, lengths[r] - query_lengths[r])                already in the pool, perhaps another row's too
                [lengths[r] - query_lengths[r], lengths[r])       new in this step

    query_starts_R1: int32 [R + 1], on the host.        query_lengths, lengths: the same on the host, as ints.
    table_RL: int32 or int64 [R, >= max(lengths)], on the device: the slot of each row's i-th token.  What stands behind
    a row's length is never looked at.  slots_T: int64 [T], on the device: the slot of each new token.
    positions_T: int64 [T], on the device: what the rotary embedding turns by.  Masks count table columns instead, so
    rows whose positions jump (joined branches) see every key once.

    For kernels that run without asking the host; None where nothing needs them:
    rows_R: int32 [R], on the device: the line of table_RL that is each row's; None if line r is row r's.
    lengths_R: int32 [R], on the device: as `lengths`.  In a step that is captured and replayed these are the truth, and
    `lengths` an upper bound.  starts_R1: int32 [R + 1], on the device: as query_starts_R1.
    extends: rows [0, extends) may have several new tokens, rows [extends, R) have one each.
    groups: which of the latter attend together, as the attention has packed it; None if none do.  extend_groups: which
    of the former.

    room: 0, or how many tokens the extends have room for, in a step that is padded, to be captured and replayed; only
    for an attention that `pads`.  The rows that decode begin behind it.  Extends' tokens stand in front of it and their
    rows in front of the others, whose starts_R1 tell that they have none; tokens of no row get any result.
    query_lengths are then no truth either, and starts_R1 is only told of the rows that extend, [extends + 1].
    short: in such a step no row that extends has more new tokens than the attention's `short_queries`.
    """

    query_starts_R1: Tensor
    query_lengths: list[int]
    lengths: list[int]
    table_RL: Tensor
    slots_T: Tensor
    positions_T: Tensor
    rows_R: Tensor | None = None
    lengths_R: Tensor | None = None
    starts_R1: Tensor | None = None
    extends: int = 0
    groups: Groups | None = None
    extend_groups: Groups | None = None
    room: int = 0
    short: bool = False


class Attention(ABC):
    """Attend new tokens to what their rows have cached: all of it, or a window of it.

    Whoever makes one may say `windows: tuple[int | None, ...]`, by keyword: one a layer, () if no layer has any.  In a
    layer whose window is w a query sees itself and the w - 1 keys before it, counted in table columns; in a layer whose
    window is None it sees all of them.  `attend` looks its layer's up, so that neither it nor `plan` is told.

    pads: whether it takes a batch with `room`, and reads nothing else of it on the host than `lengths`, as a bound.
    short_queries: it has another way for steps whose extends have so many new tokens at most; 0 if it has none.
    """

    pads: bool = False
    short_queries: int = 0

    @abstractmethod
    def plan(self, batch: AttentionBatch) -> Plan:
        """Prepare a step once for all layers: gather indices, masks, groups of rows."""

    def pack(self, groups: RowGroups, rows: int) -> PackedGroups | None:
        """Prepare on the host how decoding rows attend together, for steps of `rows` of them and as long as they last.

        None, which any attention may answer: they had better attend alone.
        """
        del groups, rows
        return None

    def replay(self, lengths: np.ndarray) -> None:
        """Prepare the replay of a captured step: its rows, which all decode, have these lengths now, int32 [R].

        An attention that reads lengths on the device has nothing to do.
        """
        del lengths

    def pack_extends(self, groups: RowGroups, queries_R: np.ndarray) -> PackedGroups | None:
        """Prepare on the host how rows that extend attend together, for one step; None as for `pack`.

        queries_R: of the extending rows, as query_lengths of the batch.  Groups end before a row's new tokens begin.
        """
        del groups, queries_R
        return None

    @abstractmethod
    def attend(
        self, q_THD: Tensor, layer: int, pool: KVPool, plan: Plan, fresh: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """Return what each new token attends to, [T, H, D].

        The keys and values of the new tokens are in the pool already.  fresh: they once more, [T, K, D] each, side by
        side: whole prompts can be attended to without a look into the pool.
        """
