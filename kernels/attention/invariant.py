"""Paged attention in Triton whose result for a token is the same to the bit, whatever chunk or batch it comes in.

Keys are cut at the same columns for every token: into blocks of BLOCK_N, and into parts of PART, both counted from the
row's first key.  Within a part softmax goes on from block to block; parts are merged one after the other, in order.  A
block or a part that a token does not see leaves its sums as they are: its weights are zeros and its factors ones.

    columns     0 ......... PART ......... 2 PART ......... 3 PART
    blocks      |  |  |  |  |  |  |  |  |  |
    a token     sees up to here ^, so: part 0, then two blocks of part 1

So it matters neither which tokens share a tile, nor who takes which part: one program takes them all, or several do and
leave them in scratch for `merge_invariant`, which merges by the same arithmetic.  A tile has a multiple of 64 lines, so
that products are compiled to one kind of instruction, whatever their number.

Shape suffixes:  T new tokens    X tiles    P parts of a row    M lines of a tile
                 H query heads     K key heads    G = H / K    D head_dim
"""

# To the type checker a constant of a kernel is no number.
# pyright: reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from .extend import attend_keys

__all__ = ["invariant_tiles", "list_single_tiles", "merge_invariant"]


@triton.jit(do_not_specialize=["first", "R"], do_not_specialize_on_alignment=["lengths_R", "rows_R"])
def list_single_tiles(lengths_R, rows_R, tiles_X8, first, R, HAS_ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Make a tile of each decoding row, as list_extend_tiles has them; tokens count from 0.  Rows begin at `first`."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = row < R
    line = first + row
    if HAS_ROWS:
        line = tl.load(rows_R + first + row, mask=live, other=0)
    tile = tiles_X8 + row * 8
    tl.store(tile, line, mask=live)
    tl.store(tile + 1, row, mask=live)
    tl.store(tile + 2, row * 0 + 1, mask=live)
    tl.store(tile + 3, tl.load(lengths_R + first + row, mask=live, other=1), mask=live)


@triton.jit
def _take_part(merged, weight, top, result, lse):
    """Merge one more part [M, D] with log-sum-exp lse [M], to the base of two, into those before it.

    The multiplications and additions that are to be one instruction are written as one, so that no compiler chooses.
    """
    new_top = tl.maximum(top, lse)
    fade, share = tl.exp2(top - new_top), tl.exp2(lse - new_top)
    merged = tl.fma(merged, tl.broadcast_to(fade[:, None], merged.shape), result * share[:, None])
    return merged, tl.fma(weight, fade, share), new_top


@triton.jit
def _tile(tiles_X8, G: tl.constexpr, BLOCK_M: tl.constexpr):
    """Read a tile: its line of the table, queries, each line's token and limit."""
    tile = tiles_X8 + tl.program_id(0) * 8
    line, token, queries, first_limit = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
    member = tl.arange(0, BLOCK_M)
    # Lines without a query repeat the last one's limit, so that no softmax is empty.
    query = tl.minimum(member // G, queries - 1)
    return line, queries, first_limit, (token + query).to(tl.int64), first_limit + query


@triton.jit
def invariant_tiles(
    q_THD, entries_SE, table_RL, tiles_X8, out_THD, parts_XKPMD, lse_XKPM, q_stride, table_stride, parts_at_most,
    SCALE: tl.constexpr, SOFT_CAP: tl.constexpr, WINDOW: tl.constexpr, KV_HEADS: tl.constexpr, G: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PART: tl.constexpr,
    ONE_PART: tl.constexpr, PROGRAMS: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Attend one tile of new tokens for the G heads of one key head.  Grid: (X, K, PROGRAMS).

    q_THD: a token every q_stride elements, heads dense.  tiles_X8: as list_extend_tiles makes them, with at most
    BLOCK_M // G queries each.  PART: a multiple of BLOCK_N.  ONE_PART: no row has more keys than that.
    PROGRAMS: if more than one, they take a tile's parts in turn and leave them, with their log-sum-exps to the base of
    two, in parts_XKPMD and lse_XKPM (float32, P = parts_at_most); else the one merges them and writes out_THD.
    """
    HEADS: tl.constexpr = KV_HEADS * G
    ENTRY: tl.constexpr = KV_HEADS * 2 * D
    head = tl.program_id(1)
    line, queries, first_limit, tokens, limits = _tile(tiles_X8, G, BLOCK_M)
    last = first_limit + queries - 2
    member, dims = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    inside = (member < queries * G)[:, None] & (dims < D)[None, :]
    heads_at = (head * G + member % G)[:, None] * D + dims[None, :]
    q = tl.load(q_THD + tokens[:, None] * q_stride + heads_at, mask=inside, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    slots_L = table_RL + line.to(tl.int64) * table_stride
    keys = entries_SE + head * (2 * D) + dims[None, :]
    # With a window the first key that a query sees lies anywhere in its block: nothing starts at it.
    start = tl.maximum(first_limit - WINDOW, 0) // BLOCK_N * BLOCK_N if WINDOW else 0
    #   [start, inner)       some queries see these no more (with a window only)
    #   [inner, outer)       all queries see these
    #   [outer, last + 1)    some queries do not see these yet
    inner = tl.cdiv(tl.maximum(last + 1 - WINDOW, 0), BLOCK_N) * BLOCK_N if WINDOW else 0
    outer = tl.maximum(first_limit // BLOCK_N * BLOCK_N, inner)
    merged = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    weight = tl.zeros([BLOCK_M], tl.float32)
    merged_top = tl.full([BLOCK_M], -1e30, tl.float32)
    stop = 1 if ONE_PART else tl.cdiv(last + 1, PART)
    for part in range(0 if ONE_PART else start // PART + tl.program_id(2), stop, PROGRAMS):
        begin = tl.maximum(part * PART, start)
        end = tl.minimum(part * PART + PART, last + 1)
        top = tl.full([BLOCK_M], -1e30, tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        result = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        if WINDOW:
            result, total, top = attend_keys(
                q, result, total, top, keys, slots_L, limits, last, begin, tl.minimum(inner, end), dims,
                True, SCALE, SOFT_CAP, WINDOW, ENTRY, D, BLOCK_D, BLOCK_N,
            )  # fmt: skip
        result, total, top = attend_keys(
            q, result, total, top, keys, slots_L, limits, last, tl.maximum(inner, begin), tl.minimum(outer, end), dims,
            False, SCALE, SOFT_CAP, WINDOW, ENTRY, D, BLOCK_D, BLOCK_N,
        )  # fmt: skip
        result, total, top = attend_keys(
            q, result, total, top, keys, slots_L, limits, last, tl.maximum(outer, begin), end, dims,
            True, SCALE, SOFT_CAP, WINDOW, ENTRY, D, BLOCK_D, BLOCK_N,
        )  # fmt: skip
        # A line may see no key of a part: then the part weighs nothing.
        empty = total == 0
        total = tl.where(empty, 1.0, total)
        result = result / total[:, None]
        if ONE_PART:
            merged = result
        else:
            lse = tl.where(empty, float("-inf"), top + tl.log2(total))
            if PROGRAMS > 1:
                place = ((tl.program_id(0) * KV_HEADS + head).to(tl.int64) * parts_at_most + part) * BLOCK_M + member
                tl.store(parts_XKPMD + place[:, None] * D + dims[None, :], result, mask=inside)
                tl.store(lse_XKPM + place, lse, mask=member < queries * G)
            else:
                merged, weight, merged_top = _take_part(merged, weight, merged_top, result, lse)
    if PROGRAMS == 1:
        if not ONE_PART:
            merged = merged / weight[:, None]
        at = out_THD + tokens[:, None] * (HEADS * D) + heads_at
        tl.store(at, merged.to(out_THD.dtype.element_ty), mask=inside)


@triton.jit
def merge_invariant(
    tiles_X8, parts_XKPMD, lse_XKPM, out_THD, parts_at_most,
    WINDOW: tl.constexpr, KV_HEADS: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    TILE_ROWS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Merge what the programs of a tile left, for tiles of one query.  Grid: (X, K).

    TILE_ROWS: lines of a tile.  BLOCK_M: a power of two from G on.
    """
    head = tl.program_id(1)
    _, _, limit, tokens, _ = _tile(tiles_X8, G, BLOCK_M)
    member, dims = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    inside = (member < G)[:, None] & (dims < D)[None, :]
    first = tl.maximum(limit - WINDOW, 0) // BLOCK_N * BLOCK_N // PART if WINDOW else 0
    merged = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    weight = tl.zeros([BLOCK_M], tl.float32)
    top = tl.full([BLOCK_M], -1e30, tl.float32)
    for part in range(first, tl.cdiv(limit, PART)):
        place = ((tl.program_id(0) * KV_HEADS + head).to(tl.int64) * parts_at_most + part) * TILE_ROWS + member
        lse = tl.load(lse_XKPM + place, mask=member < G, other=float("-inf"))
        result = tl.load(parts_XKPMD + place[:, None] * D + dims[None, :], mask=inside, other=0.0)
        merged, weight, top = _take_part(merged, weight, top, result, lse)
    # Lines that are no head's have no weight.
    merged = merged / tl.where(member < G, weight, 1.0)[:, None]
    heads_at = (head * G + member)[:, None] * D + dims[None, :]
    at = out_THD + tokens[:, None] * (KV_HEADS * G * D) + heads_at
    tl.store(at, merged.to(out_THD.dtype.element_ty), mask=inside)
