"""The kernel of `kernels.streamed`, in Gluon: weights and tokens come by descriptor into a ring of stages.

Weights are the left side of the tensor cores' products, whose 64 lines they fill, and tokens the right, which may be as
few as 8.  Shape suffixes:  T tokens    I inputs    O outputs    P parts    S stages
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
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..streamed import StreamTuning

__all__ = ["multiply"]


@gluon.jit
def load_weights(
    weight_OI,
    w_SOI,
    full_S,
    step,
    start,
    output,
    outputs,
    pred,
    STAGES: gl.constexpr,
    BYTES: gl.constexpr,
    GATED: gl.constexpr,
):
    """Ask for a step's weights, and have its barrier expect them and the tokens.  pred: that there is such a step."""
    ROWS: gl.constexpr = weight_OI.block_type.shape[0]
    stage = step % STAGES
    bar = full_S.index(stage)
    tile = w_SOI.index(stage)
    column = (start + step) * weight_OI.block_type.shape[1]
    mbarrier.expect(bar, BYTES, pred=pred)
    tma.async_copy_global_to_shared(weight_OI, [output, column], bar, tile.slice(0, ROWS, dim=0), pred=pred)
    if GATED:  # the ups of these gates lie behind all gates
        tma.async_copy_global_to_shared(
            weight_OI, [outputs + output, column], bar, tile.slice(ROWS, ROWS, dim=0), pred=pred
        )


@gluon.jit
def load_tokens(x_TI, x_STI, full_S, step, start, token, pred, STAGES: gl.constexpr):
    """Ask for a step's inputs of the tokens."""
    stage = step % STAGES
    column = (start + step) * x_TI.block_type.shape[1]
    tma.async_copy_global_to_shared(x_TI, [token, column], full_S.index(stage), x_STI.index(stage), pred=pred)


@gluon.jit
def gate(sums_OT, WARPS: gl.constexpr):
    """Give silu(gate) * up, of whose lines the first half are gates."""
    HALF: gl.constexpr = sums_OT.shape[0] // 2
    paired: gl.constexpr = gl.BlockedLayout([1, 1, 2], [8, 4, 1], [4, WARPS // 4, 1], [2, 0, 1])
    pairs = gl.permute(gl.reshape(sums_OT, [2, HALF, sums_OT.shape[1]]), [1, 2, 0])
    gates, ups = gl.split(gl.convert_layout(pairs, paired))
    return gates / (1.0 + gl.exp2(gates * -1.4426950408889634)) * ups


@gluon.jit(do_not_specialize=["tokens"])
def stream(
    weight_OI,
    x_TI,
    out_PTO,
    bias_O,
    tokens,
    outputs,
    inputs,
    STAGES: gl.constexpr,
    GATED: gl.constexpr,
    BIAS: gl.constexpr,
):
    """Multiply a block of tokens by a block of outputs over a part of the inputs.

    Grid: blocks of outputs, parts, blocks of tokens.  weight_OI: a descriptor whose block is that of the
    outputs, or half of it for GATED.  outputs: of the result.
    """
    ROWS: gl.constexpr = weight_OI.block_type.shape[0]
    BLOCK_I: gl.constexpr = weight_OI.block_type.shape[1]
    BLOCK_T: gl.constexpr = x_TI.block_type.shape[0]
    BLOCK_O: gl.constexpr = 2 * ROWS if GATED else ROWS
    BYTES: gl.constexpr = (BLOCK_O + BLOCK_T) * BLOCK_I * 2
    WARPS: gl.constexpr = gl.num_warps()
    dtype: gl.constexpr = weight_OI.dtype
    summed: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK_T, 16])
    output = gl.program_id(0) * ROWS
    part = gl.program_id(1)
    token = gl.program_id(2) * BLOCK_T
    blocks = (inputs + BLOCK_I - 1) // BLOCK_I
    start = part * blocks // gl.num_programs(1)
    steps = (part + 1) * blocks // gl.num_programs(1) - start
    w_SOI = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_O, BLOCK_I], weight_OI.layout)
    x_STI = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_T, BLOCK_I], x_TI.layout)
    full_S = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full_S.index(stage), count=1)

    # One stage stays free: what is asked for next goes where the product before the one under way has read.
    for step in gl.static_range(STAGES - 1):
        load_weights(weight_OI, w_SOI, full_S, step, start, output, outputs, step < steps, STAGES, BYTES, GATED)
    gdc_wait()  # weights were there all along, x is there only when the kernel before has ended
    gdc_launch_dependents()
    for step in gl.static_range(STAGES - 1):
        load_tokens(x_TI, x_STI, full_S, step, start, token, step < steps, STAGES)
    sums_OT = gl.zeros([BLOCK_O, BLOCK_T], gl.float32, summed)
    for done in range(steps):
        stage_now = done % STAGES
        mbarrier.wait(full_S.index(stage_now), done // STAGES & 1)
        sums_OT = warpgroup_mma(w_SOI.index(stage_now), x_STI.index(stage_now).permute((1, 0)), sums_OT, is_async=True)
        sums_OT = warpgroup_mma_wait(1, deps=[sums_OT])
        ahead = done + STAGES - 1
        load_weights(weight_OI, w_SOI, full_S, ahead, start, output, outputs, ahead < steps, STAGES, BYTES, GATED)
        load_tokens(x_TI, x_STI, full_S, ahead, start, token, ahead < steps, STAGES)
    sums_OT = warpgroup_mma_wait(0, deps=[sums_OT])

    if BIAS:
        line = gl.arange(0, BLOCK_O, layout=gl.SliceLayout(1, summed))
        place = output + line + (gl.where(line < ROWS, 0, outputs - ROWS) if GATED else 0)
        real = (output + line % ROWS < outputs) & (part == 0)
        sums_OT += gl.load(bias_O + place, mask=real, other=0.0).to(gl.float32)[:, None]
    if GATED:
        sums_OT = gate(sums_OT, WARPS)
    written: gl.constexpr = sums_OT.type.layout
    o = output + gl.arange(0, ROWS, layout=gl.SliceLayout(1, written))
    t = token + gl.arange(0, BLOCK_T, layout=gl.SliceLayout(0, written))
    places = ((part * tokens + t).to(gl.int64) * outputs)[None, :] + o[:, None]
    inside = (t < tokens)[None, :] & (o < outputs)[:, None]
    gl.store(out_PTO + places, sums_OT.to(out_PTO.dtype.element_ty), mask=inside)


def multiply(
    x_TI: Tensor, weight_IO: Tensor, out_PTO: Tensor, bias_O: Tensor | None, *, gated: bool, tuning: StreamTuning
) -> None:
    """Write the product, see `kernels.streamed`, or its parts."""
    tokens, inputs = x_TI.shape
    parts, _, outputs = out_PTO.shape
    rows = tuning.block_outputs // 2 if gated else tuning.block_outputs
    grid = (-(-outputs // rows), parts, -(-tokens // tuning.block_tokens))
    stream[grid](
        _descriptor(weight_IO.t(), rows, tuning.block_inputs),
        _descriptor(x_TI, tuning.block_tokens, tuning.block_inputs),
        out_PTO,
        x_TI if bias_O is None else bias_O,
        tokens,
        outputs,
        inputs,
        STAGES=tuning.stages,
        GATED=gated,
        BIAS=bias_O is not None,
        num_warps=tuning.warps,
        launch_pdl=True,
    )


def _descriptor(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Describe a matrix of two-byte numbers, to be copied in blocks of rows x columns."""
    kind = gl.bfloat16 if matrix.dtype == torch.bfloat16 else gl.float16
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], kind)
    return TensorDescriptor.from_tensor(matrix, [rows, columns], layout)
