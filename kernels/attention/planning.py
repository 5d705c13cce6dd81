"""What the reference attention prepares once a step: where to read, what to hide, where results go.

Shape suffixes:  R pieces of a part    N queries of a piece, padded    L keys of a piece, padded    K key heads
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor

from .groups import Piece, cut, group, is_uniform
from .interface import AttentionBatch

__all__ = ["Decode", "Extend", "Part", "ReferencePlan", "Scatter", "plan_parts"]


@dataclass(frozen=True, slots=True)
class Decode:
    """R rows with one query each, padded to L keys.

    gather: int [R * K * L], where each row's heads find their keys and values, counted in heads of the pool.
    mask: float32 [R * K, 1, L] to add to the scores, or None if every row sees L keys.
    """

    shape_RL: tuple[int, int]
    gather: Tensor
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class Extend:
    """R pieces of rows, padded to N queries and L keys.

    gather: int [R * L], the slots to read.  mask: float32 [R, 1, N, L] to add to the scores.  None if the pieces are
    whole new rows of N tokens: then a query sees the tokens up to itself.
    """

    shape_RNL: tuple[int, int, int]
    gather: Tensor
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class Scatter:
    """Where a part's queries come from and where its results go.

    queries: int64 [R * N], a token of the step for every query; padding repeats one.  kept: int64, which of the R * N
    results are no padding, or None if all are kept.  tokens: int64, the tokens that the kept results belong to.
    """

    queries: Tensor
    kept: Tensor | None
    tokens: Tensor


@dataclass(frozen=True, slots=True)
class Part:
    """What is attended in one go.  scatter is None if it is the whole step, in order."""

    work: Decode | Extend
    scatter: Scatter | None


@dataclass(frozen=True)
class ReferencePlan:
    """A step and its parts, which are planned when first asked for: a step that runs in C (kernels/native) needs none.

    scale: what scores are multiplied by.
    """

    batch: AttentionBatch
    kv_heads: int
    keys_at_once: int
    scale: float

    planned: dict[int | None, list[Part]] = field(default_factory=dict[int | None, list[Part]])

    def parts(self, window: int | None) -> list[Part]:
        """Give the parts for the layers with this window."""
        if window is not None and window >= max(self.batch.lengths):
            window = None  # it hides nothing
        if window not in self.planned:
            self.planned[window] = plan_parts(self.batch, self.kv_heads, self.keys_at_once, window)
        return self.planned[window]


def plan_parts(batch: AttentionBatch, kv_heads: int, keys_at_once: int, window: int | None) -> list[Part]:
    """Plan a step: one part if every row decodes and they fit together, else parts of similar pieces.

    A window is a mask: keys outside it are gathered and hidden.
    """
    if is_uniform(batch.query_lengths, batch.lengths, keys_at_once):
        return [Part(_decode(batch.table_RL, batch.lengths, kv_heads, window), None)]
    groups = group(cut(batch.query_lengths, batch.lengths, windowed=window is not None), keys_at_once)
    return [_plan_group(batch, pieces, kv_heads, window, alone=len(groups) == 1) for pieces in groups]


def _plan_group(batch: AttentionBatch, pieces: list[Piece], kv_heads: int, window: int | None, *, alone: bool) -> Part:
    """Plan one group; `alone` says that it is the whole step."""
    queries = max(piece.queries for piece in pieces)
    rows_R = torch.tensor([piece.row for piece in pieces], device=batch.table_RL.device)
    table_RL = batch.table_RL.index_select(0, rows_R)
    if queries == 1:
        work = _decode(table_RL, [piece.keys for piece in pieces], kv_heads, window)
    else:
        work = _extend(table_RL, pieces, window)
    in_order = alone and all(piece.queries == queries and piece.row == number for number, piece in enumerate(pieces))
    return Part(work, None if in_order else _scatter(batch, pieces, queries))


def _decode(table_RL: Tensor, lengths: list[int], kv_heads: int, window: int | None) -> Decode:
    """Plan rows of one query each, without a loop over them."""
    rows, longest = len(lengths), max(lengths)
    device, slots_RL = table_RL.device, table_RL[:, :longest]
    mask: Tensor | None = None
    if min(lengths) < longest or (window is not None and window < longest):
        hidden_RL = _hidden(torch.arange(longest, device=device), torch.tensor(lengths, device=device), window)
        mask = _mask(hidden_RL).repeat_interleave(kv_heads, 0).unsqueeze(1)
        slots_RL = _pad(slots_RL, hidden_RL)
    heads_K1 = torch.arange(kv_heads, dtype=slots_RL.dtype, device=device).unsqueeze(1)
    return Decode((rows, longest), (slots_RL.unsqueeze(1) * kv_heads + heads_K1).view(-1), mask)


def _extend(table_RL: Tensor, pieces: list[Piece], window: int | None) -> Extend:
    """Plan pieces of any shape."""
    device = table_RL.device
    R, N, L = len(pieces), max(piece.queries for piece in pieces), max(piece.keys for piece in pieces)
    if window is None and all(piece.queries == piece.keys == N for piece in pieces):
        return Extend((R, N, L), table_RL[:, :L].reshape(-1), None)
    queries_R1 = torch.tensor([piece.queries for piece in pieces], device=device).unsqueeze(1)
    keys_R1 = torch.tensor([piece.keys for piece in pieces], device=device).unsqueeze(1)
    columns_L = torch.arange(L, device=device)
    # A piece's query sees its keys but for those of the queries behind it; padding sees what the last query sees.
    later_RN = (queries_R1 - 1 - torch.arange(N, device=device)).clamp(min=0)
    mask = _mask(_hidden(columns_L, keys_R1 - later_RN, window)).unsqueeze(1)
    return Extend((R, N, L), _pad(table_RL[:, :L], columns_L >= keys_R1).view(-1), mask)


def _pad(slots_RL: Tensor, behind_RL: Tensor) -> Tensor:
    """Replace what stands behind a row's length, or hidden before its window, by its first slot.

    The mask hides it, yet a NaN would pass through a weight of zero: so a row reads no slot but its own.
    """
    return torch.where(behind_RL, slots_RL[:, :1], slots_RL)


def _hidden(columns_L: Tensor, ends: Tensor, window: int | None) -> Tensor:
    """Tell which columns a query does not see: those from its end on, and those before its window."""
    ends = ends.unsqueeze(-1)
    hidden = columns_L >= ends
    return hidden if window is None else hidden | (columns_L < ends - window)


def _mask(hidden: Tensor) -> Tensor:
    """Turn "hidden" into what is added to scores."""
    return torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, float("-inf"))


def _scatter(batch: AttentionBatch, pieces: list[Piece], N: int) -> Scatter:
    """Plan where the queries of a group come from, and which results go where."""
    device = batch.table_RL.device
    row_starts = batch.query_starts_R1.tolist()
    starts = [row_starts[piece.row] + piece.first for piece in pieces]
    ranges = [range(start, start + piece.queries) for start, piece in zip(starts, pieces, strict=True)]
    tokens = torch.tensor(list(chain.from_iterable(ranges)), device=device)
    if all(piece.queries == N for piece in pieces):
        return Scatter(tokens, None, tokens)
    starts_R1 = torch.tensor(starts, device=device).unsqueeze(1)
    last_R1 = torch.tensor([piece.queries - 1 for piece in pieces], device=device).unsqueeze(1)
    offsets_N = torch.arange(N, device=device)
    queries = (starts_R1 + torch.minimum(offsets_N, last_R1)).view(-1)
    kept = (offsets_N <= last_R1).view(-1).nonzero().view(-1)
    return Scatter(queries, kept, tokens)
