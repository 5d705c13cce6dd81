"""What the sampling kernels share: random numbers, drawing among weights, floats that order as integers."""

# Triton's language is Python in looks alone.
# pyright: reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["answer", "exponent", "float_of", "key_of", "pick", "uniform"]


@triton.jit
def uniform(key, position):
    """Draw the float64 in [0, 1) that `random.uniform` draws for (key, position), with the same bits."""
    z = key.to(tl.uint64, bitcast=True) + (position.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    z = z ^ (z >> 31)
    return (z >> 32).to(tl.int64).to(tl.float64) * 2.3283064365386963e-10  # 2 ** -32


@triton.jit
def pick(weights, ids, share):
    """Find the first id whose cumulative weight exceeds share x total, and how far into it that lies.

    weights: float64 [W].  ids: 0, 1, ... W - 1.  Where nothing weighs anything the first is given.
    """
    cumulative = tl.cumsum(weights, 0)
    target = share * tl.max(cumulative, 0)
    heavy = weights > 0.0
    last = tl.max(tl.where(heavy, ids, 0), 0)
    # A parallel sum may round its way past the target where a weight is 0; and a share may round up to the whole.
    chosen = tl.minimum(tl.min(tl.where(heavy & (cumulative > target), ids, last), 0), last)
    at = ids == chosen
    before = tl.sum(tl.where(at, cumulative - weights, 0.0), 0)
    weight = tl.sum(tl.where(at, weights, 0.0), 0)
    return chosen, (target - before) / tl.where(weight > 0.0, weight, 1.0)


@triton.jit
def exponent(temperature):
    """Give the factor that turns a logit's distance into a power of two's exponent; greedy counts as 1."""
    return 1.4426950408889634 / tl.where(temperature > 0.0, temperature, 1.0)


@triton.jit
def key_of(values, SHIFT: tl.constexpr):
    """Turn float32 into int32 that order alike; SHIFT drops the bits that the logits' own type does not have."""
    bits = tl.where(values == 0.0, 0.0, values).to(tl.int32, bitcast=True)  # -0 is 0
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits) >> SHIFT


@triton.jit
def float_of(key, SHIFT: tl.constexpr):
    """Turn a key back."""
    bits = key << SHIFT
    return tl.where(bits < 0, bits ^ (0x7FFFFFFF >> SHIFT << SHIFT), bits).to(tl.float32, bitcast=True)


@triton.jit
def answer(index, row, token, best, tokens, bests, last_tokens):
    """Write what a row gets, for the host and for the row's next step."""
    tl.store(tokens + index, token.to(tokens.dtype.element_ty))
    tl.store(bests + index, best)
    tl.store(last_tokens + row, token.to(last_tokens.dtype.element_ty))
