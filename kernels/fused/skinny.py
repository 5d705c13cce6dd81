"""The kernel of `kernels.skinny`: every weight is read once, and all else hides behind that.

Shape suffixes:  T tokens, one    I inputs    O outputs

It norms without a pass of its own: what a norm divides by is one number, so a product of x * norm weight is divided by
it at the end, and the squares are summed on the way.
"""

# Triton's language is typed for its compiler, not for pyright.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..skinny import SkinnyTuning

__all__ = ["multiply"]


@triton.jit
def _tile(pointers, start, i, INPUTS: tl.constexpr, WHOLE: tl.constexpr):
    """Load weights [O, BLOCK_I] from column `start` on, zeros behind the end; nobody needs them twice."""
    if WHOLE:
        return tl.load(pointers + start, eviction_policy="evict_first")
    return tl.load(pointers + start, (start + i < INPUTS)[None, :], 0.0, eviction_policy="evict_first")


@triton.jit
def _part(pointers, start, i, INPUTS: tl.constexpr, WHOLE: tl.constexpr):
    """Load a vector's columns from `start` on, zeros behind the end."""
    if WHOLE:
        return tl.load(pointers + start)
    return tl.load(pointers + start, start + i < INPUTS, 0.0)


@triton.jit
def _halves(words, BFLOAT: tl.constexpr):
    """Split words into the two numbers each holds, as float32: one instruction a number for bfloat16."""
    if BFLOAT:
        return (words << 16).to(tl.float32, bitcast=True), (words & -65536).to(tl.float32, bitcast=True)
    low, high = words.to(tl.int16), (words >> 16).to(tl.int16)
    return low.to(tl.float16, bitcast=True).to(tl.float32), high.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _products(words_OW, low_W, high_W, BFLOAT: tl.constexpr):
    """Multiply, and add up what one thread holds of a row: eight neighbours."""
    w_low, w_high = _halves(words_OW, BFLOAT)
    return _sums(w_low * low_W[None, :]) + _sums(w_high * high_W[None, :])


@triton.jit
def _sums(products_OW):
    return tl.sum(tl.reshape(products_OW, [products_OW.shape[0], products_OW.shape[1] // 4, 4]), 2)


@triton.jit
def _write(
    value_O, up_O, bias_ptr, out_ptr, o, outputs, BIAS: tl.constexpr, ADD: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    inside = o < outputs
    if BIAS:
        value_O += tl.load(bias_ptr + o, inside, 0.0).to(tl.float32)
    if GATED:
        if BIAS:
            up_O += tl.load(bias_ptr + outputs + o, inside, 0.0).to(tl.float32)
        value_O = value_O * tl.sigmoid(value_O) * up_O
    if ADD:
        value_O += tl.load(out_ptr + o, inside, 0.0).to(tl.float32)
    tl.store(out_ptr + o, value_O.to(out_ptr.dtype.element_ty), inside)


@triton.jit
def _one_token(
    x_ptr, weight_ptr, norm_ptr, bias_ptr, out_ptr, outputs, epsilon,
    INPUTS: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr, BFLOAT: tl.constexpr,
    NORM: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, GATED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    # Numbers travel two by two, as words.
    W: tl.constexpr = INPUTS // 2
    BLOCK_W: tl.constexpr = BLOCK_I // 2
    WHOLE: tl.constexpr = W % BLOCK_W == 0
    o = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    i = tl.arange(0, BLOCK_W)
    word = tl.pointer_type(tl.int32)
    row = tl.minimum(o, outputs - 1).to(tl.int64)[:, None] * W
    weight = weight_ptr.to(word, bitcast=True) + row + i[None, :]
    # The up rows lie behind all gate rows.
    second = weight + outputs.to(tl.int64) * W if GATED else weight
    w = _tile(weight, 0, i, W, W >= BLOCK_W)
    u = _tile(second, 0, i, W, W >= BLOCK_W) if GATED else w
    if DEPENDENT:  # Weights may be read while the kernel before still runs, x only when it has ended.
        gdc_wait()
        gdc_launch_dependents()
    value = tl.zeros([BLOCK_O, BLOCK_I // 8], tl.float32)
    up = value
    squares = tl.zeros([BLOCK_W], tl.float32)
    for start in range(0, W, BLOCK_W):
        # The next tile is under way before this one is used.
        w_next = _tile(weight, start + BLOCK_W, i, W, False)
        u_next = _tile(second, start + BLOCK_W, i, W, False) if GATED else w_next
        low, high = _halves(_part(x_ptr.to(word, bitcast=True) + i, start, i, W, WHOLE), BFLOAT)
        if NORM:
            squares += low * low + high * high
            low_norm, high_norm = _halves(_part(norm_ptr.to(word, bitcast=True) + i, start, i, W, WHOLE), BFLOAT)
            low, high = low * low_norm, high * high_norm
        value += _products(w, low, high, BFLOAT)
        if GATED:
            up += _products(u, low, high, BFLOAT)
        w, u = w_next, u_next
    scale = tl.rsqrt(tl.sum(squares, 0) / INPUTS + epsilon) if NORM else 1.0
    value_O = tl.sum(value, 1) * scale
    up_O = tl.sum(up, 1) * scale if GATED else value_O
    _write(value_O, up_O, bias_ptr, out_ptr, o, outputs, BIAS, ADD, GATED)


def multiply(
    x_TI: Tensor,
    weight_IO: Tensor,
    out_TO: Tensor,
    *,
    bias_O: Tensor | None,
    norm_I: Tensor | None,
    epsilon: float,
    add: bool,
    gated: bool,
    tuning: SkinnyTuning,
) -> None:
    """Write the product, see `kernels.skinny.skinny_linear`, into out, or add it to what is there."""
    outputs = out_TO.shape[1]
    vectors = (x_TI if norm_I is None else norm_I, x_TI if bias_O is None else bias_O)
    early = tuning.dependent and x_TI.is_cuda  # the interpreter has no early launch
    _one_token[(triton.cdiv(outputs, tuning.block_outputs),)](
        x_TI, weight_IO, *vectors, out_TO, outputs, epsilon,
        INPUTS=x_TI.shape[1], BLOCK_O=tuning.block_outputs, BLOCK_I=tuning.block_inputs,
        BFLOAT=x_TI.dtype == torch.bfloat16,
        NORM=norm_I is not None, BIAS=bias_O is not None, ADD=add, GATED=gated,
        DEPENDENT=early, launch_pdl=early, num_warps=tuning.warps,
    )  # fmt: skip
