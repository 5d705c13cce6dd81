"""Attention over shared prefixes in Triton: rows of a group are lines of one tile, so a key is read once for all.

What it leaves are parts of rows, one for each part of a prefix; the program that attends to a row's own keys takes
them in (decode.py).  A row may be in any number of groups: one a level of the tree.  After Hydragen (Juravsky et al.
2024) and the cascade of FlashInfer (Ye et al. 2025).

Shape suffixes:  R rows    I items    M lines of a tile    P parts of rows    H query heads    K key heads
                 G = H / K    D head_dim
"""

# To the type checker a constant of a kernel is no number.
# pyright: reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .extend import attend_keys

__all__ = ["tree_tiles"]


# The words come out of one packed transfer and start anywhere.
@triton.jit(do_not_specialize=["R"], do_not_specialize_on_alignment=["words_W"])
def tree_tiles(
    q_RHD,
    entries_SE,
    table_RL,
    words_W,
    parts_PHD,
    lse_PH,
    R,
    q_stride,
    table_stride,
    SCALE: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    DEPENDENT: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Attend the rows of items to their keys; program p takes every so manieth (item, key head).  Grid: any.

    q_RHD: a row every q_stride elements, heads dense.  entries_SE: the pool of a layer.  table_RL: int32 slots.
    words_W: as tree_plan packs them for R rows.  parts_PHD, lse_PH: float32, each result over its sum, and
    log-sum-exps to the base of two.  DEPENDENT: launched before the kernel before has ended.  UPCAST: multiply in
    float32 (the interpreter cannot multiply bfloat16).
    """
    HEADS: tl.constexpr = KV_HEADS * G
    ENTRY: tl.constexpr = KV_HEADS * 2 * D
    works = tl.load(words_W) * KV_HEADS
    line = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    for work in range(tl.program_id(0), works, tl.num_programs(0)):
        head = work % KV_HEADS
        item = words_W + 4 + 3 * R + work // KV_HEADS * 8
        start, end, part = tl.load(item + 1), tl.load(item + 2), tl.load(item + 5)
        members = words_W + tl.load(item + 3)
        live = line < tl.load(item + 4) * G
        inside = live[:, None]
        if BLOCK_D != D:
            inside &= (dims < D)[None, :]
        row = tl.load(members + line // G * 2, mask=live, other=0)
        heads_at = (head * G + line % G)[:, None] * D + dims[None, :]
        q = tl.load(q_RHD + row.to(tl.int64)[:, None] * q_stride + heads_at, mask=inside, other=0.0)
        if UPCAST:
            q = q.to(tl.float32)
        slots_L = table_RL + tl.load(item).to(tl.int64) * table_stride
        keys = entries_SE + head * (2 * D) + dims[None, :]
        limits = end + line * 0
        whole = start + (end - start) // BLOCK_N * BLOCK_N
        top = tl.full([BLOCK_M], -1e30, tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        result = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        result, total, top = attend_keys(
            q, result, total, top, keys, slots_L, limits, end - 1, start, whole, dims,
            False, SCALE, SOFT_CAP, 0, ENTRY, D, BLOCK_D, BLOCK_N,
        )  # fmt: skip
        result, total, top = attend_keys(
            q, result, total, top, keys, slots_L, limits, end - 1, whole, end, dims,
            True, SCALE, SOFT_CAP, 0, ENTRY, D, BLOCK_D, BLOCK_N,
        )  # fmt: skip
        place = tl.load(members + line // G * 2 + 1, mask=live, other=0) + part
        result = result / total[:, None]
        tl.store(parts_PHD + place[:, None] * (HEADS * D) + heads_at, result, mask=inside)
        tl.store(lse_PH + place * HEADS + head * G + line % G, top + tl.log2(total), mask=live)
