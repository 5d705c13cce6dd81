"""From a Step to the arrays of one forward pass, laid out on the host and sent to the device in one transfer.

Shape suffixes:  T new tokens    R rows of the step    N rows that sample    E tokens of extends    G words of groups
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...kernels.attention.interface import AttentionBatch
from ...kernels.attention.row_groups import Groups, PackedGroups
from ..messages import Step
from .batch import Batch, Sampled
from .decodes import read_decodes
from .extends import read_extends
from .rows import Rows
from .staging import Staging

__all__ = ["lay_out"]


def lay_out(
    step: Step,
    rows: Rows,
    staging: Staging,
    groups: PackedGroups | None = None,
    extend_groups: PackedGroups | None = None,
) -> Batch | None:
    """Lay a step out on the device, write its slots into the rows' tables; None if it has no tokens.

    groups: of the step's decoding rows.  extend_groups: of its extends.
    Waits for nothing: every shape is known to the host, and everything the host sends goes in one transfer.
    """
    decodes = read_decodes(step, rows)
    count, extends = len(decodes), read_extends(step.extends, rows)
    if not len(extends.rows) and not count:
        return None
    batch_rows = np.concatenate((extends.rows, decodes.rows))
    query_lengths = np.concatenate((extends.sizes, np.ones(count, np.int32)))
    starts = np.zeros(len(batch_rows) + 1, np.int32)
    query_lengths.cumsum(out=starts[1:])
    lengths = rows.lengths[batch_rows].astype(np.int32)
    sampling = np.concatenate((extends.sample, np.ones(count, bool)))
    sampled = batch_rows[sampling]
    slots = np.concatenate((extends.slots, decodes.slots))
    told = (decodes.columns, decodes.positions, decodes.rows)
    columns, positions, owners = np.concatenate((extends.by_token_3T, told), axis=1)
    last, ends = starts[1:][sampling] - 1, lengths[sampling]
    words = np.concatenate([decodes.rows[:0], *(each.words_W for each in (groups, extend_groups) if each is not None)])
    new = (extends.tokens, slots, columns, positions, owners)
    parts = (*new, batch_rows, starts, lengths, sampled, last, ends, words)
    prefixes = rows.prefixes.tell()
    begun, cached, *sent = staging.send((*prefixes.parts, *parts))
    prefixes.write((begun, cached), rows.tables)
    tokens_E, slots_T, columns_T, positions_T, owners_T, *sent = sent
    rows_R, starts_R1, lengths_R, sampled_N, index_N, ends_N, words_G = sent
    owners_T = owners_T.long()
    rows.tables.index_put_((owners_T, columns_T.long()), slots_T)
    tokens_T = tokens_E.long()
    if count:
        tokens_T = torch.cat((tokens_T, rows.last_tokens[owners_T[len(tokens_E) :]]))
    attention = AttentionBatch(
        query_starts_R1=torch.from_numpy(starts),
        query_lengths=query_lengths.tolist(),
        lengths=lengths.tolist(),
        table_RL=rows.tables,
        slots_T=slots_T.long(),
        positions_T=positions_T.long(),
        rows_R=rows_R,
        lengths_R=lengths_R,
        starts_R1=starts_R1,
        extends=len(extends.rows),
        groups=None if groups is None else Groups(words_G, groups.kind),
        extend_groups=None if extend_groups is None else _last(words_G, extend_groups),
    )
    in_order = len(sampled) == len(slots)
    return Batch(
        tokens_T,
        attention,
        Sampled(sampled.astype(np.int64), sampled_N.long(), rows.lengths[sampled]),
        None if in_order else index_N.long(),
        ends_N.long(),
    )


def _last(words_G: Tensor, packed: PackedGroups) -> Groups:
    """Find packed groups at the end of words on the device."""
    return Groups(words_G[-len(packed.words_W) :], packed.kind, packed.parts)
