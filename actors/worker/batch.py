"""From a Step to the tensors of one forward pass, as a CPU takes them; a GPU's way is layout.py."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ...kernels.attention.interface import AttentionBatch
from ..messages import Extend, Step
from .decodes import Decodes, read_decodes
from .extends import read_extends
from .rows import Rows

__all__ = ["Batch", "Sampled", "build_batch"]


@dataclass(frozen=True)
class Sampled:
    """The N rows of a pass that sample: extends with `sample`, then decodes.

    rows: int64 [N] on the host.  rows_N: the same on the device.  positions: int64 [N] on the host, where the sampled
    tokens will stand.
    """

    rows: np.ndarray
    rows_N: Tensor
    positions: np.ndarray

    @cached_property
    def listed(self) -> list[int]:
        return self.rows.tolist()


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward pass.  T new tokens, of the extends first, then one a decoding row.

    index_N: int64 [N], whose hidden state each row that samples needs, on the device; None if it is all T in order.
    positions_N: int64 [N], sampled.positions on the device, where it draws for itself; else None.
    """

    tokens_T: Tensor
    attention: AttentionBatch
    sampled: Sampled
    index_N: Tensor | None
    positions_N: Tensor | None = None


def build_batch(step: Step, rows: Rows) -> Batch | None:
    """Lay a step's tokens out, write its slots into the rows' tables and lengthen the rows; None if it has no tokens.

    Everything the host sends goes in one transfer.
    """
    decodes = read_decodes(step, rows)
    if step.extends:
        return _mixed(rows, step.extends, decodes)
    return _decodes(rows, decodes, sample=not step.writes) if len(decodes) else None


def _decodes(rows: Rows, decodes: Decodes, *, sample: bool) -> Batch:
    count = len(decodes)
    packed = np.concatenate((decodes.rows, decodes.slots, decodes.columns, decodes.positions), dtype=np.int64)
    host = torch.from_numpy(packed)
    rows_R, slots_R, columns_R, positions_R = host.to(rows.device, non_blocking=True).view(4, count).unbind(0)
    rows.tables[rows_R, columns_R] = slots_R.to(torch.int32)
    decode_rows = packed[:count]
    ends = rows.lengths[decode_rows]
    lengths = ends.tolist()
    attention = AttentionBatch(
        query_starts_R1=rows.counting[: count + 1],
        query_lengths=[1] * count,
        lengths=lengths,
        table_RL=_table(rows, decode_rows, rows_R, max(lengths)),
        slots_T=slots_R,
        positions_T=positions_R,
    )
    sampled = Sampled(decode_rows, rows_R, ends) if sample else Sampled(decode_rows[:0], rows_R[:0], ends[:0])
    return Batch(rows.last_tokens[rows_R], attention, sampled, None)


def _mixed(rows: Rows, extends: tuple[Extend, ...], decodes: Decodes) -> Batch:
    new, count = read_extends(extends, rows), len(decodes)
    batch_rows = np.concatenate((new.rows, decodes.rows), dtype=np.int64)
    query_lengths = np.concatenate((new.sizes, np.ones(count, np.int64)))
    slots = np.concatenate((new.slots, decodes.slots))
    told = (decodes.columns, decodes.positions, decodes.rows)
    columns, positions, owners = np.concatenate((new.by_token_3T, told), axis=1)
    sampling = np.concatenate((new.sample, np.ones(count, bool)))
    ends = np.cumsum(query_lengths)
    sampled = batch_rows[sampling]
    packed = (new.tokens, slots, columns, positions, owners, batch_rows, sampled, ends[sampling] - 1)
    host = torch.from_numpy(np.concatenate(packed, dtype=np.int64)).to(rows.device, non_blocking=True)
    device = host.split([len(part) for part in packed])
    tokens_T, slots_T, columns_T, positions_T, owners_T, rows_R, sampled_N, index_N = device
    rows.tables[owners_T, columns_T] = slots_T.to(torch.int32)
    if count:
        tokens_T = torch.cat((tokens_T, rows.last_tokens[owners_T[len(new.tokens) :]]))
    lengths = rows.lengths[batch_rows].tolist()
    starts = np.concatenate(([0], ends)).astype(np.int32)
    attention = AttentionBatch(
        query_starts_R1=torch.from_numpy(starts),
        query_lengths=query_lengths.tolist(),
        lengths=lengths,
        table_RL=_table(rows, batch_rows, rows_R, max(lengths)),
        slots_T=slots_T,
        positions_T=positions_T,
    )
    return Batch(tokens_T, attention, Sampled(sampled, sampled_N, rows.lengths[sampled]), index_N)


def _table(rows: Rows, batch_rows: np.ndarray, rows_R: Tensor, longest: int) -> Tensor:
    """Give these rows' tables, as a view where they stand side by side."""
    first, count = int(batch_rows[0]), len(batch_rows)
    if count == 1 or (batch_rows[1:] - batch_rows[:-1] == 1).all():
        return rows.tables[first : first + count, :longest]
    return rows.tables[:, :longest].index_select(0, rows_R)
