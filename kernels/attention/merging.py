"""Tiles in many parts, merged behind the kernel that left them: by as many programs as they have pairs of lines.

The last of a tile's programs alone would fetch one part after the other, which took longer than reading the keys.

Shape suffixes:  X parts of tiles    V tiles in many parts    P those that are one of several    M lines of a tile
                 K key heads    G = H / K, query heads a key head    D head_dim
"""

# To the type checker a constant of a kernel is no number.
# pyright: reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

__all__ = ["merge_tiles"]


@triton.jit
def merge_tiles(
    tiles_V8,
    parts_PKMD,
    lse_PKM,
    out_THD,
    KV_HEADS: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    LINES: tl.constexpr,
    AT_ONCE: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Merge the parts of LINES lines of a tile by their log-sum-exps, to the base of two.

    Grid: (V, K, BLOCK_M / LINES).
    tiles_V8: first items of tiles, as list_extend_tiles lists them behind the others; those of zeros are nobody's.
    parts_PKMD, lse_PKM: as extend_tiles leaves them; a line that saw none of a part's keys has -inf there.
    AT_ONCE: how many parts are on their way at once.  DEPENDENT: launched before the kernel before has ended.
    """
    number, head = tl.program_id(0), tl.program_id(1)
    begin = tl.program_id(2) * LINES
    tile = tiles_V8 + number * 8
    token, queries, parts, first = tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 5), tl.load(tile + 6)
    # One program stays in any case: if none waited, this kernel would be done before the one that it follows.
    if (begin >= queries * G) & (begin + number > 0):
        return
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    member, dims, ahead = begin + tl.arange(0, LINES), tl.arange(0, BLOCK_D), tl.arange(0, AT_ONCE)
    inside = (member < queries * G)[:, None] & (dims < D)[None, :]
    top = tl.full([LINES], -1e30, tl.float32)
    total = tl.zeros([LINES], tl.float32)
    merged = tl.zeros([LINES, BLOCK_D], tl.float32)
    for start in range(0, parts, AT_ONCE):
        live = (start + ahead < parts)[:, None] & (member < queries * G)[None, :]
        line = (((first + start + ahead) * KV_HEADS + head).to(tl.int64) * BLOCK_M)[:, None] + member[None, :]
        lse = tl.load(lse_PKM + line, mask=live, other=float("-inf"))
        wanted = live[:, :, None] & (dims < D)[None, None, :]
        values = tl.load(parts_PKMD + line[:, :, None] * D + dims[None, None, :], mask=wanted, other=0.0)
        new_top = tl.maximum(top, tl.max(lse, 0))
        weights, fade = tl.exp2(lse - new_top[None, :]), tl.exp2(top - new_top)
        merged = merged * fade[:, None] + tl.sum(values * weights[:, :, None], 0)
        total = total * fade + tl.sum(weights, 0)
        top = new_top
    merged = merged / tl.where(total > 0, total, 1.0)[:, None]
    tokens = (token + member // G).to(tl.int64)
    at = out_THD + (tokens * (KV_HEADS * G) + head * G + member % G)[:, None] * D + dims[None, :]
    tl.store(at, merged.to(out_THD.dtype.element_ty), mask=inside)
