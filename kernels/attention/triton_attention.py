"""Paged attention by our Triton kernels: decode rows split over keys, extend rows by tiles of queries.

Shape suffixes:  T new tokens    R rows    W items of the decode list    X tiles of the extend list    H query heads
                 K key heads     D head_dim
"""

# A launch takes more, and other types, than its kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch
import triton
from torch import Tensor

from ..early import launches_early
from ..kv_pool import KVPool
from .decode import decode_items
from .extend_launch import SharedParts, TileScratch, attend_tiles
from .flash_extend import FlashPlan, can_cudnn, can_flash, cudnn_extend, flash_extend, plan_flash
from .interface import Attention, AttentionBatch
from .row_groups import Groups, PackedGroups, RowGroups
from .tree_launch import attend_shared, can_specialise
from .tree_plan import TreePlanner
from .tree_tuning import TreeTuning
from .triton_plan import Items, Tiles, TritonPlan, decode_items_at_most, extend_shares, list_items, list_tiles
from .tuning import ExtendTile, Tuning

__all__ = ["Extend", "TritonAttention"]

Extend = Literal["auto", "triton", "flash", "cudnn"]


class TritonAttention(Attention):
    """Attend by our Triton kernels.

    scale: what scores are multiplied by, 1 / sqrt(head_dim) unless given.  max_rows: the most rows of a step.
    windows: see Attention.  soft_cap: scores s become cap * tanh(s / cap).
    dtype: of queries and results.  kv_dtype: of the pool, the same unless given, or float8_e4m3fn; a pool of either is
    read rightly, and what pays is told by this one.
    extend: by our kernel ("triton"), or by torch's FlashAttention ("flash"), or by cuDNN where whole long prompts
    extend and by FlashAttention else ("cudnn"), or by ours, and by cuDNN where whole long prompts extend and warps of
    ours are not specialised ("auto").  What a library cannot do (float32, a soft cap) ours does.
    tree: how rows with a common prefix attend to it together; None if they never do.

    A plan with decoding rows alone reads nothing of the host but the number of rows and the kind of groups, so plan and
    attend may be captured in a graph together and replayed with other lengths and groups; capture both, as plan makes
    the list of work on the device.
    So may a plan of a padded batch (AttentionBatch.room), which also depends on the bound that its lengths are.
    The scratch for parts of rows is shared: one attention serves one stream at a time.
    """

    pads = True

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
        kv_dtype: torch.dtype | None = None,
        windows: tuple[int | None, ...] = (),
        soft_cap: float | None = None,
        extend: Extend = "triton",
        tuning: Tuning | None = None,
        tree: TreeTuning | None = None,
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
        # Tuning speaks of keys of 256 bytes; of wider ones fewer fit into shared memory, and float32 is kept in pieces.
        key_bytes = self._block_d * dtype.itemsize * (2 if dtype == torch.float32 else 1)
        self._tile, self._short = (
            tile.fitted(self._block_g, key_bytes) for tile in (self.tuning.extend, self.tuning.short)
        )
        self.short_queries = self._short.lines // self._group
        # The interpreter, which is where kernels run on a CPU, cannot multiply bfloat16.
        self._upcast = device.type == "cpu"
        self._dependent = launches_early(device)
        items = decode_items_at_most(max_rows, kv_heads, self.tuning)
        self._parts_WHD = torch.empty(items, heads, head_dim, dtype=torch.float32, device=device)
        self._lse_WH = torch.empty(items, heads, dtype=torch.float32, device=device)
        self._arrived_RK = torch.zeros(max_rows, kv_heads, dtype=torch.int32, device=device)
        self._tile_scratch = TileScratch((self._tile, self._short), kv_heads, head_dim, device)
        self._dtype = dtype
        if self.windows and 0 not in self.windows:
            tree = None
        wanted = self._tile.specialised or (tree is not None and any(tile.specialised for tile in tree.tiles))
        self._specialised = wanted and can_specialise(device, dtype, head_dim)
        if self.extend == "auto" and self._specialised and self._tile.specialised and kv_dtype in {None, dtype}:
            self.extend = "triton"  # as fast as cuDNN where that is best
        self._tree: TreePlanner | None = None
        if tree is not None:
            self._tree = TreePlanner(
                heads,
                kv_heads,
                head_dim,
                (kv_dtype or dtype).itemsize,
                tree.narrowed(key_bytes),
                self._tile.lines,
                self._short.lines,
            )
        shared = 0 if tree is None else TreePlanner.parts_at_most(max_rows)
        self._shared_PHD = torch.empty(shared, heads, head_dim, dtype=torch.float32, device=device)
        self._shared_lse_PH = torch.empty(shared, heads, dtype=torch.float32, device=device)

    @property
    def scratch_bytes(self) -> int:
        """Tell how much memory parts of rows take, allocated once."""
        rows = self._parts_WHD.nbytes + self._lse_WH.nbytes + self._arrived_RK.nbytes
        return rows + self._tile_scratch.size_bytes + self._shared_PHD.nbytes + self._shared_lse_PH.nbytes

    def pack(self, groups: RowGroups, rows: int) -> PackedGroups | None:
        return None if self._tree is None else self._tree.pack(groups, rows)

    def pack_extends(self, groups: RowGroups, queries_R: np.ndarray) -> PackedGroups | None:
        if self._tree is None or self.extend not in {"auto", "triton"}:
            return None
        return self._tree.pack_extends(groups, queries_R)

    def plan(self, batch: AttentionBatch) -> TritonPlan:
        if batch.lengths_R is None:
            raise ValueError("AttentionBatch: lengths_R is None; TritonAttention reads lengths on the device")
        rows, extends = len(batch.lengths), batch.extends
        if (max(extends, rows - extends) if batch.room else rows) > self.max_rows:
            raise ValueError(f"AttentionBatch: it has {rows} rows; TritonAttention was made for {self.max_rows}")
        extend_tokens = batch.room or sum(batch.query_lengths[:extends])
        items: dict[int, Items] = {}
        if rows > extends:
            windows = set(self.windows) or {0}
            items = {window: list_items(batch, window, self.kv_heads, self.tuning) for window in windows}
        short = batch.short if batch.room else max(batch.query_lengths[:extends], default=0) <= self.short_queries
        tile = self._short if short or extend_tokens <= self.tuning.few_tokens else self._tile
        planned = self._plan_extends(batch, tile) if extends else None
        return TritonPlan(batch.table_RL, extend_tokens, planned, tile, items, batch.groups, batch.extend_groups)

    def attend(
        self,
        q_THD: Tensor,
        layer: int,
        pool: KVPool,
        plan: TritonPlan,
        fresh: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        window = self.windows[layer] if self.windows else 0
        entries_SE, first, extends = pool.entries[layer], plan.extend_tokens, plan.extends
        out_THD = torch.empty(q_THD.shape, dtype=self._dtype, device=q_THD.device)
        if isinstance(extends, FlashPlan) and extends.whole:
            out_THD = cudnn_extend(q_THD, entries_SE, extends, self.kv_heads, self.scale, out_THD, fresh)
        elif isinstance(extends, FlashPlan):
            results = flash_extend(q_THD[:first], entries_SE, extends, self.kv_heads, self.scale, window)
            if not plan.items:
                return results
            out_THD[:first] = results
        elif extends is not None:
            self._extend(q_THD, entries_SE, plan, extends, window, out_THD)
        if plan.items:
            q_RHD, out_RHD = (q_THD[first:], out_THD[first:]) if first else (q_THD, out_THD)
            groups = None if window else plan.groups
            if groups is not None:
                self._share(q_RHD, entries_SE, plan.table_RL, groups, self._shared_PHD, self._shared_lse_PH)
            self._decode(q_RHD, entries_SE, plan.table_RL, plan.items[window], groups, out_RHD)
        return out_THD

    def _plan_extends(self, batch: AttentionBatch, tile: ExtendTile) -> Tiles | FlashPlan:
        if batch.starts_R1 is None:
            raise ValueError("AttentionBatch: starts_R1 is None; TritonAttention reads it on the device for extends")
        whole = not batch.room and self.extend in {"auto", "cudnn"} and can_cudnn(batch, self.head_dim, self.windows)
        if batch.room or (not whole and self.extend in {"auto", "triton"}):
            shares = extend_shares(self.kv_heads, tile)
            return list_tiles(batch, tile.lines // self._group, shares, tile.smallest_part, tile.few)
        return plan_flash(batch, whole=whole)

    def _extend(
        self, q_THD: Tensor, entries_SE: Tensor, plan: TritonPlan, tiles: Tiles, window: int, out_THD: Tensor
    ) -> None:
        groups, device = None if window else plan.extend_groups, q_THD.device
        shared = None
        if groups is not None:
            shared_PHD = torch.empty(groups.parts, self.heads, self.head_dim, dtype=torch.float32, device=device)
            shared_lse_PH = torch.empty(groups.parts, self.heads, dtype=torch.float32, device=device)
            q_EHD = q_THD[: plan.extend_tokens]
            self._share(q_EHD, entries_SE, plan.table_RL, groups, shared_PHD, shared_lse_PH)
            shared = SharedParts(groups.words_W, shared_PHD, shared_lse_PH)
        attend_tiles(
            plan.tile,
            self._specialised,
            q_THD,
            entries_SE,
            plan.table_RL,
            tiles,
            out_THD,
            self._tile_scratch,
            shared,
            plan.extend_tokens,
            kv_heads=self.kv_heads,
            scale=self.scale,
            soft_cap=self.soft_cap,
            window=window,
            short=plan.tile is self._short,
            early=self._dependent,
        )

    def _share(
        self,
        q_RHD: Tensor,
        entries_SE: Tensor,
        table_RL: Tensor,
        groups: Groups,
        shared_PHD: Tensor,
        shared_lse_PH: Tensor,
    ) -> None:
        """Attend to what rows, or new tokens of rows, have in common; what is found is for `_decode` or `_extend`."""
        assert self._tree is not None
        tile = self._tree.tuning.tiles[groups.kind]
        attend_shared(
            tile,
            self._specialised,
            q_RHD,
            entries_SE,
            table_RL,
            groups.words_W,
            shared_PHD,
            shared_lse_PH,
            kv_heads=self.kv_heads,
            scale=self.scale,
            soft_cap=self.soft_cap,
            early=self._dependent,
        )

    def _decode(
        self,
        q_RHD: Tensor,
        entries_SE: Tensor,
        table_RL: Tensor,
        items: Items,
        groups: Groups | None,
        out_RHD: Tensor,
    ) -> None:
        tile = items.tile
        shared_PHD, shared_lse_PH = (None, None) if groups is None else (self._shared_PHD, self._shared_lse_PH)
        decode_items[(self.kv_heads, len(items.firsts_C1) - 1)](
            q_RHD,
            entries_SE,
            table_RL,
            items.items_W8,
            items.firsts_C1,
            out_RHD,
            self._parts_WHD,
            self._lse_WH,
            self._arrived_RK,
            shared_PHD,
            shared_lse_PH,
            q_RHD.stride(0),
            table_RL.stride(0),
            SCALE=self.scale,
            SOFT_CAP=self.soft_cap,
            KV_HEADS=self.kv_heads,
            G=self._group,
            D=self.head_dim,
            BLOCK_G=self._block_g,
            MERGE_G=triton.next_power_of_2(self._group),
            AT_ONCE=max(1, 32 // triton.next_power_of_2(self._group)),
            BLOCK_D=self._block_d,
            BLOCK_N=tile.keys,
            HAS_GROUPS=groups is not None,
            DEPENDENT=self._dependent,
            UPCAST=self._upcast,
            num_warps=tile.warps,
            num_stages=tile.stages,
            launch_pdl=self._dependent,
        )
