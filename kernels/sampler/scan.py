"""One pass over the vocabulary, and the choice of what no cut concerns: greedy and temperature.

Shapes: N rows that sample, V vocabulary, C blocks of BLOCK tokens that a row is cut into.

`scan` leaves three numbers a block: its greatest logit, the first token that has it, and the sum of the weights
relative to it.  `choose` merges a row's blocks; a draw then needs one block read again, the one that holds it.  How a
row is cut does not depend on the other rows, and each sum is taken in one order, so neither does its token.
"""

# Triton's language is Python in looks alone.
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl

from .draw import answer, exponent, key_of, pick, uniform

__all__ = ["choose", "is_cut", "merged", "scan"]


@triton.jit
def is_cut(row, top_k, top_p, min_p, temperature):
    """Tell whether a row draws among fewer than all tokens."""
    cut = (tl.load(top_k + row) > 0) | (tl.load(top_p + row) < 1.0) | (tl.load(min_p + row) > 0.0)
    return cut & (tl.load(temperature + row) > 0.0)


@triton.jit(do_not_specialize_on_alignment=["rows"])
def scan(
    logits,
    stride,
    vocabulary,
    rows,
    temperature,
    maxima,
    firsts,
    sums,
    BLOCK: tl.constexpr,
    PER_PROGRAM: tl.constexpr,
):
    """Summarise PER_PROGRAM blocks of a row; grid (programs a row, N).  A negative row is none."""
    index = tl.program_id(1)
    block = tl.program_id(0) * PER_PROGRAM + tl.arange(0, PER_PROGRAM)
    ids = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = ids < vocabulary
    values = tl.load(logits + index.to(tl.int64) * stride + ids, mask=inside, other=float("-inf")).to(tl.float32)
    row = tl.load(rows + index)  # behind the logits, which need not wait for it
    if row < 0:
        return
    scale = exponent(tl.load(temperature + row))
    greatest = tl.max(values, 1)
    first = tl.min(tl.where(values == greatest[:, None], ids, vocabulary - 1), 1)
    pivot = tl.where(greatest == float("-inf"), 0.0, greatest)
    weights = tl.exp2((values - pivot[:, None]) * scale)
    blocks = tl.cdiv(vocabulary, BLOCK)
    at = index * blocks + block
    tl.store(maxima + at, greatest, mask=block < blocks)
    tl.store(firsts + at, first, mask=block < blocks)
    tl.store(sums + at, tl.sum(weights, 1), mask=block < blocks)  # NaN if one of the logits is


@triton.jit
def merged(index, blocks, block, scale, maxima, sums):
    """Give the greatest logit of each of a row's blocks, their weights relative to the row's greatest, and that one.

    Lastly tells whether all logits are numbers.
    """
    at, inside = index * blocks + block, block < blocks
    maximum = tl.load(maxima + at, mask=inside, other=float("-inf"))
    total = tl.load(sums + at, mask=inside, other=0.0)
    best = tl.max(maximum, 0)
    pivot = tl.where(best == float("-inf"), 0.0, best)
    weights = total.to(tl.float64) * tl.exp2((maximum - pivot) * scale).to(tl.float64)
    numbers = tl.sum((total != total).to(tl.int32), 0) == 0  # noqa: PLR0124 (NaN)
    return maximum, weights, best, numbers


@triton.jit(do_not_specialize_on_alignment=["rows", "positions", "tokens", "bests"])
def choose(
    logits,
    stride,
    vocabulary,
    rows,
    positions,
    temperature,
    top_k,
    top_p,
    min_p,
    keys,
    maxima,
    firsts,
    sums,
    greatest,
    totals,
    brackets,
    searches,
    tokens,
    bests,
    last_tokens,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    SHIFT: tl.constexpr,
    CUTS: tl.constexpr,
):
    """Merge a row's blocks and give its token; grid (N,).  BLOCKS: C, rounded up to a power of two.

    With CUTS, a row that has one gets no token yet, but what the search for its cut starts from: its greatest logit,
    the sum of its weights relative to it, and a bracket around the cut.
    """
    index = tl.program_id(0)
    row = tl.load(rows + index)
    if CUTS:
        tl.store(searches + index, 0)
    if row < 0:
        return
    block = tl.arange(0, BLOCKS)
    blocks = tl.cdiv(vocabulary, BLOCK)
    warmth = tl.load(temperature + row)
    scale = exponent(warmth)
    maximum, weights, best, numbers = merged(index, blocks, block, scale, maxima, sums)
    draws = numbers & (warmth > 0.0) & (best > float("-inf"))
    done = index >= 0
    if CUTS:
        done = (not draws) or (not is_cut(row, top_k, top_p, min_p, temperature))
        if not done:
            whole = tl.sum(weights, 0)
            _open(index, row, maximum, best, whole, scale, top_k, top_p, vocabulary, blocks, brackets, SHIFT)
            tl.store(greatest + index, best)
            tl.store(totals + index, whole)
            tl.store(searches + index, 1)
    if draws & done:
        chosen, into = pick(weights, block, uniform(tl.load(keys + row), tl.load(positions + index)))
        within = tl.arange(0, BLOCK)
        ids = chosen * BLOCK + within
        line = logits + index.to(tl.int64) * stride
        values = tl.load(line + ids, mask=ids < vocabulary, other=float("-inf")).to(tl.float32)
        inner, _ = pick(tl.exp2((values - tl.max(values, 0)) * scale).to(tl.float64), within, into)
        token = chosen * BLOCK + inner
    else:
        first = tl.load(firsts + index * blocks + block, mask=block < blocks, other=0)
        token = tl.min(tl.where(maximum == best, first, vocabulary - 1), 0)
    if done:
        answer(index, row, token, tl.where(numbers, best, float("nan")), tokens, bests, last_tokens)


@triton.jit
def _open(
    index,
    row,
    maximum,
    best,
    whole,
    scale,
    top_k,
    top_p,
    vocabulary,
    blocks,
    brackets,
    SHIFT: tl.constexpr,
):
    """Store a bracket around a row's cut: a key that is not kept, or below all, and one that is.

    The closer they are, the shorter the search.
    """
    lowest = tl.full((), (-0x7F800001 >> SHIFT) - 1, tl.int64)  # -inf has the least key there is
    low = lowest
    high = key_of(best, SHIFT).to(tl.int64)
    k = tl.load(top_k + row)
    p = tl.load(top_p + row)
    if (k <= 0) & (p >= 1.0):  # min-p alone is a bound on weights; there is nothing to search
        high = lowest + 1
    if p < 1.0:
        # All tokens lighter than this weigh less than 1 - p of the whole, together.
        lightest = (1.0 - p) * whole.to(tl.float32) * 0.999 / vocabulary
        low = tl.maximum(low, key_of(best + tl.log2(lightest) / scale, SHIFT).to(tl.int64) - 1)
    if (k > 0) & (k <= blocks):
        # The k-th of the blocks' maxima has k - 1 tokens above it, and the cut is not lower.
        maximum_key = key_of(maximum, SHIFT).to(tl.int64)
        there, above = lowest, high + 1
        while above - there > 1:
            middle = (there + above) >> 1
            enough = tl.sum((maximum_key >= middle).to(tl.int32), 0) >= k
            there = tl.where(enough, middle, there)
            above = tl.where(enough, above, middle)
        low = tl.maximum(low, there - 1)
    tl.store(brackets + 2 * index, tl.minimum(low, high).to(tl.int32))
    tl.store(brackets + 2 * index + 1, high.to(tl.int32))
