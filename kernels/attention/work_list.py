"""Who does what in a step, worked out on the device: a replayed graph reads other lengths and makes another list.

Shape suffixes:  R rows    W items of the decode list    X tiles of the extend list    8 numbers describe one
"""

# A range's bounds are numbers of the device.
# pyright: reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["list_decode_items", "list_extend_tiles"]


# Lengths and rows come out of one packed transfer and start anywhere: kernels are not compiled anew for that.
@triton.jit(
    do_not_specialize=["first_row", "R", "shares", "smallest"],
    do_not_specialize_on_alignment=["lengths_R", "rows_R", "groups_W"],
)
def list_decode_items(
    lengths_R,
    rows_R,
    groups_W,
    items_W8,
    firsts_C1,
    first_row,
    R,
    shares,
    smallest,
    WINDOW: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    HAS_GROUPS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """Cut the keys that rows [first_row, first_row + R) see into shares of equal size, and these into rows' parts.

    One program.  Rows' keys, in blocks of BLOCK_N, stand one row behind the other; every share but the last has as many
    blocks, `smallest` or more, and there are `shares` of them at most.  A part is what a share has of a row.
    items_W8: int32 [R + shares, 8], for each part: row (from 0), line of the table, first key, end, the row's first
    item, its number of parts.  A row's items stand together, and so do a share's.
    firsts_C1: int32 [shares + 1], each share's first item and, behind the last one, how many items there are.
    HAS_GROUPS: groups_W, as tree_plan packs it, says how many keys of each row groups attend to.  The first part of a
    row takes in what they find: its item ends with the first of the groups' parts and their number, the others' with 0.
    """
    rows = tl.arange(0, BLOCK_R)
    live = rows < R
    lengths = tl.load(lengths_R + first_row + rows, mask=live, other=0)
    lines = first_row + rows
    if HAS_ROWS:
        lines = tl.load(rows_R + first_row + rows, mask=live, other=0)
    seen = lengths
    group_first, group_parts = lengths, lengths
    if HAS_GROUPS:
        seen = lengths - tl.load(groups_W + 4 + rows, mask=live, other=0)
        group_first = tl.load(groups_W + 4 + R + rows, mask=live, other=0)
        group_parts = tl.load(groups_W + 4 + 2 * R + rows, mask=live, other=0)
    if WINDOW:
        seen = tl.minimum(lengths, WINDOW)
    blocks = tl.cdiv(seen, BLOCK_N)
    ends = tl.cumsum(blocks, 0)
    begins = ends - blocks
    share = tl.maximum(tl.cdiv(tl.sum(blocks, 0), shares), smallest)
    first_share = begins // share
    parts = tl.where(blocks > 0, (ends - 1) // share - first_share + 1, 0)
    firsts = tl.cumsum(parts, 0) - parts
    for begin in range(0, tl.max(parts, 0), BLOCK_P):
        part = begin + tl.arange(0, BLOCK_P)[None, :]
        wanted = part < parts[:, None]
        cut = (first_share[:, None] + part) * share
        block = tl.maximum(begins[:, None], cut) - begins[:, None]
        block_end = tl.minimum(ends[:, None], cut + share) - begins[:, None]
        start = (lengths - seen)[:, None]
        number = firsts[:, None] + part
        item = items_W8 + number * 8
        tl.store(item, rows[:, None] + part * 0, mask=wanted)
        tl.store(item + 1, lines[:, None] + part * 0, mask=wanted)
        tl.store(item + 2, start + block * BLOCK_N, mask=wanted)
        tl.store(item + 3, tl.minimum(start + block_end * BLOCK_N, lengths[:, None]), mask=wanted)
        tl.store(item + 4, firsts[:, None] + part * 0, mask=wanted)
        tl.store(item + 5, parts[:, None] + part * 0, mask=wanted)
        if HAS_GROUPS:
            tl.store(item + 6, group_first[:, None] + part * 0, mask=wanted)
            tl.store(item + 7, tl.where(part == 0, group_parts[:, None], 0), mask=wanted)
        tl.store(firsts_C1 + first_share[:, None] + part, number, mask=wanted & (begins[:, None] <= cut))
    items = tl.sum(parts, 0)
    for begin in range(tl.cdiv(tl.sum(blocks, 0), share), shares + 1, 1024):
        idle = begin + tl.arange(0, 1024)
        tl.store(firsts_C1 + idle, idle * 0 + items, mask=idle <= shares)


@triton.jit(
    do_not_specialize=["R", "shares", "smallest", "behind"],
    do_not_specialize_on_alignment=["starts_R1", "lengths_R", "rows_R", "groups_W"],
)
def list_extend_tiles(
    starts_R1,
    lengths_R,
    rows_R,
    groups_W,
    tiles_X8,
    R,
    shares,
    smallest,
    behind,
    FEW: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    HAS_GROUPS: tl.constexpr,
    QUERIES: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """Cut the new tokens of each row into tiles of QUERIES, and the keys of a tile that has more than a share of them.

    One program.  A share is the `shares`th part of what all tiles see together, `smallest` keys or more; so a long row
    beside short ones is many programs' work, and there are at most `shares` items more than tiles.
    tiles_X8: int32 [X, 8], for each part of a tile's keys: line of the table, the tile's first token in the step, its
    number of queries, how many keys the first of them sees (each further query sees one more), which part it is, of how
    many, and, where there are several, which of those that are one of several is the tile's first: at most 2 * shares
    are.  The last tile of a row, which sees most, comes first: it should not be started last.
    FEW: if not 0, tiles' parts are as many as come nearest to a share each, so that together they are about as many as
    shares; and from tiles_X8[behind] on stand, once more, the first parts of tiles with more parts than that, for
    merge_tiles: shares // FEW at most.
    HAS_GROUPS: groups_W, as tree_plan packs it for tokens, says how many keys of each groups attend to.
    """
    rows = tl.arange(0, BLOCK_R)
    live = rows < R
    starts = tl.load(starts_R1 + rows, mask=live, other=0)
    queries = tl.load(starts_R1 + rows + 1, mask=live, other=0) - starts
    lengths = tl.load(lengths_R + rows, mask=live, other=0)
    lines = rows
    if HAS_ROWS:
        lines = tl.load(rows_R + rows, mask=live, other=0)
    tiles = tl.cdiv(queries, QUERIES)
    keys = lengths
    if HAS_GROUPS:
        keys = lengths - tl.load(groups_W + 4 + starts, mask=queries > 0, other=0)
    seen = tl.sum((tiles * keys).to(tl.int64), 0)
    share = tl.maximum(tl.cdiv(seen, shares), smallest).to(tl.int32)
    parts = tl.maximum((keys + share // 2) // share if FEW else tl.cdiv(keys, share), 1)
    items = tiles * parts
    ends = tl.cumsum(items, 0)
    split = tl.where(parts > 1, items, 0)
    places = tl.cumsum(split, 0) - split
    many = tl.where(parts > FEW, tiles, 0)
    firsts = tl.cumsum(many, 0) - many
    for begin in range(0, tl.max(items, 0), BLOCK_P):
        item = begin + tl.arange(0, BLOCK_P)[None, :]
        wanted = item < items[:, None]
        number, part = item // parts[:, None], item % parts[:, None]
        first = number * QUERIES
        tile = tiles_X8 + (ends[:, None] - 1 - item) * 8
        again = tiles_X8 + (behind + firsts[:, None] + number) * 8
        told = wanted & (part == 0) & (parts[:, None] > FEW)
        _tell(tile, lines, starts, queries, lengths, places, first, number, part, parts, wanted, QUERIES)
        if FEW:
            _tell(again, lines, starts, queries, lengths, places, first, number, part, parts, told, QUERIES)


@triton.jit
def _tell(tile, lines, starts, queries, lengths, places, first, number, part, parts, wanted, QUERIES: tl.constexpr):
    """Write what list_extend_tiles tells of parts of tiles."""
    tl.store(tile, lines[:, None] + part * 0, mask=wanted)
    tl.store(tile + 1, starts[:, None] + first, mask=wanted)
    tl.store(tile + 2, tl.minimum(queries[:, None] - first, QUERIES), mask=wanted)
    tl.store(tile + 3, (lengths - queries)[:, None] + first + 1, mask=wanted)
    tl.store(tile + 4, part, mask=wanted)
    tl.store(tile + 5, parts[:, None] + part * 0, mask=wanted)
    tl.store(tile + 6, places[:, None] + number * parts[:, None], mask=wanted)
