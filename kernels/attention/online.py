"""Pieces of online softmax that our Triton kernels share.

Scores are kept in powers of two: exp2 is one instruction, exp is two.  So are log-sum-exps.

Shape suffixes:  W parts of rows, as they lie in scratch    H query heads    D head_dim
"""

# To the type checker a constant of a kernel is no number.
# pyright: reportOperatorIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["capped", "merge_parts", "softmax_step"]


@triton.jit
def capped(products, SCALE: tl.constexpr, SOFT_CAP: tl.constexpr):
    """Bend q @ k to scores within [-SOFT_CAP, SOFT_CAP], to the base of two; leave them as they are if that is 0."""
    if SOFT_CAP > 0:
        # tanh(|x|) = (1 - exp(-2 |x|)) / (1 + exp(-2 |x|)), which does not overflow
        small = tl.exp2(tl.abs(products) * (-2 * SCALE * 1.4426950408889634 / SOFT_CAP))
        bent = (SOFT_CAP * 1.4426950408889634) * ((1 - small) / (1 + small))
        return tl.where(products < 0, -bent, bent)
    return products


@triton.jit
def softmax_step(products, total, top, SCALE: tl.constexpr, SOFT_CAP: tl.constexpr):
    """Take a block of `capped` products [M, N] into an online softmax.

    Returns their weights [M, N] and the new total, top and fade [M]: what the result so far is to be multiplied by.
    The scale is applied to the maximum and within the exponent, where it costs nothing; so it must be above 0.
    """
    factor = 1.0 if SOFT_CAP > 0 else SCALE * 1.4426950408889634
    new_top = tl.maximum(top, tl.max(products, 1) * factor)
    weights = tl.exp2(products * factor - new_top[:, None])
    fade = tl.exp2(top - new_top)
    return weights, total * fade + tl.sum(weights, 1), new_top, fade


@triton.jit
def merge_parts(
    parts_WHD,
    lse_WH,
    first,
    count,
    head,
    HEADS: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """Merge parts [first, first + count) of G heads from `head` on by their log-sum-exps, to the base of two.

    Returns [BLOCK_G, BLOCK_D].  BLOCK_P parts of BLOCK_G heads are loaded at once, as lines of one tile.
    """
    dims = tl.arange(0, BLOCK_D)
    line = tl.arange(0, BLOCK_P * BLOCK_G)
    member, part = line % BLOCK_G, line // BLOCK_G
    top = tl.full([BLOCK_G], -1e30, tl.float32)
    total = tl.zeros([BLOCK_G], tl.float32)
    merged = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
    for begin in range(0, count, BLOCK_P):
        live = (begin + part < count) & (member < G)
        place = (first + begin + part) * HEADS + head + member
        # Other programs of this launch wrote these: .cg reads past the cache that does not see them.
        lse_PG = tl.load(lse_WH + place, mask=live, other=float("-inf"), cache_modifier=".cg")
        wanted = live[:, None] & (dims < D)[None, :]
        values = tl.load(parts_WHD + place[:, None] * D + dims[None, :], mask=wanted, other=0.0, cache_modifier=".cg")
        lse_PG = tl.reshape(lse_PG, [BLOCK_P, BLOCK_G])
        new_top = tl.maximum(top, tl.max(lse_PG, 0))
        weights_PG = tl.exp2(lse_PG - new_top[None, :])
        fade = tl.exp2(top - new_top)
        weighted = weights_PG[:, :, None] * tl.reshape(values, [BLOCK_P, BLOCK_G, BLOCK_D])
        merged = merged * fade[:, None] + tl.sum(weighted, 0)
        total = total * fade + tl.sum(weights_PG, 0)
        top = new_top
    return merged / tl.where(total > 0, total, 1.0)[:, None]  # padding heads have no parts
