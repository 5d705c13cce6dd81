"""The kernels of `kernels.skinny`: every weight is read once, and all else hides behind that.

Shape suffixes:  T tokens    I inputs    O outputs

Both kernels norm without a pass of their own: what a norm divides by is one number a token, so a product of
x * norm weight is divided by it at the end, and the squares are summed on the way.
"""

# Triton's language is typed for its compiler, not for pyright.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..skinny import Tuning

__all__ = ["multiply"]

_MINIMUM_TOKENS = 16  # what a tensor core multiplies at once


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
    value_TO, up_TO, bias_ptr, out_ptr, t, o, tokens, outputs,
    BIAS: tl.constexpr, ADD: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    inside = (t < tokens)[:, None] & (o < outputs)[None, :]
    places = out_ptr + t[:, None] * outputs + o[None, :]
    if BIAS:
        value_TO += tl.load(bias_ptr + o, o < outputs, 0.0).to(tl.float32)[None, :]
    if GATED:
        if BIAS:
            up_TO += tl.load(bias_ptr + outputs + o, o < outputs, 0.0).to(tl.float32)[None, :]
        value_TO = value_TO * tl.sigmoid(value_TO) * up_TO
    if ADD:
        value_TO += tl.load(places, inside, 0.0).to(tl.float32)
    tl.store(places, value_TO.to(out_ptr.dtype.element_ty), inside)


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
    value_TO = (tl.sum(value, 1) * scale)[None, :]
    up_TO = (tl.sum(up, 1) * scale)[None, :] if GATED else value_TO
    _write(value_TO, up_TO, bias_ptr, out_ptr, tl.arange(0, 1), o, 1, outputs, BIAS, ADD, GATED)


@triton.jit(do_not_specialize=["tokens"])
def _few_tokens(
    x_ptr, weight_ptr, norm_ptr, bias_ptr, out_ptr, tokens, outputs, epsilon,
    INPUTS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr, STAGES: tl.constexpr,
    NORM: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, GATED: tl.constexpr, DEPENDENT: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    t = tl.arange(0, BLOCK_T)
    o = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    i = tl.arange(0, BLOCK_I)
    weight = weight_ptr + tl.minimum(o, outputs - 1).to(tl.int64)[:, None] * INPUTS + i[None, :]
    second = weight + outputs.to(tl.int64) * INPUTS if GATED else weight
    value = tl.zeros([BLOCK_T, BLOCK_O], tl.float32)
    up = tl.zeros([BLOCK_T, BLOCK_O], tl.float32)
    squares = tl.zeros([BLOCK_T, BLOCK_I // 8], tl.float32)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    for start in tl.range(0, INPUTS, BLOCK_I, num_stages=STAGES):
        inside = (t < tokens)[:, None] & (start + i < INPUTS)[None, :]
        x = tl.load(x_ptr + t[:, None] * INPUTS + (start + i)[None, :], inside, 0.0)
        if NORM:
            wide = x.to(tl.float32)
            squares += tl.sum(tl.reshape(wide * wide, [BLOCK_T, BLOCK_I // 8, 8]), 2)
            x = (wide * _part(norm_ptr + i, start, i, INPUTS, INPUTS % BLOCK_I == 0).to(tl.float32)[None, :]).to(
                x.dtype
            )
        if WIDEN:
            x = x.to(tl.float32)
        value = _dot(x, _tile(weight, start, i, INPUTS, INPUTS % BLOCK_I == 0), value, WIDEN)
        if GATED:
            up = _dot(x, _tile(second, start, i, INPUTS, INPUTS % BLOCK_I == 0), up, WIDEN)
    if NORM:
        scale = tl.rsqrt(tl.sum(squares, 1) / INPUTS + epsilon)[:, None]
        value, up = value * scale, up * scale
    _write(value, up, bias_ptr, out_ptr, t, o, tokens, outputs, BIAS, ADD, GATED)


@triton.jit
def _dot(x_TI, w_OI, value_TO, WIDEN: tl.constexpr):
    """Multiply on the tensor cores; in the interpreter, which knows no half precision, in float32."""
    if WIDEN:
        return tl.dot(x_TI, tl.trans(w_OI.to(tl.float32)), value_TO, input_precision="ieee")
    return tl.dot(x_TI, tl.trans(w_OI), value_TO)


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
    tuning: Tuning,
) -> None:
    """Write the product, see `kernels.skinny.skinny_linear`, into out, or add it to what is there."""
    tokens, inputs = x_TI.shape
    outputs = out_TO.shape[1]
    vectors = (x_TI if norm_I is None else norm_I, x_TI if bias_O is None else bias_O)
    grid = (triton.cdiv(outputs, tuning.block_outputs),)
    flags = {"NORM": norm_I is not None, "BIAS": bias_O is not None, "ADD": add, "GATED": gated}
    early = tuning.dependent and x_TI.is_cuda  # the interpreter has no early launch
    options = {"DEPENDENT": early, "launch_pdl": early, "num_warps": tuning.warps}
    blocks = {"INPUTS": inputs, "BLOCK_O": tuning.block_outputs, "BLOCK_I": tuning.block_inputs}
    if not tuning.tensor_cores:
        _one_token[grid](
            x_TI, weight_IO, *vectors, out_TO, outputs, epsilon,
            BFLOAT=x_TI.dtype == torch.bfloat16, **blocks, **flags, **options,
        )  # fmt: skip
        return
    block_tokens = max(_MINIMUM_TOKENS, triton.next_power_of_2(tokens))
    _few_tokens[grid](
        x_TI, weight_IO, *vectors, out_TO, tokens, outputs, epsilon,
        BLOCK_T=block_tokens, STAGES=tuning.stages, WIDEN=not x_TI.is_cuda, **blocks, **flags, **options,
    )  # fmt: skip
