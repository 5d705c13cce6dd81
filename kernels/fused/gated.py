"""The kernel of `kernels.gated`, in Gluon: warps that copy beside warps that multiply, gate, and write.

A tile of the weight has its lines by sixteen: eight gates, and the ups of the same outputs.  Of sixteen lines of sums a
thread holds one of the first eight and one of the last, so a gate meets its up without leaving its registers.
Shape suffixes:  T tokens    I inputs    F gated outputs    E gates by eight, F / 8    S stages
"""

# To the type checker a constant of a kernel is no number, and a layout no constant.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAssignmentType=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

__all__ = ["multiply"]

# A tile: 64 gates with their ups, 256 tokens; multiplied 64 inputs at a time, four of these under way.
_GATES, _TOKENS, _INPUTS, _STAGES = 64, 256, 64, 4
# Tiles follow one another so that those under way share weights and tokens: so many blocks of gates by as many of
# tokens as it takes.
_NEIGHBOURS = 16
_WARPS, _COPY_REGISTERS = 8, 40


@gluon.jit
def find_tile(tile, tokens, width, GATES: gl.constexpr, TOKENS: gl.constexpr, NEIGHBOURS: gl.constexpr):
    """Find a tile's first gate and first token."""
    blocks_F = (width + GATES - 1) // GATES
    blocks_T = (tokens + TOKENS - 1) // TOKENS
    band = tile // (NEIGHBOURS * blocks_T) * NEIGHBOURS
    beside = gl.minimum(blocks_F - band, NEIGHBOURS)
    number = tile % (NEIGHBOURS * blocks_T)
    return (band + number % beside) * GATES, number // beside * TOKENS


@gluon.jit
def copy(weight_E28I, x_TI, ring, sizes, STAGES: gl.constexpr, NEIGHBOURS: gl.constexpr):
    """Ask for the weights and tokens of every step of every tile of this program."""
    tokens, width, inputs, tiles = sizes
    w_SE28I, x_STI, full_S, free_S = ring
    GATES: gl.constexpr = 8 * weight_E28I.block_type.shape[0]
    TOKENS: gl.constexpr = x_TI.block_type.shape[0]
    INPUTS: gl.constexpr = x_TI.block_type.shape[1]
    done = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        gate, token = find_tile(tile, tokens, width, GATES, TOKENS, NEIGHBOURS)
        for column in range(0, inputs, INPUTS):
            stage = done % STAGES
            bar = full_S.index(stage)
            mbarrier.wait(free_S.index(stage), (done // STAGES & 1) ^ 1)
            mbarrier.expect(bar, (2 * GATES + TOKENS) * INPUTS * 2)
            tma.async_copy_global_to_shared(weight_E28I, [gate // 8, 0, 0, column], bar, w_SE28I.index(stage))
            tma.async_copy_global_to_shared(x_TI, [token, column], bar, x_STI.index(stage))
            done += 1


@gluon.jit
def multiply_tiles(
    out_TF,
    bias_F,
    ring,
    sizes,
    GATES: gl.constexpr,
    TOKENS: gl.constexpr,
    INPUTS: gl.constexpr,
    STAGES: gl.constexpr,
    NEIGHBOURS: gl.constexpr,
    BIAS: gl.constexpr,
    WARPS: gl.constexpr,
):
    """Multiply, gate and write every tile of this program."""
    tokens, width, inputs, tiles = sizes
    w_SE28I, x_STI, full_S, free_S = ring
    summed: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, TOKENS, 16])
    written: gl.constexpr = gl.BlockedLayout([8, 1], [8, 4], [1, WARPS], [0, 1])  # 16 bytes a thread
    done = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        gate, token = find_tile(tile, tokens, width, GATES, TOKENS, NEIGHBOURS)
        sums = gl.zeros([2 * GATES, TOKENS], gl.float32, summed)
        for column in range(0, inputs, INPUTS):
            stage = done % STAGES
            mbarrier.wait(full_S.index(stage), done // STAGES & 1)
            weights = w_SE28I.index(stage).reshape([2 * GATES, INPUTS])
            sums = warpgroup_mma(weights, x_STI.index(stage).permute((1, 0)), sums, is_async=True)
            sums = warpgroup_mma_wait(1, deps=[sums])
            mbarrier.arrive(free_S.index((done + STAGES - 1) % STAGES), pred=column > 0)
            done += 1
        sums = warpgroup_mma_wait(0, deps=[sums])
        mbarrier.arrive(free_S.index((done + STAGES - 1) % STAGES))
        pairs = gl.permute(gl.reshape(sums, [GATES // 8, 2, 8, TOKENS]), [0, 2, 3, 1])
        gates, ups = gl.split(gl.reshape(pairs, [GATES, TOKENS, 2]))
        if BIAS:
            f = gate + gl.arange(0, GATES, layout=gl.SliceLayout(1, gates.type.layout))
            gates += gl.load(bias_F + f, mask=f < width, other=0.0).to(gl.float32)[:, None]
            ups += gl.load(bias_F + width + f, mask=f < width, other=0.0).to(gl.float32)[:, None]
        result = gates / (1.0 + gl.exp2(gates * -1.4426950408889634)) * ups
        result = gl.convert_layout(result.to(out_TF.dtype.element_ty), written)
        f = gate + gl.arange(0, GATES, layout=gl.SliceLayout(1, written))
        t = token + gl.arange(0, TOKENS, layout=gl.SliceLayout(0, written))
        places = (t.to(gl.int64) * width)[None, :] + f[:, None]
        gl.store(out_TF + places, result, mask=(t < tokens)[None, :] & (f < width)[:, None])


@gluon.jit(do_not_specialize=["tokens", "tiles"])
def gated_tiles(
    weight_E28I,
    x_TI,
    out_TF,
    bias_F,
    tokens,
    width,
    inputs,
    tiles,
    STAGES: gl.constexpr,
    NEIGHBOURS: gl.constexpr,
    BIAS: gl.constexpr,
    COPY_REGISTERS: gl.constexpr,
):
    """Write silu(gate) * up of all tokens.  Grid: any; tiles are taken in turns.

    weight_E28I: a descriptor of the weight as gates by eight, their ups beside them.  A stage is full once its bytes
    are there, and free once the product that reads it has been waited for.
    """
    GATES: gl.constexpr = 8 * weight_E28I.block_type.shape[0]
    TOKENS: gl.constexpr = x_TI.block_type.shape[0]
    INPUTS: gl.constexpr = x_TI.block_type.shape[1]
    WARPS: gl.constexpr = gl.num_warps()
    dtype: gl.constexpr = x_TI.dtype
    w_SE28I = gl.allocate_shared_memory(dtype, [STAGES, GATES // 8, 2, 8, INPUTS], weight_E28I.layout)
    x_STI = gl.allocate_shared_memory(dtype, [STAGES, TOKENS, INPUTS], x_TI.layout)
    full_S = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free_S = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full_S.index(stage), count=1)
        mbarrier.init(free_S.index(stage), count=1)
    ring = (w_SE28I, x_STI, full_S, free_S)
    sizes = (tokens, width, inputs, tiles)
    gl.warp_specialize(
        [
            (multiply_tiles, (out_TF, bias_F, ring, sizes, GATES, TOKENS, INPUTS, STAGES, NEIGHBOURS, BIAS, WARPS)),
            (copy, (weight_E28I, x_TI, ring, sizes, STAGES, NEIGHBOURS)),
        ],
        [4],
        [COPY_REGISTERS],
    )


def multiply(x_TI: Tensor, weight_IO: Tensor, out_TF: Tensor, bias_O: Tensor | None) -> None:
    """Write the gated product, see `kernels.gated`."""
    tokens, inputs = x_TI.shape
    width = out_TF.shape[1]
    kind = gl.bfloat16 if x_TI.dtype == torch.bfloat16 else gl.float16
    by_eight, by_token = [_GATES // 8, 2, 8, _INPUTS], [_TOKENS, _INPUTS]
    weight_E28I = TensorDescriptor(
        weight_IO.t(),
        [width // 8, 2, 8, inputs],
        [8 * inputs, width * inputs, inputs, 1],
        by_eight,
        gl.NVMMASharedLayout.get_default_for(by_eight, kind),
    )
    tiles = -(-width // _GATES) * -(-tokens // _TOKENS)
    processors = torch.cuda.get_device_properties(x_TI.device).multi_processor_count
    gated_tiles[(min(tiles, processors),)](
        weight_E28I,
        TensorDescriptor.from_tensor(x_TI, by_token, gl.NVMMASharedLayout.get_default_for(by_token, kind)),
        out_TF,
        x_TI if bias_O is None else bias_O,
        tokens,
        width,
        inputs,
        tiles,
        STAGES=_STAGES,
        NEIGHBOURS=_NEIGHBOURS,
        BIAS=bias_O is not None,
        COPY_REGISTERS=_COPY_REGISTERS,
        num_warps=_WARPS,
    )
