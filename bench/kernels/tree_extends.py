"""Rows that extend by few tokens over a shared prefix: together, each row alone, and the limit.

`python bench/kernels/tree.py --extends` runs it: bfloat16, head_dim 128, 8 key heads, tables shuffled, one layer after
the other so that no layer's keys are cached, in CUDA graphs.  Each result is first held against float32.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter

import numpy as np
import torch
from graphs import COPY_RATE, copies_for, time_us
from torch import Tensor

from callboard.kernels.attention.interface import AttentionBatch
from callboard.kernels.attention.row_groups import Groups, PackedGroups, RowGroups
from callboard.kernels.attention.tree_tuning import TreeTuning
from callboard.kernels.attention.triton_attention import TritonAttention
from callboard.kernels.kv_pool import KVPool

__all__ = ["table"]

KV_HEADS, HEAD_DIM = 8, 128
MATMUL_RATE = 799e12
TOLERANCE = 2e-2
# groups, rows of each, keys they share, new tokens of each row
SHAPES = (
    (1, 64, 8192, 32),
    (1, 32, 2048, 64),
    (1, 64, 8192, 4),
    (1, 256, 8192, 1),
    (4, 64, 8192, 32),
    (64, 4, 2048, 4),
)


@dataclass(frozen=True)
class Case:
    """Groups of rows on a prefix each, whose new tokens are all that is behind it."""

    heads: int
    pool: KVPool
    batch: AttentionBatch
    groups: RowGroups
    q_THD: Tensor
    limit_us: float

    def attention(self) -> TritonAttention:
        rows, device = len(self.batch.lengths), self.q_THD.device
        options = {"max_rows": rows, "device": device, "dtype": self.q_THD.dtype, "tree": TreeTuning()}
        return TritonAttention(self.heads, KV_HEADS, HEAD_DIM, **options)

    def pack(self, attention: TritonAttention) -> PackedGroups | None:
        return attention.pack_extends(self.groups, np.array(self.batch.query_lengths, np.int32))

    def time_us(self, attention: TritonAttention, batch: AttentionBatch) -> float:
        plan = attention.plan(batch)
        return time_us([partial(attention.attend, self.q_THD, layer, self.pool, plan) for layer in self.layers])

    @property
    def layers(self) -> range:
        return range(len(self.pool.entries))

    def error(self, attention: TritonAttention, batch: AttentionBatch) -> float:
        """Give the largest error of the last row's first and last token, by float32."""
        out_THD, row = attention.attend(self.q_THD, 1, self.pool, attention.plan(batch)), len(batch.lengths) - 1
        slots, queries, worst = batch.table_RL[row].long(), batch.query_lengths[row], 0.0
        k, v = (part[1][slots].float().repeat_interleave(self.heads // KV_HEADS, 1) for part in self._parts())
        for token in {0, queries - 1}:
            seen = batch.lengths[row] - queries + token + 1
            q_HD = self.q_THD[len(self.q_THD) - queries + token].float()
            scores = torch.einsum("hd,lhd->hl", q_HD, k[:seen]) * HEAD_DIM**-0.5
            wanted = torch.einsum("hl,lhd->hd", torch.softmax(scores, 1), v[:seen])
            error = (out_THD[len(out_THD) - queries + token].float() - wanted).abs().max()
            worst = max(worst, float(error) if error.isfinite() else float("inf"))
        return worst

    def _parts(self) -> tuple[list[Tensor], list[Tensor]]:
        return self.pool.keys, self.pool.values


def draw(heads: int, shape: tuple[int, int, int, int], device: torch.device) -> Case:
    groups, members, prefix, queries = shape
    rows, keys = groups * members, prefix + queries
    slots = groups * prefix + rows * queries
    slot_bytes = KV_HEADS * 2 * HEAD_DIM * 2
    layers = max(2, copies_for(slots * slot_bytes, most=16))
    pool = KVPool(layers=layers, slots=slots, kv_heads=KV_HEADS, head_dim=HEAD_DIM, dtype=torch.bfloat16, device=device)
    for entries in pool.entries:
        entries.normal_()
    order = torch.randperm(slots, device=device).to(torch.int32)
    shared = order[: groups * prefix].view(groups, 1, prefix).expand(groups, members, prefix).reshape(rows, prefix)
    table_RL = torch.cat((shared, order[groups * prefix :].view(rows, queries)), 1)
    starts_R1 = torch.arange(rows + 1, dtype=torch.int32) * queries
    tokens = rows * queries
    batch = AttentionBatch(
        starts_R1,
        [queries] * rows,
        [keys] * rows,
        table_RL,
        table_RL[:, prefix:].reshape(-1).long(),
        torch.zeros(tokens, dtype=torch.int64, device=device),
        rows_R=torch.arange(rows, dtype=torch.int32, device=device),
        lengths_R=torch.full((rows,), keys, dtype=torch.int32, device=device),
        starts_R1=starts_R1.to(device),
        extends=rows,
    )
    told = RowGroups(
        np.arange(0, rows, members, dtype=np.int32),
        np.zeros(groups, np.int32),
        np.full(groups, prefix, np.int32),
        np.full(groups, members, np.int32),
        np.arange(rows, dtype=np.int32),
    )
    wide = torch.randn(tokens, (heads + 2 * KV_HEADS) * HEAD_DIM, dtype=torch.bfloat16, device=device)
    products = 4 * heads * HEAD_DIM * tokens * (prefix + (queries + 1) / 2)
    limit_us = 1e6 * max(slots * slot_bytes / COPY_RATE, products / MATMUL_RATE)
    return Case(heads, pool, batch, told, wide[:, : heads * HEAD_DIM].unflatten(1, (heads, HEAD_DIM)), limit_us)


def table(device: torch.device) -> list[dict[str, object]]:
    """Measure every shape, and print a line for each."""
    figures: list[dict[str, object]] = []
    print(f"{'groups x rows, keys + new':<28}{'heads':>6}{'together':>10}{'alone':>9}{'limit':>8}{'lines':>7}", end="")
    print(f"{'items':>7}{'pack us':>9}{'error':>9}")
    for shape, heads in itertools.product(SHAPES, (32, 16)):
        case = draw(heads, shape, device)
        attention = case.attention()
        packed = case.pack(attention)
        begun = perf_counter()
        for _ in range(20):
            case.pack(attention)
        pack_us = (perf_counter() - begun) / 20 * 1e6
        error, alone_us = case.error(attention, case.batch), case.time_us(attention, case.batch)
        together_us, lines, items = alone_us, 0, 0
        if packed is not None:
            words_W = torch.from_numpy(packed.words_W).to(device)
            batch = replace(case.batch, extend_groups=Groups(words_W, packed.kind, packed.parts))
            error = max(error, case.error(attention, batch))
            together_us, items = case.time_us(attention, batch), int(packed.words_W[0])
            lines = TreeTuning().tiles[packed.kind].lines
        groups, members, prefix, queries = shape
        print(
            f"{f'{groups} x {members}, {prefix} + {queries}':<28}{heads:>4}/{KV_HEADS}{together_us:>10.1f}"
            f"{alone_us:>9.1f}{case.limit_us:>8.1f}{lines:>7}{items:>7}{pack_us:>9.0f}{error:>9.1e}"
            f"{'' if error <= TOLERANCE else '  WRONG'}"
        )
        named = {"groups": groups, "rows": members, "prefix": prefix, "new": queries, "heads": heads}
        times = {"together_us": together_us, "alone_us": alone_us, "limit_us": case.limit_us, "pack_us": pack_us}
        figures.append({**named, **times, "lines": lines, "items": items, "error": error})
    return figures
