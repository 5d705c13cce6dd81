"""Paged decode in Triton: one query a row, its keys split over programs, the parts merged by log-sum-exp.

After FlashDecoding (Dao et al. 2023).  Which program takes which keys of which row is a list on the device
(work_list.py); parts of a row may have any number and size, so the merge does not care who made them.  All programs
are resident at once and have as many keys each, so none is left to end alone while the memory waits.

Shape suffixes:  R rows    W items of the work list    C shares of it    H query heads    K key heads    G = H / K
                 D head_dim
"""

# To the type checker a constant of a kernel is no number.
# pyright: reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .online import capped, merge_parts, softmax_step

__all__ = ["decode_items"]


@triton.jit
def decode_items(
    q_RHD,
    entries_SE,
    table_RL,
    items_W8,
    firsts_C1,
    out_RHD,
    parts_WHD,
    lse_WH,
    arrived_RK,
    group_parts_PHD,
    group_lse_PH,
    q_stride,
    table_stride,
    SCALE: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    BLOCK_G: tl.constexpr,
    MERGE_G: tl.constexpr,
    AT_ONCE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HAS_GROUPS: tl.constexpr,
    DEPENDENT: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Attend a share of all rows' keys, part by part, for the G heads of one key head.  Grid: (K, C).

    q_RHD: a row every q_stride elements, heads dense.  entries_SE: the pool of a layer.  table_RL: int32 slots.
    A row of one part goes straight to out_RHD; parts of others to parts_WHD and lse_WH (float32, to the base of two),
    where the last program of the row to arrive merges them.  arrived_RK: int32 zeros, left as zeros.
    HAS_GROUPS: a row's first part takes in what tree_tiles found in group_parts_PHD and group_lse_PH; that is then the
    kernel before, and queries and the newest keys were there before it let this one start.
    MERGE_G: a power of two from G on.  AT_ONCE: how many parts are merged at once.
    DEPENDENT: launched before the kernel before has ended.
    UPCAST: multiply in float32 (the interpreter cannot multiply bfloat16).
    """
    HEADS: tl.constexpr = KV_HEADS * G
    head = tl.program_id(0)
    share = tl.program_id(1)
    first_number, end_number = tl.load(firsts_C1 + share), tl.load(firsts_C1 + share + 1)
    group = tl.arange(0, BLOCK_G)
    dims = tl.arange(0, BLOCK_D)
    inside = (group < G)[:, None] & (dims < D)[None, :]
    heads_at = (head * G + group)[:, None] * D + dims[None, :]
    keys = entries_SE + head * (2 * D) + dims[None, :]
    if DEPENDENT and not HAS_GROUPS:  # The list is older; queries and the newest keys are the last kernel's work.
        gdc_wait()
        gdc_launch_dependents()
    for number in range(first_number, end_number):
        item = items_W8 + number * 8
        row, line, start, end = tl.load(item), tl.load(item + 1), tl.load(item + 2), tl.load(item + 3)
        first, count = tl.load(item + 4), tl.load(item + 5)
        q = tl.load(q_RHD + row.to(tl.int64) * q_stride + heads_at, mask=inside, other=0.0)
        if UPCAST:
            q = q.to(tl.float32)
        slots_L = table_RL + line.to(tl.int64) * table_stride
        top = tl.full([BLOCK_G], -1e30, tl.float32)
        total = tl.zeros([BLOCK_G], tl.float32)
        result = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
        for block in range(start, end, BLOCK_N):
            columns = block + tl.arange(0, BLOCK_N)
            # Behind the end the last slot is read again: a row touches no slot but its own, and needs no masked loads.
            slots = tl.load(slots_L + tl.minimum(columns, end - 1)).to(tl.int64)
            entry = keys + slots[:, None] * (KV_HEADS * 2 * D)
            if BLOCK_D == D:
                k = tl.load(entry)
            else:
                k = tl.load(entry, mask=(dims < D)[None, :], other=0.0)
            scores = capped(tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="tf32x3"), SCALE, SOFT_CAP)
            scores = tl.where((columns < end)[None, :], scores, float("-inf"))
            weights, total, top, fade = softmax_step(scores, total, top, SCALE, SOFT_CAP)
            result = result * fade[:, None]
            if BLOCK_D == D:
                v = tl.load(entry + D)
            else:
                v = tl.load(entry + D, mask=(dims < D)[None, :], other=0.0)
            result = tl.dot(weights.to(q.dtype), v.to(q.dtype), result, input_precision="tf32x3")

        if HAS_GROUPS:
            if DEPENDENT:
                gdc_wait()
            first_place, places = tl.load(item + 6), tl.load(item + 7)
            for place in range(first_place, first_place + places):
                lse = tl.load(group_lse_PH + place * HEADS + head * G + group, mask=group < G, other=-1e30)
                values = tl.load(group_parts_PHD + place * (HEADS * D) + heads_at, mask=inside, other=0.0)
                new_top = tl.maximum(top, lse)
                weight, fade = tl.exp2(lse - new_top), tl.exp2(top - new_top)
                result = result * fade[:, None] + values * weight[:, None]
                total = total * fade + weight
                top = new_top
        result = result / total[:, None]
        out = out_RHD + row.to(tl.int64) * (HEADS * D)
        if count == 1:
            tl.store(out + heads_at, result.to(out_RHD.dtype.element_ty), mask=inside)
        else:
            tl.store(parts_WHD + number * (HEADS * D) + heads_at, result, mask=inside)
            tl.store(lse_WH + number * HEADS + head * G + group, top + tl.log2(total), mask=group < G)
            tl.debug_barrier()  # every thread's part is written before one of them says so
            arrived = arrived_RK + row * KV_HEADS + head
            if tl.atomic_add(arrived, 1) == count - 1:
                tl.store(arrived, 0)
                member = tl.arange(0, MERGE_G)
                merged = merge_parts(parts_WHD, lse_WH, first, count, head * G, HEADS, G, D, MERGE_G, BLOCK_D, AT_ONCE)
                at = out + (head * G + member)[:, None] * D + dims[None, :]
                kept = (member < G)[:, None] & (dims < D)[None, :]
                tl.store(at, merged.to(out_RHD.dtype.element_ty), mask=kept)
    if DEPENDENT and HAS_GROUPS:
        gdc_wait()  # a program that had nothing to do may not end before the kernel before, either
        gdc_launch_dependents()
