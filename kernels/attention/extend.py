"""Paged extend in Triton: tiles of new tokens attend to their row's cached keys and to the new ones up to themselves.

A tile holds the G heads that share a key head beside each other, so a key is read once for all of them and a row of
few new tokens still fills the matrix unit: line m of a tile is query m // G, head m % G.

What rows share may have been attended to before (tree.py): then a tile begins behind it, and takes in what was found.

Shape suffixes:  T new tokens    X parts of tiles    P those that are one of several    M lines of a tile
                 H query heads     K key heads    G = H / K    D head_dim
"""

# To the type checker a constant of a kernel is no number.
# pyright: reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .online import capped, softmax_step

__all__ = ["attend_keys", "extend_tiles"]


@triton.jit
def attend_keys(
    q,
    result,
    total,
    top,
    keys,
    slots_L,
    limits,
    last,
    begin,
    end,
    dims,
    MASKED: tl.constexpr,
    SCALE: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    WINDOW: tl.constexpr,
    ENTRY: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Go on with online softmax over keys [begin, end) of a row.

    MASKED: some queries do not see some of these keys: line m sees those below limits[m], if WINDOW the last ones only.
    Nothing behind key `last` is read.
    """
    for block in range(begin, end, BLOCK_N):
        columns = block + tl.arange(0, BLOCK_N)
        if MASKED:
            slots = tl.load(slots_L + tl.minimum(columns, last)).to(tl.int64)
        else:
            slots = tl.load(slots_L + columns).to(tl.int64)
        entry = keys + slots[:, None] * ENTRY
        if BLOCK_D == D:
            k = tl.load(entry)
        else:
            k = tl.load(entry, mask=(dims < D)[None, :], other=0.0)
        scores = capped(tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="tf32x3"), SCALE, SOFT_CAP)
        if MASKED:
            visible = columns[None, :] < limits[:, None]
            if WINDOW:
                visible &= columns[None, :] >= limits[:, None] - WINDOW
            scores = tl.where(visible, scores, float("-inf"))
        weights, total, top, fade = softmax_step(scores, total, top, SCALE, SOFT_CAP)
        result = result * fade[:, None]
        if BLOCK_D == D:
            v = tl.load(entry + D)
        else:
            v = tl.load(entry + D, mask=(dims < D)[None, :], other=0.0)
        result = tl.dot(weights.to(q.dtype), v.to(q.dtype), result, input_precision="tf32x3")
    return result, total, top


# The words come out of one packed transfer and start anywhere.
@triton.jit(do_not_specialize=["T"], do_not_specialize_on_alignment=["groups_W"])
def extend_tiles(
    q_THD,
    entries_SE,
    table_RL,
    tiles_X8,
    out_THD,
    parts_PKMD,
    lse_PKM,
    arrived_PK,
    groups_W,
    shared_PHD,
    shared_lse_PH,
    T,
    q_stride,
    table_stride,
    SCALE: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    WINDOW: tl.constexpr,
    KV_HEADS: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    FEW: tl.constexpr,
    HAS_GROUPS: tl.constexpr,
    DEPENDENT: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Attend one tile of new tokens for the G heads of one key head, to one part of their keys.  Grid: (X, K).

    q_THD: a token every q_stride elements, heads dense.  entries_SE: the pool of a layer.  table_RL: int32 slots.
    tiles_X8: as list_extend_tiles makes them, with at most BLOCK_M // G queries each; those of zeros do nothing.
    WINDOW: 0, or how many keys a query sees at most.  UPCAST: multiply in float32 (the interpreter cannot multiply
    bfloat16).
    A tile of one part goes straight to out_THD; parts of others to parts_PKMD and lse_PKM (float32, to the base of
    two), where the last program of the tile to arrive merges them.  arrived_PK: int32 zeros, left as zeros.
    FEW: tiles of more parts are left to merge_tiles; 0 if none are.  DEPENDENT: launched before the kernel before has
    ended.
    HAS_GROUPS: groups_W, as tree_plan packs it for T tokens, says where each row's groups end; the tile's first part
    takes in what tree_tiles found for its tokens in shared_PHD and shared_lse_PH.  Without a window.
    """
    HEADS: tl.constexpr = KV_HEADS * G
    ENTRY: tl.constexpr = KV_HEADS * 2 * D
    tile = tiles_X8 + tl.program_id(0) * 8
    head = tl.program_id(1)
    line, token, queries, first_limit = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
    part, parts, first_part = tl.load(tile + 4), tl.load(tile + 5), tl.load(tile + 6)
    if queries == 0:
        return
    if DEPENDENT:  # The list was there before the kernel before began; queries and the newest keys are its work.
        gdc_wait()
        gdc_launch_dependents()
    member = tl.arange(0, BLOCK_M)
    # Lines without a query repeat the last one's limit, so that no softmax is empty.
    query = tl.minimum(member // G, queries - 1)
    inside = (member < queries * G)[:, None]
    dims = tl.arange(0, BLOCK_D)
    if BLOCK_D != D:
        inside &= (dims < D)[None, :]
    tokens = (token + query).to(tl.int64)
    heads_at = (head * G + member % G)[:, None] * D + dims[None, :]
    q = tl.load(q_THD + tokens[:, None] * q_stride + heads_at, mask=inside, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    limits = first_limit + query
    last = first_limit + queries - 2
    slots_L = table_RL + line.to(tl.int64) * table_stride
    keys = entries_SE + head * (2 * D) + dims[None, :]

    #   [start, inner)       some queries see these no more (with a window only)
    #   [inner, outer)       all queries see these
    #   [outer, last + 1)    some queries do not see these yet
    start = 0
    inner = 0
    if WINDOW:
        start = tl.maximum(first_limit - WINDOW, 0)
        inner = start + tl.cdiv(tl.maximum(last + 1 - WINDOW - start, 0), BLOCK_N) * BLOCK_N
    if HAS_GROUPS:
        start = tl.load(groups_W + 4 + token)
        inner = start
    outer = tl.maximum(start + (first_limit - start) // BLOCK_N * BLOCK_N, inner)
    stop = last + 1
    if parts > 1:
        size = tl.cdiv(tl.cdiv(stop - start, parts), BLOCK_N) * BLOCK_N
        start += part * size
        stop = tl.minimum(start + size, stop)
    top = tl.full([BLOCK_M], -1e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    result = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    if WINDOW:
        result, total, top = attend_keys(
            q, result, total, top, keys, slots_L, limits, last, start, tl.minimum(inner, stop), dims,
            True, SCALE, SOFT_CAP, WINDOW, ENTRY, D, BLOCK_D, BLOCK_N,
        )  # fmt: skip
    result, total, top = attend_keys(
        q, result, total, top, keys, slots_L, limits, last, tl.maximum(inner, start), tl.minimum(outer, stop), dims,
        False, SCALE, SOFT_CAP, WINDOW, ENTRY, D, BLOCK_D, BLOCK_N,
    )  # fmt: skip
    result, total, top = attend_keys(
        q, result, total, top, keys, slots_L, limits, last, tl.maximum(outer, start), stop, dims,
        True, SCALE, SOFT_CAP, WINDOW, ENTRY, D, BLOCK_D, BLOCK_N,
    )  # fmt: skip
    if HAS_GROUPS:
        places = tl.where((queries > 0) & (part == 0), tl.load(groups_W + 4 + 2 * T + token), 0)
        first_place = tl.load(groups_W + 4 + T + tokens)
        for number in range(places):
            place = first_place + number
            lse = tl.load(shared_lse_PH + place * HEADS + head * G + member % G)
            values = tl.load(shared_PHD + place[:, None] * (HEADS * D) + heads_at, mask=inside, other=0.0)
            new_top = tl.maximum(top, lse)
            weight, fade = tl.exp2(lse - new_top), tl.exp2(top - new_top)
            result = result * fade[:, None] + values * weight[:, None]
            total = total * fade + weight
            top = new_top
    # A tile or a part may have no keys, and a line of it none that it sees: they weigh nothing.
    empty = total == 0
    total = tl.where(empty, 1.0, total)
    result = result / total[:, None]
    at = out_THD + tokens[:, None] * (HEADS * D) + heads_at
    if parts <= 1:
        tl.store(at, result.to(out_THD.dtype.element_ty), mask=inside)
    else:
        live = member < queries * G
        lines = ((first_part + part) * KV_HEADS + head).to(tl.int64) * BLOCK_M + member
        tl.store(parts_PKMD + lines[:, None] * D + dims[None, :], result, mask=inside)
        tl.store(lse_PKM + lines, tl.where(empty, float("-inf"), top + tl.log2(total)), mask=live)
        if FEW == 0 or parts <= FEW:
            tl.debug_barrier()  # every thread's part is written before one of them says so
            arrived = arrived_PK + first_part * KV_HEADS + head
            if tl.atomic_add(arrived, 1) == parts - 1:
                tl.store(arrived, 0)
                top = tl.full([BLOCK_M], -1e30, tl.float32)
                total = tl.zeros([BLOCK_M], tl.float32)
                result = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
                for number in range(parts):
                    lines = ((first_part + number) * KV_HEADS + head).to(tl.int64) * BLOCK_M + member
                    # Other programs of this launch wrote these: .cg reads past the cache that does not see them.
                    lse = tl.load(lse_PKM + lines, mask=live, other=0.0, cache_modifier=".cg")
                    values = tl.load(
                        parts_PKMD + lines[:, None] * D + dims[None, :], mask=inside, other=0.0, cache_modifier=".cg"
                    )
                    new_top = tl.maximum(top, lse)
                    weight, fade = tl.exp2(lse - new_top), tl.exp2(top - new_top)
                    result = result * fade[:, None] + values * weight[:, None]
                    total = total * fade + weight
                    top = new_top
                tl.store(at, (result / total[:, None]).to(out_THD.dtype.element_ty), mask=inside)
