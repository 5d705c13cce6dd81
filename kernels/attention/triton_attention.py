"""Paged attention by our Triton kernels: decode rows split over keys, extend rows by tiles of queries.

Shape suffixes:  T new tokens    R rows    W items of the decode list    X tiles of the extend list    H query heads
                 K key heads     D head_dim
"""

# A launch takes more, and other types, than its kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from ..kv_pool import KVPool
from .decode import decode_items, merge_rows
from .extend import extend_tiles
from .interface import Attention, AttentionBatch
from .tuning import Tuning
from .work_list import list_decode_items, list_extend_tiles

__all__ = ["TritonAttention", "TritonPlan"]


@dataclass(frozen=True, slots=True)
class TritonPlan:
    """A step's work lists.  Tokens [0, extend_tokens) belong to extends, the rest to one decoding row each.

    items_W8, tiles_X8: see work_list.py; None where there is no such row.
    """

    table_RL: Tensor
    extend_tokens: int
    tiles_X8: Tensor | None
    items_W8: Tensor | None


class TritonAttention(Attention):
    """Attend by our Triton kernels.

    scale: what scores are multiplied by, 1 / sqrt(head_dim) unless given.  max_rows: the most rows of a step.
    window: how many keys a query sees at most, the last ones.  soft_cap: scores s become cap * tanh(s / cap).
    dtype: of queries and results.  The pool may hold the same dtype or float8_e4m3fn.

    A plan with decoding rows alone reads nothing of the host but the number of rows, so plan and attend may be captured
    in a graph together and replayed with other lengths; capture both, since plan makes the list of work on the device.
    The scratch for parts of rows is shared: one attention serves one stream at a time.
    """

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float | None = None,
        *,
        max_rows: int,
        device: torch.device,
        dtype: torch.dtype,
        window: int | None = None,
        soft_cap: float | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        if kv_heads < 1 or heads % kv_heads:
            raise ValueError(f"TritonAttention: heads is {heads}; it must be a multiple of kv_heads ({kv_heads})")
        if max_rows < 1:
            raise ValueError(f"TritonAttention: max_rows is {max_rows}; it must be at least 1")
        if window is not None and window < 1:
            raise ValueError(f"TritonAttention: window is {window}; it must be at least 1, or None")
        if soft_cap is not None and soft_cap <= 0:
            raise ValueError(f"TritonAttention: soft_cap is {soft_cap}; it must be above 0, or None")
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.scale = head_dim**-0.5 if scale is None else scale
        self.max_rows = max_rows
        self.window, self.soft_cap = window or 0, soft_cap or 0.0
        self.tuning = Tuning() if tuning is None else tuning
        self._group = heads // kv_heads
        self._block_d = max(16, triton.next_power_of_2(head_dim))
        self._block_g = max(16, triton.next_power_of_2(self._group))
        self._tile_rows = max(self.tuning.extend_rows, self._block_g)
        self._tile_queries = self._tile_rows // self._group
        # The interpreter, which is where kernels run on a CPU, cannot multiply bfloat16.
        self._upcast = device.type == "cpu"
        items = self._items(max_rows)
        self._parts_WHD = torch.empty(items, heads, head_dim, dtype=torch.float32, device=device)
        self._lse_WH = torch.empty(items, heads, dtype=torch.float32, device=device)
        self._arrived_RK = torch.zeros(max_rows, kv_heads, dtype=torch.int32, device=device)
        self._dtype = dtype

    @property
    def scratch_bytes(self) -> int:
        """Tell how much memory parts of rows take, allocated once."""
        return self._parts_WHD.nbytes + self._lse_WH.nbytes + self._arrived_RK.nbytes

    def plan(self, batch: AttentionBatch) -> TritonPlan:
        if batch.lengths_R is None:
            raise ValueError("AttentionBatch: lengths_R is None; TritonAttention reads lengths on the device")
        rows, extends = len(batch.lengths), batch.extends
        if rows > self.max_rows:
            raise ValueError(f"AttentionBatch: it has {rows} rows; TritonAttention was made for {self.max_rows}")
        extend_tokens = sum(batch.query_lengths[:extends]) if extends else 0
        tiles_X8 = self._list_tiles(batch) if extends else None
        items_W8 = self._list_items(batch, rows - extends) if rows > extends else None
        return TritonPlan(batch.table_RL, extend_tokens, tiles_X8, items_W8)

    def attend(self, q_THD: Tensor, layer: int, pool: KVPool, plan: TritonPlan) -> Tensor:
        out_THD = torch.empty(q_THD.shape, dtype=self._dtype, device=q_THD.device)
        entries_SE = pool.entries[layer]
        if plan.tiles_X8 is not None:
            self._extend(q_THD, entries_SE, plan.table_RL, plan.tiles_X8, out_THD)
        if plan.items_W8 is not None:
            first = plan.extend_tokens
            q_RHD, out_RHD = (q_THD[first:], out_THD[first:]) if first else (q_THD, out_THD)
            self._decode(q_RHD, entries_SE, plan.table_RL, plan.items_W8, out_RHD)
        return out_THD

    def _items(self, rows: int) -> int:
        """Tell how many items the decode list of this many rows has, whatever their lengths."""
        if self.tuning.fixed_part:
            return rows * self.tuning.fixed_parts
        return rows + self._target

    @property
    def _target(self) -> int:
        """Tell how many parts of rows a step should have: the programs of one are as many as there are key heads."""
        return max(1, self.tuning.programs // self.kv_heads)

    def _list_items(self, batch: AttentionBatch, rows: int) -> Tensor:
        tuning, lengths_R = self.tuning, batch.lengths_R
        assert lengths_R is not None
        items = self._items(rows)
        items_W8 = torch.empty(items, 8, dtype=torch.int32, device=lengths_R.device)
        block_r, block_p = _block(rows)
        list_decode_items[(1,)](
            lengths_R,
            batch.rows_R,
            items_W8,
            batch.extends,
            rows,
            items,
            self._target,
            tuning.smallest_part,
            WINDOW=self.window,
            HAS_ROWS=batch.rows_R is not None,
            BLOCK_N=tuning.decode_keys,
            FIXED_PART=tuning.fixed_part,
            FIXED_PARTS=tuning.fixed_parts,
            BLOCK_R=block_r,
            BLOCK_P=block_p,
        )
        return items_W8

    def _list_tiles(self, batch: AttentionBatch) -> Tensor:
        if batch.starts_R1 is None:
            raise ValueError("AttentionBatch: starts_R1 is None; TritonAttention reads it on the device for extends")
        queries, extends = self._tile_queries, batch.extends
        tiles = sum(-(-count // queries) for count in batch.query_lengths[:extends])
        tiles_X8 = torch.empty(tiles, 8, dtype=torch.int32, device=batch.starts_R1.device)
        block_r, block_p = _block(extends)
        list_extend_tiles[(1,)](
            batch.starts_R1,
            batch.lengths_R,
            batch.rows_R,
            tiles_X8,
            extends,
            HAS_ROWS=batch.rows_R is not None,
            QUERIES=queries,
            BLOCK_R=block_r,
            BLOCK_P=block_p,
        )
        return tiles_X8

    def _extend(self, q_THD: Tensor, entries_SE: Tensor, table_RL: Tensor, tiles_X8: Tensor, out_THD: Tensor) -> None:
        tuning = self.tuning
        extend_tiles[(len(tiles_X8), self.kv_heads)](
            q_THD,
            entries_SE,
            table_RL,
            tiles_X8,
            out_THD,
            q_THD.stride(0),
            table_RL.stride(0),
            SCALE=self.scale,
            SOFT_CAP=self.soft_cap,
            WINDOW=self.window,
            KV_HEADS=self.kv_heads,
            G=self._group,
            D=self.head_dim,
            BLOCK_D=self._block_d,
            BLOCK_M=self._tile_rows,
            BLOCK_N=tuning.extend_keys,
            UPCAST=self._upcast,
            num_warps=tuning.extend_warps,
            num_stages=tuning.extend_stages,
        )

    def _decode(self, q_RHD: Tensor, entries_SE: Tensor, table_RL: Tensor, items_W8: Tensor, out_RHD: Tensor) -> None:
        tuning = self.tuning
        decode_items[(self.kv_heads, len(items_W8))](
            q_RHD,
            entries_SE,
            table_RL,
            items_W8,
            out_RHD,
            self._parts_WHD,
            self._lse_WH,
            self._arrived_RK,
            q_RHD.stride(0),
            table_RL.stride(0),
            SCALE=self.scale,
            SOFT_CAP=self.soft_cap,
            KV_HEADS=self.kv_heads,
            G=self._group,
            D=self.head_dim,
            BLOCK_G=self._block_g,
            BLOCK_D=self._block_d,
            BLOCK_N=tuning.decode_keys,
            FUSED_MERGE=tuning.fused_merge,
            UPCAST=self._upcast,
            num_warps=tuning.decode_warps,
            num_stages=tuning.decode_stages,
        )
        if not tuning.fused_merge:
            merge_rows[(self.heads, len(items_W8))](
                items_W8,
                self._parts_WHD,
                self._lse_WH,
                out_RHD,
                HEADS=self.heads,
                D=self.head_dim,
                BLOCK_D=self._block_d,
                BLOCK_P=16,
            )


def _block(rows: int) -> tuple[int, int]:
    """Give the block of rows and of their parts for a list's kernel: few kinds, so that few are compiled."""
    for block_rows, block_parts in ((16, 64), (128, 16)):
        if rows <= block_rows:
            return block_rows, block_parts
    return max(512, triton.next_power_of_2(rows)), 4
