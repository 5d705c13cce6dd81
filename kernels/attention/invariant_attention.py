"""Attention that gives a token the same bits in any batch and any chunk: new tokens and decoding rows by one kernel.

Shape suffixes:  T new tokens    R rows    X tiles    H query heads    K key heads    D head_dim
"""

# A launch takes more, and other types, than its kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from ..kv_pool import KVPool
from .interface import Attention, AttentionBatch
from .invariant import invariant_tiles, list_single_tiles, merge_invariant
from .triton_plan import list_tiles

__all__ = ["InvariantAttention", "InvariantPlan", "InvariantTuning"]

_LEAST_LINES = 64  # of a tile: what one instruction multiplies; see invariant.py


@dataclass(frozen=True, slots=True)
class InvariantTuning:
    """keys and part decide what the bits are, and so are the same for all; the rest changes speed alone.

    keys: of a block.  part: keys that are attended to before they are merged with those before, a multiple of keys.
    lines: of a tile of an extend, queries times the heads that share a key head.  warps, stages: of such a tile;
    a decoding row's has 64 lines and single_warps.  programs: a row's parts are taken by several programs where a step
    has fewer tiles than this.
    """

    keys: int = 64
    part: int = 1024
    lines: int = 128
    warps: int = 8
    stages: int = 3
    single_warps: int = 4
    single_stages: int = 3
    programs: int = 264

    def __post_init__(self) -> None:
        for name, least in (("keys", 16), ("lines", _LEAST_LINES)):
            value = getattr(self, name)
            if value < least or value & (value - 1):
                raise ValueError(f"InvariantTuning: {name} is {value}; it must be a power of two, at least {least}")
        if self.part < self.keys or self.part % self.keys:
            raise ValueError(f"InvariantTuning: part is {self.part}; it must be a multiple of keys ({self.keys})")


@dataclass(frozen=True, slots=True)
class InvariantPlan:
    """A step's tiles.  Tokens [0, extend_tokens) belong to extends, the rest to one decoding row each.

    extends: None if no row extends.  one_part: whether none of those has more keys than a part.  singles: None if no
    row decodes.
    """

    table_RL: Tensor
    extend_tokens: int
    extends: Tensor | None
    one_part: bool
    singles: Tensor | None


class InvariantAttention(Attention):
    """Attend by our kernels in one order of sums for a token, wherever it comes from.

    Arguments, graphs and streams as for TritonAttention.  Rows never attend together.
    """

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float | None = None,
        *,
        dtype: torch.dtype,
        device: torch.device,
        windows: tuple[int | None, ...] = (),
        soft_cap: float | None = None,
        tuning: InvariantTuning | None = None,
    ) -> None:
        if kv_heads < 1 or heads % kv_heads:
            raise ValueError(f"InvariantAttention: heads is {heads}; it must be a multiple of kv_heads ({kv_heads})")
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.scale = head_dim**-0.5 if scale is None else scale
        self.windows, self.soft_cap = tuple(window or 0 for window in windows), soft_cap or 0.0
        self.tuning = InvariantTuning() if tuning is None else tuning
        self._group = heads // kv_heads
        self._block_d = max(16, triton.next_power_of_2(head_dim))
        self._block_g = triton.next_power_of_2(self._group)
        self._single_lines = max(_LEAST_LINES, self._block_g)
        self._lines = max(self.tuning.lines, self._block_g)
        # Tuning speaks of keys of 256 bytes; of wider ones fewer fit into shared memory, and float32 is kept in pieces.
        key_bytes = self._block_d * dtype.itemsize * (2 if dtype == torch.float32 else 1)
        self._keys = max(16, min(self.tuning.keys, self.tuning.keys * 256 // key_bytes))
        # The interpreter, which is where kernels run on a CPU, cannot multiply bfloat16.
        self._upcast = device.type == "cpu"
        self._dtype = dtype

    def plan(self, batch: AttentionBatch) -> InvariantPlan:
        if batch.lengths_R is None:
            raise ValueError("AttentionBatch: lengths_R is None; InvariantAttention reads lengths on the device")
        extends, singles = batch.extends, len(batch.lengths) - batch.extends
        if extends and batch.starts_R1 is None:
            raise ValueError("AttentionBatch: starts_R1 is None; InvariantAttention reads it on the device for extends")
        return InvariantPlan(
            batch.table_RL,
            sum(batch.query_lengths[:extends]),
            list_tiles(batch, self._lines // self._group, 0, 0).parts_X8 if extends else None,
            not extends or max(batch.lengths[:extends]) <= self.tuning.part,
            self._list_singles(batch, singles) if singles else None,
        )

    def _list_singles(self, batch: AttentionBatch, rows: int) -> Tensor:
        tiles_X8 = torch.empty(rows, 8, dtype=torch.int32, device=batch.table_RL.device)
        list_single_tiles[(triton.cdiv(rows, 128),)](
            batch.lengths_R,
            batch.rows_R,
            tiles_X8,
            batch.extends,
            rows,
            HAS_ROWS=batch.rows_R is not None,
            BLOCK=128,
        )
        return tiles_X8

    def attend(
        self,
        q_THD: Tensor,
        layer: int,
        pool: KVPool,
        plan: InvariantPlan,
        fresh: tuple[Tensor, Tensor] | None = None,  # noqa: ARG002  (what is in the pool is enough)
    ) -> Tensor:
        window = self.windows[layer] if self.windows else 0
        entries_SE, first = pool.entries[layer], plan.extend_tokens
        out_THD = torch.empty(q_THD.shape, dtype=self._dtype, device=q_THD.device)
        if plan.extends is not None:
            self._attend(q_THD, entries_SE, plan.table_RL, plan.extends, window, out_THD, one_part=plan.one_part)
        if plan.singles is not None:
            q_RHD, out_RHD = (q_THD[first:], out_THD[first:]) if first else (q_THD, out_THD)
            self._attend(q_RHD, entries_SE, plan.table_RL, plan.singles, window, out_RHD, single=True)
        return out_THD

    def _attend(
        self,
        q_THD: Tensor,
        entries_SE: Tensor,
        table_RL: Tensor,
        tiles_X8: Tensor,
        window: int,
        out_THD: Tensor,
        *,
        one_part: bool = False,
        single: bool = False,
    ) -> None:
        tuning, tiles = self.tuning, len(tiles_X8)
        # What a graph holds must not depend on lengths: only on how long rows may get.
        parts = triton.cdiv(table_RL.shape[1], tuning.part)
        lines = self._single_lines if single else self._lines
        programs = min(parts, max(1, tuning.programs // (tiles * self.kv_heads))) if single else 1
        one_part = one_part or parts == 1
        parts_XKPMD = lse_XKPM = None
        if programs > 1:
            shape = (tiles, self.kv_heads, parts, lines)
            parts_XKPMD = torch.empty(*shape, self.head_dim, dtype=torch.float32, device=q_THD.device)
            lse_XKPM = torch.empty(shape, dtype=torch.float32, device=q_THD.device)
        sizes = {
            "WINDOW": window,
            "KV_HEADS": self.kv_heads,
            "G": self._group,
            "D": self.head_dim,
            "BLOCK_D": self._block_d,
            "BLOCK_N": self._keys,
            "PART": tuning.part,
        }
        invariant_tiles[(tiles, self.kv_heads, programs)](
            q_THD,
            entries_SE,
            table_RL,
            tiles_X8,
            out_THD,
            parts_XKPMD,
            lse_XKPM,
            q_THD.stride(0),
            table_RL.stride(0),
            parts,
            SCALE=self.scale,
            SOFT_CAP=self.soft_cap,
            BLOCK_M=lines,
            ONE_PART=one_part,
            PROGRAMS=programs,
            UPCAST=self._upcast,
            num_warps=tuning.single_warps if single else tuning.warps,
            num_stages=tuning.single_stages if single else tuning.stages,
            **sizes,
        )
        if programs > 1:
            merge_invariant[(tiles, self.kv_heads)](
                tiles_X8,
                parts_XKPMD,
                lse_XKPM,
                out_THD,
                parts,
                TILE_ROWS=lines,
                BLOCK_M=self._block_g,
                **sizes,
            )
