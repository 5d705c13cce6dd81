"""Paged attention by our Triton kernels: decode rows split over keys, extend rows by tiles of queries.

Shape suffixes:  T new tokens    R rows    W items of the decode list    X tiles of the extend list    H query heads
                 K key heads     D head_dim
"""

# A launch takes more, and other types, than its kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
import triton
from torch import Tensor

from ..kv_pool import KVPool
from .decode import decode_items, merge_rows
from .extend import extend_tiles
from .flash_extend import FlashPlan, can_cudnn, can_flash, cudnn_extend, flash_extend, plan_flash
from .interface import Attention, AttentionBatch
from .tuning import Tuning
from .work_list import list_decode_items, list_extend_tiles

__all__ = ["Extend", "TritonAttention", "TritonPlan"]

Extend = Literal["triton", "flash", "cudnn"]


@dataclass(frozen=True, slots=True)
class TritonPlan:
    """A step's work lists.  Tokens [0, extend_tokens) belong to extends, the rest to one decoding row each.

    items_W8: see work_list.py, one list for each window that layers have (0: none); empty if no row decodes.
    extends: tiles as in work_list.py, or what a library's kernel needs; None if no row extends.
    """

    table_RL: Tensor
    extend_tokens: int
    extends: Tensor | FlashPlan | None
    items_W8: dict[int, Tensor]


class TritonAttention(Attention):
    """Attend by our Triton kernels.

    scale: what scores are multiplied by, 1 / sqrt(head_dim) unless given.  max_rows: the most rows of a step.
    windows: see Attention.  soft_cap: scores s become cap * tanh(s / cap).
    dtype: of queries and results.  The pool may hold the same dtype or float8_e4m3fn.
    extend: by our kernel ("triton"), or by torch's FlashAttention ("flash"), or by cuDNN where whole long prompts
    extend and by FlashAttention else ("cudnn").  What a library cannot do (float32, a soft cap) ours does.

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
        windows: tuple[int | None, ...] = (),
        soft_cap: float | None = None,
        extend: Extend = "triton",
        tuning: Tuning | None = None,
    ) -> None:
        if kv_heads < 1 or heads % kv_heads:
            raise ValueError(f"TritonAttention: heads is {heads}; it must be a multiple of kv_heads ({kv_heads})")
        if max_rows < 1:
            raise ValueError(f"TritonAttention: max_rows is {max_rows}; it must be at least 1")
        if scale is not None and scale <= 0:
            raise ValueError(f"TritonAttention: scale is {scale}; it must be above 0")
        if any(window is not None and window < 1 for window in windows):
            raise ValueError(f"TritonAttention: windows is {windows}; each must be at least 1, or None")
        if soft_cap is not None and soft_cap <= 0:
            raise ValueError(f"TritonAttention: soft_cap is {soft_cap}; it must be above 0, or None")
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.scale = head_dim**-0.5 if scale is None else scale
        self.max_rows = max_rows
        self.windows, self.soft_cap = tuple(window or 0 for window in windows), soft_cap or 0.0
        if extend not in get_args(Extend):
            raise ValueError(f"TritonAttention: extend is {extend!r}; it must be one of {', '.join(get_args(Extend))}")
        self.extend: Extend = extend if can_flash(dtype, head_dim, self.soft_cap) else "triton"
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
        items_W8: dict[int, Tensor] = {}
        if rows > extends:
            items_W8 = {window: self._list_items(batch, rows - extends, window) for window in set(self.windows) or {0}}
        return TritonPlan(batch.table_RL, extend_tokens, self._plan_extends(batch) if extends else None, items_W8)

    def attend(self, q_THD: Tensor, layer: int, pool: KVPool, plan: TritonPlan) -> Tensor:
        window = self.windows[layer] if self.windows else 0
        entries_SE, first, extends = pool.entries[layer], plan.extend_tokens, plan.extends
        out_THD = torch.empty(q_THD.shape, dtype=self._dtype, device=q_THD.device)
        if isinstance(extends, FlashPlan) and extends.whole:
            cudnn_extend(q_THD, entries_SE, extends, self.kv_heads, self.scale, out_THD)
        elif isinstance(extends, FlashPlan):
            results = flash_extend(q_THD[:first], entries_SE, extends, self.kv_heads, self.scale, window)
            if not plan.items_W8:
                return results
            out_THD[:first] = results
        elif isinstance(extends, Tensor):
            self._extend(q_THD, entries_SE, plan.table_RL, extends, window, out_THD)
        if plan.items_W8:
            q_RHD, out_RHD = (q_THD[first:], out_THD[first:]) if first else (q_THD, out_THD)
            self._decode(q_RHD, entries_SE, plan.table_RL, plan.items_W8[window], out_RHD)
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

    def _list_items(self, batch: AttentionBatch, rows: int, window: int) -> Tensor:
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
            WINDOW=window,
            HAS_ROWS=batch.rows_R is not None,
            BLOCK_N=tuning.decode_keys,
            FIXED_PART=tuning.fixed_part,
            FIXED_PARTS=tuning.fixed_parts,
            BLOCK_R=block_r,
            BLOCK_P=block_p,
        )
        return items_W8

    def _plan_extends(self, batch: AttentionBatch) -> Tensor | FlashPlan:
        if batch.starts_R1 is None:
            raise ValueError("AttentionBatch: starts_R1 is None; TritonAttention reads it on the device for extends")
        if self.extend == "triton":
            return self._list_tiles(batch)
        return plan_flash(batch, whole=self.extend == "cudnn" and can_cudnn(batch, self.head_dim, self.windows))

    def _list_tiles(self, batch: AttentionBatch) -> Tensor:
        assert batch.starts_R1 is not None
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

    def _extend(
        self, q_THD: Tensor, entries_SE: Tensor, table_RL: Tensor, tiles_X8: Tensor, window: int, out_THD: Tensor
    ) -> None:
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
            WINDOW=window,
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
