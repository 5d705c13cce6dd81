"""Paged attention in plain torch: right for any mix of extending and decoding rows, and fast enough for a CPU.

Rows of similar shape form a group.  A group's cached tokens are gathered into one padded buffer, and torch's fused
attention runs over it.

Shape suffixes:  T new tokens of the step    R pieces of a group    N queries of a piece, padded    L its keys, padded
                 H query heads               K key heads            G = H / K, query heads sharing a key head
                 D head_dim                  E = 2 * K * D, a token's entry in the pool: keys, then values
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor
from torch.nn import functional

from ..kv_pool import KVPool
from .groups import Piece, cut, group, is_uniform
from .interface import Attention, AttentionBatch

__all__ = ["ReferenceAttention", "ReferencePlan"]


@dataclass(frozen=True, slots=True)
class Scatter:
    """Where a group's queries come from and where its results go, when it is not simply the step's tokens in order.

    queries: int64 [R * N], a token of the step for every query; padding repeats one.  kept: int64, which of the R * N
    results are no padding, or None if all are kept.  tokens: int64, the tokens that the kept results belong to.
    """

    queries: Tensor
    kept: Tensor | None
    tokens: Tensor


@dataclass(frozen=True, slots=True)
class Group:
    """Pieces attended together: R of them, padded to N queries and L keys.

    gather: int [R * L], the slots to read.  mask: float32 [R, 1, N, L] to add to the scores, or None if nothing is
    hidden but the future (causal: every piece is a whole new row of N tokens) or nothing at all.
    scatter: None if the group is the whole step in order.
    """

    shape_RNL: tuple[int, int, int]
    gather: Tensor
    mask: Tensor | None
    causal: bool
    scatter: Scatter | None


@dataclass(frozen=True, slots=True)
class ReferencePlan:
    """The groups of one step."""

    groups: list[Group]


class ReferenceAttention(Attention):
    """Attend by gathering.

    scale: what scores are multiplied by, 1 / sqrt(head_dim) unless given.  gather_bytes: how much is gathered at once;
    a few MiB are still in a CPU's last cache when they are attended to.
    """

    def __init__(
        self, heads: int, kv_heads: int, head_dim: int, scale: float | None = None, *, gather_bytes: int = 4 << 20
    ) -> None:
        if kv_heads < 1 or heads % kv_heads:
            raise ValueError(f"ReferenceAttention: heads is {heads}; it must be a multiple of kv_heads ({kv_heads})")
        self.heads = heads
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.scale = head_dim**-0.5 if scale is None else scale
        # An entry is counted as float32; with a smaller type the groups are just smaller than they could be.
        self.keys_at_once = gather_bytes // (8 * kv_heads * head_dim)
        self._buffer = torch.empty(0)

    def plan(self, batch: AttentionBatch) -> ReferencePlan:
        if is_uniform(batch.query_lengths, batch.lengths, self.keys_at_once):
            return ReferencePlan([_plan_decode(batch)])
        groups = group(cut(batch.query_lengths, batch.lengths), self.keys_at_once)
        return ReferencePlan([_plan_group(batch, pieces, alone=len(groups) == 1) for pieces in groups])

    def attend(self, q_THD: Tensor, layer: int, pool: KVPool, plan: ReferencePlan) -> Tensor:
        entries_SE = pool.entries[layer]
        out_THD: Tensor | None = None
        for part in plan.groups:
            scatter = part.scatter
            if scatter is None:
                return self._attend_group(q_THD, entries_SE, part)
            results = self._attend_group(q_THD.index_select(0, scatter.queries), entries_SE, part)
            if scatter.kept is not None:
                results = results.index_select(0, scatter.kept)
            if out_THD is None:
                out_THD = torch.empty(q_THD.shape, dtype=q_THD.dtype, device=q_THD.device)
            out_THD.index_copy_(0, scatter.tokens, results)
        assert out_THD is not None
        return out_THD

    def _attend_group(self, q_XHD: Tensor, entries_SE: Tensor, group: Group) -> Tensor:
        """Attend the R * N queries of a group; returns as many results, padding's included."""
        R, N, L = group.shape_RNL
        H, K, D = self.heads, self.kv_heads, self.head_dim
        k_RKLD, v_RKLD = self._gather(entries_SE, group.gather).view(R, L, 2, K, D).permute(2, 0, 3, 1, 4).unbind(0)
        mask = None if group.mask is None else group.mask.to(q_XHD.dtype)
        if N == 1:
            # The G heads that share a key head are to it what G queries would be: no key is read twice.
            q_RKGD = q_XHD.reshape(R, K, H // K, D)
            out = functional.scaled_dot_product_attention(q_RKGD, k_RKLD, v_RKLD, attn_mask=mask, scale=self.scale)
            return out.reshape(R, H, D)
        q_RHND = q_XHD.unflatten(0, (R, N)).transpose(1, 2)
        out = functional.scaled_dot_product_attention(
            q_RHND, k_RKLD, v_RKLD, attn_mask=mask, is_causal=group.causal, scale=self.scale, enable_gqa=H != K
        )
        return out.transpose(1, 2).reshape(R * N, H, D)

    def _gather(self, entries_SE: Tensor, slots: Tensor) -> Tensor:
        """Copy the entries of these slots into a buffer that is kept: fresh memory would cost a page fault a page."""
        buffer = self._buffer
        size = slots.numel() * entries_SE.shape[1]
        if buffer.numel() < size or buffer.dtype != entries_SE.dtype or buffer.device != entries_SE.device:
            # A quarter more than asked for, so that rows which grow by a token a step do not allocate every step.
            buffer = self._buffer = torch.empty(size + size // 4, dtype=entries_SE.dtype, device=entries_SE.device)
        out = buffer[:size].view(slots.numel(), -1)
        return torch.index_select(entries_SE, 0, slots, out=out)


def _plan_decode(batch: AttentionBatch) -> Group:
    """Plan a step in which every row decodes one token, as one group and without a loop over rows."""
    rows, longest = len(batch.lengths), max(batch.lengths)
    slots_RL = batch.table_RL[:, :longest]
    if min(batch.lengths) == longest:
        return Group((rows, 1, longest), slots_RL.reshape(-1), None, causal=False, scatter=None)
    device = slots_RL.device
    lengths_R1 = torch.tensor(batch.lengths, device=device).unsqueeze(1)
    hidden_RL = torch.arange(longest, device=device) >= lengths_R1
    mask_RL = torch.zeros(hidden_RL.shape, device=device).masked_fill_(hidden_RL, float("-inf"))
    # Behind a row's length the table may hold anything: read slot 0, which the mask hides.
    gather = slots_RL.masked_fill(hidden_RL, 0).view(-1)
    return Group((rows, 1, longest), gather, mask_RL[:, None, None, :], causal=False, scatter=None)


def _plan_group(batch: AttentionBatch, pieces: list[Piece], *, alone: bool) -> Group:
    """Plan a group of pieces of any shape; `alone` says that they are the whole step."""
    device = batch.table_RL.device
    R, N, L = len(pieces), max(piece.queries for piece in pieces), max(piece.keys for piece in pieces)
    rows_R = torch.tensor([piece.row for piece in pieces], device=device)
    queries_R1 = torch.tensor([piece.queries for piece in pieces], device=device).unsqueeze(1)
    keys_R1 = torch.tensor([piece.keys for piece in pieces], device=device).unsqueeze(1)
    columns_L = torch.arange(L, device=device)
    gather = batch.table_RL[:, :L].index_select(0, rows_R).masked_fill(columns_L >= keys_R1, 0).view(-1)
    causal = N > 1 and all(piece.queries == piece.keys == N for piece in pieces)
    mask: Tensor | None = None
    if not causal and (N > 1 or min(piece.keys for piece in pieces) < L):
        # A piece's query i sees all but the keys of the queries behind it; padding sees what the last query sees.
        later_RN = (queries_R1 - 1 - torch.arange(N, device=device)).clamp(min=0)
        hidden_RNL = columns_L >= (keys_R1 - later_RN).unsqueeze(2)
        mask = torch.zeros(hidden_RNL.shape, device=device).masked_fill_(hidden_RNL, float("-inf")).unsqueeze(1)
    in_order = alone and all(piece.queries == N and piece.row == number for number, piece in enumerate(pieces))
    scatter = None if in_order else _plan_scatter(batch, pieces, N)
    return Group((R, N, L), gather, mask, causal, scatter)


def _plan_scatter(batch: AttentionBatch, pieces: list[Piece], N: int) -> Scatter:
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
