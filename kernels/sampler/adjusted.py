"""Rows whose logits are adjusted: penalties, masks, bans and a bias are worked out where logits are read.

Shapes: as in `adjustments.py`; a block of BLOCK tokens is looked at as words of 32, as bits lie.

`scan_adjusted` is `scan` for such rows, in one pass; with STORE it leaves their logits, float32, for a search of cuts,
which reads them many times.  Without, `choose_adjusted` adjusts once more the one block that a draw falls into.
"""

# Triton's language is Python in looks alone.
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from .draw import answer, exponent, pick, uniform
from .scan import merged

__all__ = ["choose_adjusted", "deliver", "scan_adjusted"]

# A step's own arrays, and slices of one transfer: where they lie says nothing about how to compile.
_MOVING = [
    "rows", "positions", "places", "histories", "masked", "edited", "masks", "starts", "edit_tokens", "edit_values",
    "tokens", "bests", "drawn", "drawn_bests",
]  # fmt: skip


@triton.jit
def _adjusted(
    line, block, history, mask, edit,
    vocabulary, seen, counts, strengths, masks, mask_words, starts, edit_tokens, edit_values,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Give a block's tokens and their adjusted logits, float32, both [BLOCK / 32, 32]; -inf behind the vocabulary.

    line: where the row's logits begin.  history, mask, edit: lines of each, -1 for none.
    """
    words = block * (BLOCK // 32) + tl.arange(0, BLOCK // 32)
    bit = tl.arange(0, 32)[None, :]
    ids = words[:, None] * 32 + bit
    values = tl.load(line + ids, mask=ids < vocabulary, other=float("-inf")).to(tl.float32)
    of = history.to(tl.int64)
    # Both words are on their way with the logits, not behind a branch.
    seen_width = tl.cdiv(vocabulary, 32)
    seen_words = tl.load(seen + of * seen_width + words, mask=words < tl.where(history >= 0, seen_width, 0), other=0)
    mask_at = masks + mask.to(tl.int64) * mask_words + words
    allowed = tl.load(mask_at, mask=words < tl.where(mask >= 0, mask_words, 0), other=0)
    if tl.max((seen_words != 0).to(tl.int32), 0) > 0:  # most rows have had few tokens
        had = ((seen_words[:, None] >> bit) & 1) != 0
        frequency = tl.load(strengths + of * 3)
        presence = tl.load(strengths + of * 3 + 1)
        repetition = tl.load(strengths + of * 3 + 2)
        count = tl.load(counts + of * vocabulary + ids, mask=had, other=0).to(tl.float32)
        left = values - tl.fma(count, frequency, tl.where(count > 0.0, presence, 0.0))
        # A quotient and one correction: rounded as a division (Markstein 1990), in three instructions.
        inverse = tl.div_rn(tl.full((), 1.0, tl.float32), repetition)
        quotient = left * inverse
        quotient = tl.fma(tl.fma(-quotient, repetition, left), inverse, quotient)
        values = tl.where(had, tl.where(left > 0.0, quotient, left * repetition), values)
    if mask >= 0:
        values = tl.where(((allowed[:, None] >> bit) & 1) != 0, values, float("-inf"))
    if edit >= 0:
        at = starts + edit * (tl.cdiv(vocabulary, BLOCK) + 1) + block
        for number in range(tl.load(at), tl.load(at + 1)):
            token = tl.load(edit_tokens + number)
            values = tl.where(ids == token, values + tl.load(edit_values + number), values)
    return ids, values


@triton.jit
def _remember(history, token, vocabulary, seen, counts):
    """Put a row's new token on its line."""
    if history >= 0:
        of = history.to(tl.int64)
        word = seen + of * tl.cdiv(vocabulary, 32) + token // 32
        bits = tl.load(word)
        at = counts + of * vocabulary + token
        before = tl.load(at)
        one = tl.full((), 1, tl.int32) << (token % 32).to(tl.int32)
        tl.store(at, tl.where((bits & one) != 0, before, 0) + 1)
        tl.store(word, bits | one)


@triton.jit(do_not_specialize=["mask_words"], do_not_specialize_on_alignment=_MOVING)
def scan_adjusted(
    logits,
    stride,
    vocabulary,
    rows,
    places,
    histories,
    masked,
    edited,
    seen,
    counts,
    strengths,
    masks,
    mask_words,
    starts,
    edit_tokens,
    edit_values,
    temperature,
    maxima,
    firsts,
    sums,
    stored,
    BLOCK: tl.constexpr,
    STORE: tl.constexpr,
):
    """Summarise a block of an adjusted row as `scan` does; grid (C, A).  stored: float32 [A, V], written with STORE."""
    index, block = tl.program_id(1), tl.program_id(0)
    ids, values = _adjusted(
        logits + tl.load(places + index).to(tl.int64) * stride, block,
        tl.load(histories + index), tl.load(masked + index), tl.load(edited + index),
        vocabulary, seen, counts, strengths, masks, mask_words, starts, edit_tokens, edit_values, BLOCK,
    )  # fmt: skip
    if STORE:
        tl.store(stored + index.to(tl.int64) * vocabulary + ids, values, mask=ids < vocabulary)
    scale = exponent(tl.load(temperature + tl.load(rows + index)))
    greatest = tl.max(values)
    pivot = tl.where(greatest == float("-inf"), 0.0, greatest)
    at = index * tl.cdiv(vocabulary, BLOCK) + block
    tl.store(maxima + at, greatest)
    tl.store(firsts + at, tl.min(tl.where(values == greatest, ids, vocabulary - 1)))
    tl.store(sums + at, tl.sum(tl.exp2((values - pivot) * scale)))  # NaN if one of the logits is


@triton.jit(do_not_specialize=["mask_words"], do_not_specialize_on_alignment=_MOVING)
def choose_adjusted(
    logits,
    stride,
    vocabulary,
    rows,
    positions,
    places,
    histories,
    masked,
    edited,
    seen,
    counts,
    strengths,
    masks,
    mask_words,
    starts,
    edit_tokens,
    edit_values,
    temperature,
    keys,
    maxima,
    firsts,
    sums,
    tokens,
    bests,
    last_tokens,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Give an adjusted row without a cut its token, as `choose` does, and remember it; grid (A,)."""
    index = tl.program_id(0)
    row, place, history = tl.load(rows + index), tl.load(places + index), tl.load(histories + index)
    block = tl.arange(0, BLOCKS)
    warmth = tl.load(temperature + row)
    scale = exponent(warmth)
    maximum, weights, best, numbers = merged(index, tl.cdiv(vocabulary, BLOCK), block, scale, maxima, sums)
    if numbers & (warmth > 0.0) & (best > float("-inf")):
        chosen, into = pick(weights, block, uniform(tl.load(keys + row), tl.load(positions + index)))
        _, values = _adjusted(
            logits + place.to(tl.int64) * stride, chosen, history, tl.load(masked + index), tl.load(edited + index),
            vocabulary, seen, counts, strengths, masks, mask_words, starts, edit_tokens, edit_values, BLOCK,
        )  # fmt: skip
        values = tl.reshape(values, (BLOCK,))
        inner, _ = pick(tl.exp2((values - tl.max(values, 0)) * scale).to(tl.float64), tl.arange(0, BLOCK), into)
        token = chosen * BLOCK + inner
    else:
        at = index * tl.cdiv(vocabulary, BLOCK) + block
        first = tl.load(firsts + at, mask=block < tl.cdiv(vocabulary, BLOCK), other=0)
        token = tl.min(tl.where(maximum == best, first, vocabulary - 1), 0)
    answer(place, row, token, tl.where(numbers, best, float("nan")), tokens, bests, last_tokens)
    _remember(history, token, vocabulary, seen, counts)


@triton.jit(do_not_specialize_on_alignment=_MOVING)
def deliver(places, histories, vocabulary, seen, counts, drawn, drawn_bests, tokens, bests):
    """Put what adjusted rows with cuts drew in its place, and remember it; grid (A,)."""
    index = tl.program_id(0)
    place, token = tl.load(places + index), tl.load(drawn + index)
    tl.store(tokens + place, token.to(tokens.dtype.element_ty))
    tl.store(bests + place, tl.load(drawn_bests + index))
    _remember(tl.load(histories + index), token, vocabulary, seen, counts)
