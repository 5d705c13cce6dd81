"""The kernel of `kernels.invariant`: tiles of any size whose every output is summed in one and the same order.

Shape suffixes:  T tokens    I inputs    O outputs

Why the tile does not matter.  A product of bfloat16 or float16 tiles with a multiple of 64 tokens is compiled to
wgmma.m64nNk16 alone: an output is its own float32 register, to which each instruction adds 16 products, from the first
inputs to the last.  Block sizes, warps, stages and persistence decide which outputs share an instruction (N) and how
many instructions are issued between two waits, never what is added to a register or when.  There are no partial sums:
no split of the inputs, no second accumulator.  Inputs behind the end are zeros, which leave a sum as it is.
float32 is multiplied by the ordinary units, in a tile that is the same for any number of tokens.
"""

# Triton's language is typed for its compiler, not for pyright.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ..invariant import Tuning

__all__ = ["multiply"]


@triton.jit
def _place(tile, rows, columns, GROUP: tl.constexpr):
    """Give a tile's row and column: GROUP rows go through all columns together, so that weights are fetched once."""
    width = GROUP * columns
    first = tile // width * GROUP
    size = tl.minimum(rows - first, GROUP)
    return first + tile % width % size, tile % width // size


@triton.jit
def _fetch(
    tensor, row, start, rows, stride,
    INPUTS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_I: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """Load [BLOCK, BLOCK_I] from a row and an input on, zeros behind the last of either."""
    if DESCRIPTORS:
        block = tensor.load([row, start])
    else:
        r = row + tl.arange(0, BLOCK)
        i = start + tl.arange(0, BLOCK_I)
        inside = (r < rows)[:, None]
        if INPUTS % BLOCK_I != 0:
            inside &= (i < INPUTS)[None, :]
        block = tl.load(tensor + r.to(tl.int64)[:, None] * stride + i[None, :], inside, 0.0)
    return block


@triton.jit(do_not_specialize=["tokens"])
def _multiply(
    x, weight, bias_ptr, out_ptr, tokens, outputs, x_stride, weight_stride,
    INPUTS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr, GROUP: tl.constexpr,
    STAGES: tl.constexpr, PERSISTENT: tl.constexpr, DESCRIPTORS: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.cdiv(tokens, BLOCK_T), tl.cdiv(outputs, BLOCK_O)
    # Flat, the fetches of a program's next tile begin before this one is written.
    for tile in tl.range(tl.program_id(0), rows * columns, tl.num_programs(0), flatten=PERSISTENT):
        row, column = _place(tile, rows, columns, GROUP)
        value = tl.zeros([BLOCK_T, BLOCK_O], tl.float32)
        for start in tl.range(0, INPUTS, BLOCK_I, num_stages=STAGES):
            x_tile = _fetch(x, row * BLOCK_T, start, tokens, x_stride, INPUTS, BLOCK_T, BLOCK_I, DESCRIPTORS)
            w_tile = _fetch(
                weight, column * BLOCK_O, start, outputs, weight_stride, INPUTS, BLOCK_O, BLOCK_I, DESCRIPTORS
            )
            if INTERPRETED:
                # numpy's product of matrices rounds a line by its place among the others; its sums do not.
                value += tl.sum(x_tile.to(tl.float32)[:, None, :] * w_tile.to(tl.float32)[None, :, :], 2)
            else:
                value = tl.dot(x_tile, tl.trans(w_tile), value, input_precision="ieee")
        t = row * BLOCK_T + tl.arange(0, BLOCK_T)
        o = column * BLOCK_O + tl.arange(0, BLOCK_O)
        inside = (t < tokens)[:, None] & (o < outputs)[None, :]
        places = out_ptr + t.to(tl.int64)[:, None] * outputs + o[None, :]
        if BIAS:
            value += tl.load(bias_ptr + o, o < outputs, 0.0).to(tl.float32)[None, :]
        if ADD:
            value += tl.load(places, inside, 0.0).to(tl.float32)
        tl.store(places, value.to(out_ptr.dtype.element_ty), inside)


def multiply(
    x_TI: Tensor, weight_IO: Tensor, out_TO: Tensor, *, bias_O: Tensor | None, add: bool, tuning: Tuning
) -> None:
    """Write the product, see `kernels.invariant.invariant_linear`, into out, or add it to what is there."""
    tokens, inputs = x_TI.shape
    outputs, weight_OI = out_TO.shape[1], weight_IO.t()
    if x_TI.stride(1) != 1:
        x_TI = x_TI.contiguous()
    interpreted = not x_TI.is_cuda
    if x_TI.dtype == torch.float32 and not interpreted:
        tuning = Tuning(64, 32, 32, stages=2, descriptors=False)
    rows, columns = tuning.block_tokens, tuning.block_outputs
    depth = 16 if interpreted else tuning.block_inputs  # 16 inputs are what the hardware adds up at once
    tiles = triton.cdiv(tokens, rows) * triton.cdiv(outputs, columns)
    # A program that goes on holds its result beside the next tile's inputs; one of float32 does not fit there.
    programs = tiles if out_TO.dtype == torch.float32 else min(tiles, tuning.programs or tiles)
    x, weight, described = x_TI, weight_OI, tuning.descriptors and _fetchable(x_TI) and _fetchable(weight_OI)
    if described:
        x = TensorDescriptor(x_TI, [tokens, inputs], [x_TI.stride(0), 1], [rows, depth])
        weight = TensorDescriptor(weight_OI, [outputs, inputs], [weight_OI.stride(0), 1], [columns, depth])
    _multiply[(programs,)](
        x, weight, x_TI if bias_O is None else bias_O, out_TO, tokens, outputs, x_TI.stride(0), weight_OI.stride(0),
        INPUTS=inputs, BLOCK_T=rows, BLOCK_O=columns, BLOCK_I=depth, GROUP=tuning.group, STAGES=tuning.stages,
        PERSISTENT=programs < tiles, DESCRIPTORS=described, BIAS=bias_O is not None, ADD=add,
        INTERPRETED=interpreted, num_warps=tuning.warps, num_stages=tuning.stages,
    )  # fmt: skip


def _fetchable(rows: Tensor) -> bool:
    """Tell whether the hardware fetches tiles of it: from addresses that are multiples of 16 bytes."""
    return rows.data_ptr() % 16 == 0 and rows.stride(0) * rows.element_size() % 16 == 0
