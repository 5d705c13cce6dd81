"""Paged attention in plain torch: right for any mix of extending and decoding rows, and fast enough for a CPU.

Pieces of rows of similar shape are attended together: their cached tokens are gathered into one padded buffer.

Shape suffixes:  T new tokens of the step    R pieces of a part    N queries of a piece, padded    L its keys, padded
                 H query heads               K key heads           G = H / K, query heads sharing a key head
                 D head_dim                  E = K * 2 * D, a token's entry in the pool            X = R * K
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from ..kv_pool import FLOAT8, KVPool
from .interface import Attention, AttentionBatch
from .planning import Decode, Extend, ReferencePlan

__all__ = ["ReferenceAttention"]


class ReferenceAttention(Attention):
    """Attend by gathering.

    scale: what scores are multiplied by, 1 / sqrt(head_dim) unless given.  windows: see Attention.
    gather_bytes: how much is gathered at once; a few MiB are still in a CPU's last cache when they are attended to.
    """

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float | None = None,
        *,
        windows: tuple[int | None, ...] = (),
        gather_bytes: int = 8 << 20,
    ) -> None:
        if kv_heads < 1 or heads % kv_heads:
            raise ValueError(f"ReferenceAttention: heads is {heads}; it must be a multiple of kv_heads ({kv_heads})")
        self.heads = heads
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.scale = head_dim**-0.5 if scale is None else scale
        self.windows = windows
        # An entry is counted as float32; with a smaller type the parts are just smaller than they could be.
        self.keys_at_once = gather_bytes // (8 * kv_heads * head_dim)
        self._buffer = torch.empty(0)

    def plan(self, batch: AttentionBatch) -> ReferencePlan:
        if batch.rows_R is not None:
            batch = replace(batch, table_RL=batch.table_RL.index_select(0, batch.rows_R), rows_R=None)
        return ReferencePlan(batch, self.kv_heads, self.keys_at_once, self.scale)

    def attend(
        self,
        q_THD: Tensor,
        layer: int,
        pool: KVPool,
        plan: ReferencePlan,
        fresh: tuple[Tensor, Tensor] | None = None,  # noqa: ARG002  (what is in the pool is enough)
    ) -> Tensor:
        entries_SE = pool.entries[layer]
        out_THD: Tensor | None = None
        for part in plan.parts(self.windows[layer] if self.windows else None):
            scatter = part.scatter
            if scatter is None:
                return self._attend(q_THD, entries_SE, part.work)
            results = self._attend(q_THD.index_select(0, scatter.queries), entries_SE, part.work)
            if scatter.kept is not None:
                results = results.index_select(0, scatter.kept)
            if out_THD is None:
                out_THD = torch.empty(q_THD.shape, dtype=q_THD.dtype, device=q_THD.device)
            out_THD.index_copy_(0, scatter.tokens, results)
        assert out_THD is not None
        return out_THD

    def _attend(self, q_THD: Tensor, entries_SE: Tensor, work: Decode | Extend) -> Tensor:
        if isinstance(work, Decode):
            return self._decode(q_THD, entries_SE, work)
        return self._extend(q_THD, entries_SE, work)

    def _decode(self, q_RHD: Tensor, entries_SE: Tensor, work: Decode) -> Tensor:
        """Attend one query a row.

        The G heads that share a key head are to it what G queries would be, so that no key is read twice.
        """
        (R, L), K, D = work.shape_RL, self.kv_heads, self.head_dim
        kv_XLD = self._gather(entries_SE.view(-1, 2 * D), work.gather, q_RHD.dtype).view(R * K, L, 2 * D)
        k_XLD, v_XLD = kv_XLD[..., :D], kv_XLD[..., D:]
        q_XGD = q_RHD.reshape(R * K, self.heads // K, D)
        if q_RHD.dtype == torch.float32:
            if work.mask is None:
                scores_XGL = torch.bmm(q_XGD * self.scale, k_XLD.transpose(1, 2))
            else:
                scores_XGL = torch.baddbmm(work.mask, q_XGD, k_XLD.transpose(1, 2), alpha=self.scale)
            return torch.bmm(torch.softmax(scores_XGL, -1, out=scores_XGL), v_XLD).view(q_RHD.shape)
        # In half precision scores would lose digits between the products; the fused kernel keeps them in float32.
        mask = None if work.mask is None else work.mask.to(q_RHD.dtype)
        out = functional.scaled_dot_product_attention(q_XGD, k_XLD, v_XLD, attn_mask=mask, scale=self.scale)
        return out.reshape(q_RHD.shape)

    def _extend(self, q_YHD: Tensor, entries_SE: Tensor, work: Extend) -> Tensor:
        """Attend the queries of pieces, Y = R * N; returns as many results, padding's included."""
        (R, N, L), H, K, D = work.shape_RNL, self.heads, self.kv_heads, self.head_dim
        kv_RLKD = self._gather(entries_SE, work.gather, q_YHD.dtype).view(R, L, K, 2 * D)
        k_RKLD, v_RKLD = kv_RLKD[..., :D].transpose(1, 2), kv_RLKD[..., D:].transpose(1, 2)
        q_RHND = q_YHD.unflatten(0, (R, N)).transpose(1, 2)
        mask = None if work.mask is None else work.mask.to(q_YHD.dtype)
        out_RHND = functional.scaled_dot_product_attention(
            q_RHND, k_RKLD, v_RKLD, attn_mask=mask, is_causal=mask is None, scale=self.scale, enable_gqa=H != K
        )
        return out_RHND.transpose(1, 2).reshape(R * N, H, D)

    def _gather(self, source: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
        """Copy rows into a buffer that is kept: fresh memory would cost a page fault a page.

        Rows of float8 are converted to dtype, behind the copy, which therefore takes them for bytes.
        """
        if source.dtype == FLOAT8:
            return self._gather(source.view(torch.uint8), index, dtype).view(FLOAT8).to(dtype)
        buffer, size = self._buffer, index.numel() * source.shape[1]
        if buffer.numel() < size or buffer.dtype != source.dtype or buffer.device != source.device:
            # A quarter more than asked for, so that rows which grow by a token a step do not allocate every step.
            buffer = self._buffer = torch.empty(size + size // 4, dtype=source.dtype, device=source.device)
        return torch.index_select(source, 0, index, out=buffer[:size].view(index.numel(), -1))
