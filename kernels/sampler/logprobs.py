"""Log-probabilities of chosen tokens and of the most likely few, without a softmax that is written down.

Shapes: N lines of logits, L of them asked about, V vocabulary, C blocks of BLOCK tokens, K most likely tokens.

`summarize` reads the logits once and leaves two numbers a block: its head, and the sum of its weights.  A head is the
block's greatest (logit, id) as one integer, the lesser id first among equals; so the greatest of all heads is the most
likely token, and the next one lies behind another head, or behind it in its own block.  `report` reads a block again
for each token it finds, and no other.
"""

# Triton's language is Python in looks alone.
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .draw import float_of, key_of

__all__ = ["log_probabilities"]

_BLOCK = 1024


@triton.jit
def _ordered(values, ids):
    """Make one int64 of a logit, float32, and an id that orders by the logit first."""
    return (key_of(values, 0).to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)


@triton.jit(do_not_specialize_on_alignment=["places"])
def summarize(logits, stride, vocabulary, places, heads, sums, BLOCK: tl.constexpr):
    """Summarise a block of a line; grid (C, L).  heads: int64 [L, C].  sums: float32 [L, C], relative to the head."""
    index, block = tl.program_id(1), tl.program_id(0)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    line = logits + tl.load(places + index).to(tl.int64) * stride
    values = tl.load(line + ids, mask=ids < vocabulary, other=float("-inf")).to(tl.float32)
    greatest = tl.max(values, 0)
    first = tl.min(tl.where(values == greatest, ids, vocabulary - 1), 0)
    pivot = tl.where(greatest == float("-inf"), 0.0, greatest)
    at = index * tl.cdiv(vocabulary, BLOCK) + block
    tl.store(heads + at, _ordered(greatest, first))
    tl.store(sums + at, tl.sum(tl.exp2((values - pivot) * 1.4426950408889634), 0))


@triton.jit(
    do_not_specialize=["width"], do_not_specialize_on_alignment=["places", "tokens", "chosen", "top_tokens", "top"]
)
def report(
    logits,
    stride,
    vocabulary,
    places,
    tokens,
    heads,
    sums,
    chosen,
    top_tokens,
    top,
    width,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Merge a line's blocks, and tell of its token and of the `width` most likely ones, best first; grid (L,).

    BLOCKS: C, rounded up to a power of two.
    """
    nothing = tl.full((), -0x8000000000000000, tl.int64)
    index = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    at, inside = index * tl.cdiv(vocabulary, BLOCK) + block, block < tl.cdiv(vocabulary, BLOCK)
    head = tl.load(heads + at, mask=inside, other=-0x8000000000000000)
    maximum = float_of((head >> 32).to(tl.int32), 0)
    maximum = tl.where(inside & (maximum != float("-inf")), maximum, 0.0)  # as `summarize` took it
    first = tl.max(head, 0)
    best = float_of((first >> 32).to(tl.int32), 0)
    total = tl.load(sums + at, mask=inside, other=0.0).to(tl.float64)
    total = tl.where(total > 0.0, total * tl.exp2((maximum - best) * 1.4426950408889634).to(tl.float64), total)
    base = tl.log(tl.sum(total, 0).to(tl.float32))
    place = tl.load(places + index)
    line = logits + place.to(tl.int64) * stride
    token = tl.load(tokens + place).to(tl.int64)
    tl.store(chosen + index, tl.load(line + token).to(tl.float32) - best - base)
    number = 0
    while number < width:
        found = tl.max(head, 0)
        likely = 0x7FFFFFFF - (found & 0xFFFFFFFF).to(tl.int32)
        tl.store(top_tokens + index * width + number, likely)
        tl.store(top + index * width + number, float_of((found >> 32).to(tl.int32), 0) - best - base)
        ids = (likely // BLOCK) * BLOCK + tl.arange(0, BLOCK)
        values = tl.load(line + ids, mask=ids < vocabulary, other=float("-inf")).to(tl.float32)
        ordered = _ordered(values, ids)
        behind = tl.max(tl.where((ordered < found) & (ids < vocabulary), ordered, nothing), 0)
        head = tl.where(block == likely // BLOCK, behind, head)
        number += 1


def log_probabilities(
    logits_NV: Tensor, places_L: Tensor, tokens_N: Tensor, width: int, words: Tensor, *, block: int = _BLOCK
) -> None:
    """Tell the log-probability of tokens_N[places_L], and the `width` most likely tokens with theirs, best first.

    logits_NV: bf16, float16 or float32; read once.  width: at most V; equal logits are ordered by id.  Written to
    words, int32 [L * (1 + 2 * width)]: the log-probabilities, float32 [L], then tokens, int32 [L, width], then theirs,
    float32 [L, width].  A line with a logit that is not a number has NaN for its own.  Nothing waits for the device.
    """
    count, vocabulary = len(places_L), logits_NV.shape[1]
    blocks = -(-vocabulary // block)
    heads_LC = torch.empty((count, blocks), dtype=torch.int64, device=logits_NV.device)
    sums_LC = torch.empty((count, blocks), dtype=torch.float32, device=logits_NV.device)
    chosen_L, top_tokens, top = words.split((count, count * width, count * width))
    summarize[blocks, count](
        logits_NV, logits_NV.stride(0), vocabulary, places_L, heads_LC, sums_LC, BLOCK=block, num_warps=1
    )  # fmt: skip
    report[count,](
        logits_NV, logits_NV.stride(0), vocabulary, places_L, tokens_N, heads_LC, sums_LC,
        chosen_L.view(torch.float32), top_tokens, top.view(torch.float32), width,
        BLOCK=block, BLOCKS=1 << (blocks - 1).bit_length(), num_warps=4,
    )  # fmt: skip
