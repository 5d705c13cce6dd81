"""From a Step to the arrays of one forward pass, laid out on the host and sent to the device in one transfer.

Shape suffixes:  T new tokens    R rows of the step    N rows that sample    W slots to write into the rows' tables
                 G words of groups
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...kernels.attention.interface import AttentionBatch
from ...kernels.attention.row_groups import Groups, PackedGroups
from ..messages import Extend, Step
from .batch import Batch, Sampled
from .rows import Rows
from .staging import Staging

__all__ = ["Decodes", "lay_out", "padded", "read_decodes", "views"]


class Decodes:
    """The decoding rows of a step on the host: rows, slots and positions, int32 [n] each.

    Reading them lengthens the rows.
    """

    __slots__ = ("positions", "rows", "slots")

    def __init__(self, rows: np.ndarray, slots: np.ndarray, positions: np.ndarray) -> None:
        self.rows = rows
        self.slots = slots
        self.positions = positions

    def __len__(self) -> int:
        return len(self.rows)


def read_decodes(step: Step, rows: Rows) -> Decodes:
    """Read which rows decode, and count their new token."""
    decode_rows = np.frombuffer(step.decode_rows, np.int32)
    slots = np.frombuffer(step.decode_slots, np.int32)
    assert len(decode_rows) == len(slots), "a slot a decoding row"
    positions = rows.lengths[decode_rows]
    assert positions.all(), f"rows {decode_rows[positions == 0]} decode but have not begun"
    rows.lengths[decode_rows] += 1
    return Decodes(decode_rows, slots, positions.astype(np.int32))


def lay_out(
    step: Step,
    rows: Rows,
    staging: Staging,
    ahead: Sequence[np.ndarray] = (),
    groups: PackedGroups | None = None,
) -> tuple[Batch, list[Tensor]] | None:
    """Lay a step out on the device, write its slots into the rows' tables; None if it has no tokens.

    ahead: arrays that go first in the same transfer; they are given back as they are on the device.
    groups: of the step's decoding rows.
    Waits for nothing: every shape is known to the host, and everything the host sends goes in one transfer.
    """
    decodes = read_decodes(step, rows)
    extends = [_Chunk(rows, extend) for extend in step.extends]
    count, sizes = len(decodes), [len(chunk.tokens) for chunk in extends]
    if not extends and not count:
        return None
    extended = sum(sizes)
    batch_rows = np.concatenate(([chunk.row for chunk in extends], decodes.rows)).astype(np.int32)
    query_lengths = np.array(sizes + [1] * count, np.int32)
    starts = np.concatenate(([0], np.cumsum(query_lengths))).astype(np.int32)
    lengths = rows.lengths[batch_rows].astype(np.int32)
    sampling = np.array([chunk.sample for chunk in extends] + [True] * count, bool)
    sampled = batch_rows[sampling]
    # What is written to the tables: the T new tokens' slots, then those that beginning rows found in the cache.
    prefixes, rows.prefixes = rows.prefixes, []
    found = [np.arange(len(cached), dtype=np.int32) for _, cached in prefixes]
    slots = np.concatenate([*(chunk.slots for chunk in extends), decodes.slots, *(cached for _, cached in prefixes)])
    positions = np.concatenate([*(chunk.positions for chunk in extends), decodes.positions, *found])
    owners = np.repeat(
        np.concatenate((batch_rows, [row for row, _ in prefixes])).astype(np.int32),
        np.concatenate((query_lengths, [len(cached) for _, cached in prefixes])).astype(np.int64),
    )
    tokens = np.concatenate([*(chunk.tokens for chunk in extends), decodes.rows[:0]])
    last, ends = starts[1:][sampling] - 1, lengths[sampling]
    words = decodes.rows[:0] if groups is None else groups.words_W
    parts = (tokens, slots, positions, owners, batch_rows, starts, lengths, sampled, last, ends, words)
    sent = staging.send((*ahead, *parts))
    before, sent = sent[: len(ahead)], sent[len(ahead) :]
    tokens_E, slots_W, positions_W, owners_W, rows_R, starts_R1, lengths_R, sampled_N, index_N, ends_N, words_G = sent
    owners_W, positions_W = owners_W.long(), positions_W.long()
    rows.tables.index_put_((owners_W, positions_W), slots_W)
    total = int(starts[-1])
    tokens_T, positions_T = tokens_E.long(), positions_W[:total]
    if count:
        tokens_T = torch.cat((tokens_T, rows.last_tokens[owners_W[extended:total]]))
    attention = AttentionBatch(
        query_starts_R1=torch.from_numpy(starts),
        query_lengths=query_lengths.tolist(),
        lengths=lengths.tolist(),
        table_RL=rows.tables,
        slots_T=slots_W[:total].long(),
        positions_T=positions_T,
        rows_R=rows_R,
        lengths_R=lengths_R,
        starts_R1=starts_R1,
        extends=len(extends),
        groups=None if groups is None else Groups(words_G, groups.kind),
    )
    in_order = len(sampled) == total
    batch = Batch(
        tokens_T,
        attention,
        Sampled(sampled.astype(np.int64), sampled_N.long(), rows.lengths[sampled]),
        None if in_order else index_N.long(),
        ends_N.long(),
    )
    return batch, before


class _Chunk:
    """An extend's tokens, slots and positions, int32 on the host; making it lengthens the row."""

    __slots__ = ("positions", "row", "sample", "slots", "tokens")

    def __init__(self, rows: Rows, extend: Extend) -> None:
        self.row, self.sample = extend.row, extend.sample
        self.tokens = np.frombuffer(extend.tokens, np.int32)
        self.slots = np.frombuffer(extend.slots, np.int32)
        end = extend.start + len(self.tokens)
        assert len(self.tokens) == len(self.slots) > 0, "a slot a token, and at least one"
        assert rows.lengths[extend.row] == extend.start, "an extend goes on where its row ended"
        assert end <= rows.context_length, "a row's table holds context_length slots"
        rows.lengths[extend.row] = end
        self.positions = np.arange(extend.start, end, dtype=np.int32)


def padded(decodes: Decodes, size: int, dummy_row: int, dummy_slot: int) -> tuple[np.ndarray, ...]:
    """Fill decoding rows up to `size` with a row that is nobody's: rows, slots, positions and lengths, int32 [size]."""
    rest = size - len(decodes)
    fill = np.zeros(rest, np.int32)
    rows = np.concatenate((decodes.rows, fill + np.int32(dummy_row)))
    slots = np.concatenate((decodes.slots, fill + np.int32(dummy_slot)))
    positions = np.concatenate((decodes.positions, fill))
    return rows, slots, positions, positions + np.int32(1)


def views(inputs: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Read rows, slots, positions and lengths back from one tensor."""
    rows, slots, positions, lengths = inputs[: 4 * size].view(4, size).unbind(0)
    return rows, slots, positions, lengths
