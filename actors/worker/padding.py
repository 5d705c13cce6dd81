"""A step with prompts laid out in fixed room, so that steps of other sizes are launches of the same shapes.

    tokens    extends' | nobody's || decoding rows' | nobody's          T = room.tokens + room.decodes
    rows      extends  | nobody's || decoding       | nobody's          R = room.extends + room.decodes

What is nobody's writes to the slot that nobody owns, and to the table's line that belongs to nobody.

Shape suffixes:  T tokens    E tokens of extends    R rows    X rows that extend    N rows that sample
                 G words of groups: room for those of decoding rows, then those of extends
"""

from __future__ import annotations

from dataclasses import dataclass
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

__all__ = [
    "Fields",
    "Room",
    "Sharing",
    "lay_out_padded",
    "padded_batch",
    "room_words",
    "split",
    "step_words",
]

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
    """A padded step's arrays, int32.

    tokens_E: the extends'.  by_token_4T: slots, columns, positions, and the rows they belong to.  by_row_5R: rows,
    lengths, the tokens behind which is sampled; and, first of all these columns, the rows that sample and their
    lengths, which no layer reads.  What is left of the last three lines names token 0, and nobody.
    """

    tokens_E: Array
    by_token_4T: Array
    by_row_5R: Array
    starts_X1: Array
    words_G: Array


def split(words: Array, room: Room) -> Fields[Array]:
    """Name the parts of what lies side by side; the groups have what is left."""
    tokens, rows = room.tokens + room.decodes, room.extends + room.decodes
    by_row = room.tokens + 4 * tokens
    starts = by_row + 5 * rows
    end = starts + room.extends + 1
    return Fields(
        words[: room.tokens],
        words[room.tokens : by_row].reshape(4, tokens),
        words[by_row:starts].reshape(5, rows),
        words[starts:end],
        words[end:],
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
    own = 5 * room.tokens + 4 * room.decodes + 5 * (room.extends + room.decodes) + room.extends + 1
    return own + sharing.words + sharing.extend_words


def step_words(room: Room, groups: PackedGroups | None, extend_groups: PackedGroups | None) -> int:
    """Tell how many words a step has: those of the extends' groups are the last, and cut where they end."""
    own = room_words(room, Sharing(words=0 if groups is None else groups.room))
    return own if extend_groups is None else own + len(extend_groups.words_W)


def lay_out_padded(
    step: Step,
    rows: Rows,
    room: Room,
    dummy_slot: int,
    words: np.ndarray,
    groups: PackedGroups | None = None,
    extend_groups: PackedGroups | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Read a step, which lengthens its rows, and lay it out in `words`, int32 [step_words], to be read by `split`.

    groups: of `room.decodes` decoding rows.  extend_groups: of extends with `room.tokens` tokens.
    Gives the rows that sample, int32 [N], and how long they are, int64 [N].
    """
    decodes, extends = read_decodes(step, rows), read_extends(step.extends, rows)
    fields = split(words, room)
    by_token, by_row = fields.by_token_4T, fields.by_row_5R
    tokens, count, first = len(extends.tokens), len(extends.rows), room.tokens
    fields.tokens_E[:tokens], fields.tokens_E[tokens:] = extends.tokens, 0
    by_token[:] = ((dummy_slot,), (0,), (0,), (rows.max_rows,))
    by_token[0, :tokens], by_token[1:, :tokens] = extends.slots, extends.by_token_3T
    by_row[:] = ((rows.max_rows,), (1,), (0,), (rows.max_rows,), (1,))
    by_row[:2, :count] = (extends.rows, extends.ends)
    sampled, last = extends.rows[extends.sample], extends.stops[extends.sample] - 1
    if decoding := len(decodes):
        decoded = (decodes.slots, decodes.columns, decodes.positions, decodes.rows)
        by_token[:, first : first + decoding] = decoded
        by_row[:2, room.extends : room.extends + decoding] = (decodes.rows, decodes.lengths)
        sampled = np.concatenate((sampled, decodes.rows))
        last = np.concatenate((last, np.arange(first, first + decoding)))
    ends = rows.lengths[sampled]
    by_row[2:, : len(sampled)] = (last, sampled, ends)
    starts = fields.starts_X1
    starts[0], starts[1 : count + 1], starts[count + 1 :] = 0, extends.stops, tokens
    _write_groups(fields.words_G, groups, extend_groups)
    return sampled, ends


def _write_groups(words_G: np.ndarray, groups: PackedGroups | None, extend_groups: PackedGroups | None) -> None:
    if groups is not None:
        words_G[: len(groups.words_W)] = groups.words_W
        words_G[len(groups.words_W) : groups.room] = 0
        words_G = words_G[groups.room :]
    if extend_groups is not None:
        words_G[:] = extend_groups.words_W


def padded_batch(fields: Fields[Tensor], room: Room, sharing: Sharing, tables_RL: Tensor) -> AttentionBatch:
    """Tell the attention of a padded step on the device."""
    rows = room.extends + room.decodes
    slots_T, _, positions_T, _ = fields.by_token_4T
    rows_R, lengths_R, *_ = fields.by_row_5R
    return AttentionBatch(
        query_starts_R1=torch.arange(rows + 1, dtype=torch.int32),
        query_lengths=[1] * rows,
        lengths=[tables_RL.shape[1]] * rows,
        table_RL=tables_RL,
        slots_T=slots_T.long(),
        positions_T=positions_T.long(),
        rows_R=rows_R,
        lengths_R=lengths_R,
        starts_R1=fields.starts_X1,
        extends=room.extends,
        groups=sharing.groups(fields.words_G),
        extend_groups=sharing.extend_groups(fields.words_G),
        room=room.tokens,
        short=room.short,
    )
