"""A step with prompts laid out in fixed room, so that steps of other sizes are launches of the same shapes.

    tokens    extends' | nobody's || decoding rows' | nobody's          T = room.tokens + room.decodes
    rows      extends  | nobody's || decoding       | nobody's          R = room.extends + room.decodes

What is nobody's writes to the slot that nobody owns, and to the table's line that belongs to nobody.

Shape suffixes:  T tokens    E tokens of extends    R rows    X rows that extend    N rows that sample
                 G words of groups: room for those of decoding rows, then those of extends
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from ...kernels.attention.interface import AttentionBatch
from ...kernels.attention.row_groups import Groups, PackedGroups
from ..messages import Step
from .decodes import read_decodes
from .extends import read_extends
from .rows import Rows

__all__ = ["Fields", "Laid", "Room", "Sharing", "lay_out_padded", "padded_batch", "room_words", "split"]

Array = TypeVar("Array", np.ndarray, Tensor)


class Room(NamedTuple):
    """What a padded step has room for: the extends' tokens, the extending and the decoding rows.

    short: no row extends by more tokens than the attention's `short_queries`.
    """

    tokens: int
    extends: int
    decodes: int
    short: bool = False


@dataclass(frozen=True, slots=True)
class Fields(Generic[Array]):
    """A padded step's arrays, int32.  index_R: the tokens behind which is sampled; what is left of it names token 0."""

    tokens_E: Array
    slots_T: Array
    columns_T: Array
    positions_T: Array
    owners_T: Array
    rows_R: Array
    lengths_R: Array
    index_R: Array
    starts_X1: Array
    words_G: Array


def split(words: Array, room: Room) -> Fields[Array]:
    """Name the parts of what lies side by side; the groups have what is left."""
    tokens, rows = room.tokens + room.decodes, room.extends + room.decodes
    sizes = (room.tokens, *[tokens] * 4, *[rows] * 3, room.extends + 1)
    ends = list(accumulate(sizes, initial=0))
    slots, columns, positions, owners, *by_row = [words[start:end] for start, end in pairwise(ends[1:])]
    row_numbers, lengths, index, starts = by_row
    return Fields(
        words[: room.tokens], slots, columns, positions, owners, row_numbers, lengths, index, starts, words[ends[-1] :]
    )


class Sharing(NamedTuple):
    """What a padded step's launches depend on of the groups in which rows attend together.

    kind, words: of the decoding rows' groups, and how many words they have room for; -1 and 0 if there are none.
    extend_kind: of the extends'; extend_parts: no fewer than the groups have (PackedGroups).
    """

    kind: int = -1
    words: int = 0
    extend_kind: int = -1
    extend_words: int = 0
    extend_parts: int = 0

    def groups(self, words_G: Tensor) -> Groups | None:
        """Give the decoding rows' groups on the device."""
        return None if self.kind < 0 else Groups(words_G[: self.words], self.kind)

    def extend_groups(self, words_G: Tensor) -> Groups | None:
        """Give the extends' groups on the device."""
        if self.extend_kind < 0:
            return None
        return Groups(words_G[self.words :], self.extend_kind, self.extend_parts)


def room_words(room: Room, sharing: Sharing) -> int:
    """Tell for how many words a padded step has room."""
    own = 5 * room.tokens + 4 * room.decodes + 3 * (room.extends + room.decodes) + room.extends + 1
    return own + sharing.words + sharing.extend_words


@dataclass(frozen=True, slots=True)
class Laid:
    """A padded step on the host.  words: as `split` takes them.  sampled_N, ends_N: rows, and how long they are."""

    words: np.ndarray
    sampled_N: np.ndarray
    ends_N: np.ndarray


def lay_out_padded(
    step: Step,
    rows: Rows,
    room: Room,
    dummy_slot: int,
    groups: PackedGroups | None = None,
    extend_groups: PackedGroups | None = None,
) -> Laid:
    """Read a step, which lengthens its rows, and lay it out.

    groups: of `room.decodes` decoding rows.  extend_groups: of extends with `room.tokens` tokens.
    """
    decodes, extends = read_decodes(step, rows), read_extends(step.extends, rows)
    decoding_words = 0 if groups is None else groups.room
    words_G = np.zeros(0, np.int32) if extend_groups is None else extend_groups.words_W  # last, and cut where they end
    words = np.zeros(room_words(room, Sharing(words=decoding_words)) + len(words_G), np.int32)
    fields = split(words, room)
    count, stops = len(extends.rows), extends.sizes.cumsum(dtype=np.int32)
    owners = np.repeat(extends.rows, extends.sizes)
    fields.tokens_E[: len(extends.tokens)] = extends.tokens
    _fill(fields.slots_T, room.tokens, extends.slots, decodes.slots, dummy_slot)
    _fill(fields.columns_T, room.tokens, extends.columns, decodes.columns, 0)
    _fill(fields.positions_T, room.tokens, extends.positions, decodes.positions, 0)
    _fill(fields.owners_T, room.tokens, owners, decodes.rows, rows.max_rows)
    _fill(fields.rows_R, room.extends, extends.rows, decodes.rows, rows.max_rows)
    _fill(fields.lengths_R, room.extends, rows.lengths[extends.rows], decodes.lengths, 1)
    fields.starts_X1[1 : count + 1] = stops
    fields.starts_X1[count + 1 :] = stops[-1]
    last = np.concatenate((stops[extends.sample] - 1, np.arange(room.tokens, room.tokens + len(decodes))))
    fields.index_R[: len(last)] = last
    if groups is not None:
        fields.words_G[: len(groups.words_W)] = groups.words_W
    fields.words_G[decoding_words:] = words_G
    sampled = np.concatenate((extends.rows[extends.sample], decodes.rows))
    return Laid(words, sampled, rows.lengths[sampled])


def padded_batch(fields: Fields[Tensor], room: Room, sharing: Sharing, tables_RL: Tensor) -> AttentionBatch:
    """Tell the attention of a padded step on the device."""
    rows = room.extends + room.decodes
    return AttentionBatch(
        query_starts_R1=torch.arange(rows + 1, dtype=torch.int32),
        query_lengths=[1] * rows,
        lengths=[tables_RL.shape[1]] * rows,
        table_RL=tables_RL,
        slots_T=fields.slots_T.long(),
        positions_T=fields.positions_T.long(),
        rows_R=fields.rows_R,
        lengths_R=fields.lengths_R,
        starts_R1=fields.starts_X1,
        extends=room.extends,
        groups=sharing.groups(fields.words_G),
        extend_groups=sharing.extend_groups(fields.words_G),
        room=room.tokens,
        short=room.short,
    )


def _fill(part: np.ndarray, start: int, extends: np.ndarray, decodes: np.ndarray, rest: int) -> None:
    """Write what is the extends', and from `start` on what is the decoding rows'; the rest is nobody's."""
    part[len(extends) : start] = rest
    part[start + len(decodes) :] = rest
    part[: len(extends)] = extends
    part[start : start + len(decodes)] = decodes
