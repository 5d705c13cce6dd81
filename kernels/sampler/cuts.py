"""Top-k, top-p and min-p without a sort: find the last logit that is kept, then draw among the kept, in order of id.

Shapes: N rows that sample, V vocabulary, C blocks of BLOCK tokens, G programs a row, each over PER_PROGRAM blocks.

All three cuts leave the heaviest tokens of the distribution after temperature, so together they leave those above some
logit, and the first few, by id, that have it.  Logits are looked at as integers that order alike; `narrow` measures,
in one pass over the row, what lies above three keys inside the bracket, which leaves a quarter of it.  A key is kept
if fewer than k tokens lie above it, and they weigh at most p of the whole: so the bracket is

    (low, high]    low is not kept, or below all; high is kept; the last key kept is in between

bf16 logits have 16 bits, so 8 passes find it from anywhere; `choose` opens the bracket closer.
"""

# Triton's language is Python in looks alone.
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl

from .draw import answer, exponent, float_of, pick, uniform

__all__ = ["draw_kept", "narrow", "weigh"]


@triton.jit
def _measured(index, row, top_k, top_p, totals, brackets, counts, masses, programs, PROGRAMS: tl.constexpr):
    """Give the bracket (int64) that the pass before leaves."""
    low = tl.load(brackets + 2 * index).to(tl.int64)
    high = tl.load(brackets + 2 * index + 1).to(tl.int64)
    k = tl.load(top_k + row)
    p = tl.load(top_p + row)
    allowed = tl.load(totals + index) * p.to(tl.float64)
    program = tl.arange(0, PROGRAMS)
    at, inside = (index * programs + program) * 4, program < programs
    start, step = low, high - low
    if step > 1:
        for number in tl.static_range(3):
            count = tl.sum(tl.load(counts + at + number, mask=inside, other=0.0), 0)
            mass = tl.sum(tl.load(masses + at + number, mask=inside, other=0.0).to(tl.float64), 0)
            kept = ((k <= 0) | (count < k)) & ((p >= 1.0) | (mass <= allowed))
            key = start + tl.maximum(step * (number + 1) >> 2, 1)
            high = tl.where(kept, tl.minimum(high, key), high)
            low = tl.where(kept, low, tl.maximum(low, key))
    return low, high


@triton.jit(do_not_specialize_on_alignment=["rows"])
def narrow(
    logits,
    stride,
    vocabulary,
    rows,
    temperature,
    top_k,
    top_p,
    searches,
    greatest,
    totals,
    brackets,
    counts,
    masses,
    next_brackets,
    next_counts,
    next_masses,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    PROGRAMS: tl.constexpr,
    SHIFT: tl.constexpr,
    FIRST: tl.constexpr,
):
    """Narrow the rows' brackets by the pass before, and measure what lies above three keys inside; grid (G, N).

    PROGRAMS: G, rounded up to a power of two.  Every program of a row works its bracket out for itself.
    """
    index = tl.program_id(1)
    if tl.load(searches + index) == 0:
        return
    row = tl.load(rows + index)
    program, programs = tl.program_id(0), tl.num_programs(0)
    if FIRST:
        low = tl.load(brackets + 2 * index).to(tl.int64)
        high = tl.load(brackets + 2 * index + 1).to(tl.int64)
    else:
        low, high = _measured(index, row, top_k, top_p, totals, brackets, counts, masses, programs, PROGRAMS)
    if program == 0:
        tl.store(next_brackets + 2 * index, low.to(tl.int32))
        tl.store(next_brackets + 2 * index + 1, high.to(tl.int32))
    step = high - low
    if step > 1:
        scale = exponent(tl.load(temperature + row))
        best = tl.load(greatest + index)
        line = logits + index.to(tl.int64) * stride
        # Never `low` itself, of which all is known.
        first = float_of((low + tl.maximum(step >> 2, 1)).to(tl.int32), SHIFT)
        second = float_of((low + tl.maximum(step >> 1, 1)).to(tl.int32), SHIFT)
        third = float_of((low + tl.maximum(step * 3 >> 2, 1)).to(tl.int32), SHIFT)
        count_1 = tl.zeros((TILE,), tl.float32)
        count_2, count_3, mass_1, mass_2, mass_3 = count_1, count_1, count_1, count_1, count_1
        for tile in range(TILES):
            ids = (program * TILES + tile) * TILE + tl.arange(0, TILE)
            # What stands behind the row lies above no pivot.
            values = tl.load(line + ids, mask=ids < vocabulary, other=float("-inf")).to(tl.float32)
            weights = tl.exp2((values - best) * scale)
            above_1 = (values > first).to(tl.float32)
            above_2 = (values > second).to(tl.float32)
            above_3 = (values > third).to(tl.float32)
            count_1 += above_1
            count_2 += above_2
            count_3 += above_3
            mass_1 += above_1 * weights
            mass_2 += above_2 * weights
            mass_3 += above_3 * weights
        at = (index * programs + program) * 4
        tl.store(next_counts + at, tl.sum(count_1, 0))
        tl.store(next_counts + at + 1, tl.sum(count_2, 0))
        tl.store(next_counts + at + 2, tl.sum(count_3, 0))
        if tl.load(top_p + row) < 1.0:
            tl.store(next_masses + at, tl.sum(mass_1, 0))
            tl.store(next_masses + at + 1, tl.sum(mass_2, 0))
            tl.store(next_masses + at + 2, tl.sum(mass_3, 0))


@triton.jit(do_not_specialize_on_alignment=["rows"])
def weigh(
    logits,
    stride,
    vocabulary,
    rows,
    temperature,
    top_k,
    top_p,
    min_p,
    searches,
    greatest,
    totals,
    brackets,
    counts,
    masses,
    programs,
    cuts,
    above,
    above_kept,
    ranks,
    BLOCK: tl.constexpr,
    PER_PROGRAM: tl.constexpr,
    PROGRAMS: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """Sum, for every block, what lies above the last key kept; grid (programs a row, N).

    programs: G, of `narrow`.  cuts: int32 [N], that key.  above, above_kept: float32 [N, C], the weight above it, and
    of it what min-p leaves.
    ranks: int32 [N, C, 2], how many lie above it and at it.
    """
    index = tl.program_id(1)
    if tl.load(searches + index) == 0:
        return
    row = tl.load(rows + index)
    program = tl.program_id(0)
    _, high = _measured(index, row, top_k, top_p, totals, brackets, counts, masses, programs, PROGRAMS)
    cut = high.to(tl.int32)
    if program == 0:
        tl.store(cuts + index, cut)
    scale = exponent(tl.load(temperature + row))
    block = program * PER_PROGRAM + tl.arange(0, PER_PROGRAM)
    ids = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = ids < vocabulary
    line = logits + index.to(tl.int64) * stride
    values = tl.load(line + ids, mask=inside, other=float("-inf")).to(tl.float32)
    last = float_of(cut, SHIFT)
    higher = values > last
    weights = tl.where(higher, tl.exp2((values - tl.load(greatest + index)) * scale), 0.0)
    blocks = tl.cdiv(vocabulary, BLOCK)
    at, real = index * blocks + block, block < blocks
    tl.store(above + at, tl.sum(weights, 1), mask=real)
    tl.store(above_kept + at, tl.sum(tl.where(weights >= tl.load(min_p + row), weights, 0.0), 1), mask=real)
    tl.store(ranks + 2 * at, tl.sum(higher.to(tl.int32), 1), mask=real)
    tl.store(ranks + 2 * at + 1, tl.sum((inside & (values == last)).to(tl.int32), 1), mask=real)


@triton.jit(do_not_specialize_on_alignment=["rows", "positions", "tokens", "bests"])
def draw_kept(
    logits,
    stride,
    vocabulary,
    rows,
    positions,
    temperature,
    top_k,
    top_p,
    min_p,
    row_keys,
    searches,
    greatest,
    totals,
    cuts,
    above,
    above_kept,
    ranks,
    tokens,
    bests,
    last_tokens,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """Draw among the kept, for the rows with a cut; grid (N,).  BLOCKS: C, rounded up to a power of two."""
    index = tl.program_id(0)
    if tl.load(searches + index) == 0:
        return
    row = tl.load(rows + index)
    scale = exponent(tl.load(temperature + row))
    best, least = tl.load(greatest + index), tl.load(min_p + row)
    last = float_of(tl.load(cuts + index), SHIFT)
    block = tl.arange(0, BLOCKS)
    blocks = tl.cdiv(vocabulary, BLOCK)
    at, inside = index * blocks + block, block < blocks
    ties = tl.load(ranks + 2 * at + 1, mask=inside, other=0)
    # How many of those at the cut may stay: each counts and weighs alike, the first ids first.
    weight = tl.exp2((last - best) * scale).to(tl.float64)
    room = tl.sum(ties, 0)
    k = tl.load(top_k + row)
    if k > 0:
        room = tl.minimum(room, k - tl.sum(tl.load(ranks + 2 * at, mask=inside, other=0), 0))
    p = tl.load(top_p + row)
    if p < 1.0:
        mass = tl.sum(tl.load(above + at, mask=inside, other=0.0).to(tl.float64), 0)
        left = tl.load(totals + index) * p.to(tl.float64) - mass
        room = tl.minimum(room, tl.minimum(tl.floor(left / tl.maximum(weight, 1.0e-30)), 1.0e9).to(tl.int32) + 1)
    room = tl.maximum(room, 1)
    stay = tl.minimum(tl.maximum(room - (tl.cumsum(ties, 0) - ties), 0), ties)
    weight = tl.where(weight.to(tl.float32) >= least, weight, 0.0)
    kept = tl.load(above_kept + at, mask=inside, other=0.0).to(tl.float64) + stay.to(tl.float64) * weight
    chosen, into = pick(kept, block, uniform(tl.load(row_keys + row), tl.load(positions + index)))
    stays = tl.sum(tl.where(block == chosen, stay, 0), 0)
    within = tl.arange(0, BLOCK)
    ids = chosen * BLOCK + within
    line = logits + index.to(tl.int64) * stride
    values = tl.load(line + ids, mask=ids < vocabulary, other=float("-inf")).to(tl.float32)
    at_cut = (values == last) & (ids < vocabulary)
    stays_here = (values > last) | (at_cut & (tl.cumsum(at_cut.to(tl.int32), 0) <= stays))
    weights = tl.exp2((values - best) * scale)
    inner, _ = pick(tl.where(stays_here & (weights >= least), weights, 0.0).to(tl.float64), within, into)
    answer(index, row, chosen * BLOCK + inner, best, tokens, bests, last_tokens)
