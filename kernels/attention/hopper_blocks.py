"""Blocks of keys on Hopper, for tiles of 128 lines: warps that copy beside warps that multiply, in Gluon.

Four warps gather keys and values by their slots into a ring of stages in shared memory.  Two times four warps take 64
lines of the tile each, at their own pace, so that one's softmax runs beside the other's products; and beside its own:
each has the values' products of one block under way while it takes the next block's scores.  After FlashAttention-3
(Shah et al. 2024).

    gather     K_0 V_0 K_1 V_1 K_2 V_2 ...          each into its stage as soon as both others have done with it
    attend     S_0       S_1, P_0 V_0       S_2, P_1 V_1       ...       P V          products, which run by themselves
                    P_0               P_1               P_2    ...                    softmax

All warps go round the same tiles and blocks, the last block of a tile first, each with its own count of blocks `done`:
block number d is in stage d % STAGES, and it is that stage's use number d // STAGES, whose parity waits are told.  A
stage is full once every copying thread's bytes are there, and free once both sides have waited for the products that
read it.

Shape suffixes:  M lines of a tile    D head_dim    N keys of a block    B stages
"""

# To the type checker a constant of a kernel is no number, and a layout no constant.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAssignmentType=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from . import online

__all__ = ["attend_blocks", "copy_blocks", "make_ring"]

capped = gluon.jit(online.capped.fn)


@gluon.jit
def make_ring(
    dtype: gl.constexpr, D: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, COPY_WARPS: gl.constexpr
):
    """Give the ring of stages, which all are free, as all warps take it: keys, values, and who waits for which."""
    wide: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, D], dtype)
    k_BND = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, D], wide)
    v_BND = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, D], wide)
    k_full_B = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_free_B = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full_B = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_free_B = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full_B.index(stage), count=32 * COPY_WARPS)
        mbarrier.init(v_full_B.index(stage), count=32 * COPY_WARPS)
        mbarrier.init(k_free_B.index(stage), count=2)
        mbarrier.init(v_free_B.index(stage), count=2)
    return k_BND, v_BND, k_full_B, k_free_B, v_full_B, v_free_B


@gluon.jit
def copy_blocks(
    heads,
    slots_L,
    start,
    end,
    blocks,
    ring,
    done,
    ENTRY: gl.constexpr,
    D: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    COPY_WARPS: gl.constexpr,
):
    """Copy a head's keys and values [start, end) of a row, in so many blocks; returns `done` behind them.

    heads: the head's key of slot 0.  Nothing behind the last key is read: it is read again.
    """
    k_BND, v_BND, k_full_B, k_free_B, v_full_B, v_free_B = ring
    ACROSS: gl.constexpr = D // 8  # threads that copy one key, 16 bytes each
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 // ACROSS, ACROSS], [COPY_WARPS, 1], [1, 0])
    line_N = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, layout))
    dims = gl.arange(0, D, layout=gl.SliceLayout(0, layout))
    block = start + (blocks - 1) * BLOCK_N
    slots_N = gl.load(slots_L + gl.minimum(block + line_N, end - 1))
    for _ in range(blocks):
        keys = heads + dims[None, :] + (slots_N.to(gl.int64) * ENTRY)[:, None]
        block = gl.maximum(block - BLOCK_N, start)
        slots_N = gl.load(slots_L + gl.minimum(block + line_N, end - 1))  # the next ones
        stage = done % STAGES
        phase = done // STAGES & 1
        mbarrier.wait(k_free_B.index(stage), phase ^ 1)
        async_copy.async_copy_global_to_shared(k_BND.index(stage), keys)
        async_copy.mbarrier_arrive(k_full_B.index(stage), increment_count=False)
        mbarrier.wait(v_free_B.index(stage), phase ^ 1)
        async_copy.async_copy_global_to_shared(v_BND.index(stage), keys + D)
        async_copy.mbarrier_arrive(v_full_B.index(stage), increment_count=False)
        done += 1
    return done


@gluon.jit
def weigh(scores, total, top, SCALE: gl.constexpr, SOFT_CAP: gl.constexpr):
    """Take `capped` products [M, N] into an online softmax, as online.softmax_step does."""
    factor: gl.constexpr = 1.0 if SOFT_CAP > 0 else SCALE * 1.4426950408889634
    new_top = gl.maximum(top, gl.max(scores, 1) * factor)
    weights = gl.exp2(scores * factor - new_top[:, None])
    fade = gl.exp2(top - new_top)
    return weights, total * fade + gl.sum(weights, 1), new_top, fade


@gluon.jit
def score_masked(q_MD, ring, stage, begin, limits, SCALE: gl.constexpr, SOFT_CAP: gl.constexpr, BLOCK_N: gl.constexpr):
    """Score the keys from `begin` on that are in a stage; a line sees those below its limit."""
    scored: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    nothing = gl.zeros([64, BLOCK_N], gl.float32, scored)
    column = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, scored))
    fence_async_shared()
    scores = warpgroup_mma(q_MD, ring[0].index(stage).permute((1, 0)), nothing, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(0, deps=[scores])
    mbarrier.arrive(ring[3].index(stage))
    return gl.where(column[None, :] < limits - begin, capped(scores, SCALE, SOFT_CAP), float("-inf"))


@gluon.jit
def add_values(result, weights, ring, stage, phase):
    """Add the weighed values of a stage, and wait until that is done."""
    mbarrier.wait(ring[4].index(stage), phase)
    fence_async_shared()
    result = warpgroup_mma(weights, ring[1].index(stage), result, is_async=True)
    result = warpgroup_mma_wait(0, deps=[result])
    mbarrier.arrive(ring[5].index(stage))
    return result


@gluon.jit
def attend_blocks(
    q_MD,
    ring,
    done,
    start,
    limits,
    masked,
    blocks,
    SCALE: gl.constexpr,
    SOFT_CAP: gl.constexpr,
    D: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Attend 64 lines to so many blocks of keys from `start` on, by four warps.

    A line sees the keys below its limit, which is [64, 1] or one for all; of the last `masked` blocks, one or more, not
    all lines see all.
    Returns results [64, D] that are still to be divided by their totals [64], those, their tops [64], and `done` behind
    the blocks.
    """
    k_BND, v_BND, k_full_B, k_free_B, v_full_B, v_free_B = ring
    dtype: gl.constexpr = k_BND.dtype
    scored: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    summed: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    weighed: gl.constexpr = gl.DotOperandLayout(0, summed, 2)
    by_line: gl.constexpr = gl.SliceLayout(1, scored)
    of_result: gl.constexpr = gl.SliceLayout(1, summed)
    nothing = gl.zeros([64, BLOCK_N], gl.float32, scored)

    stage = done % STAGES
    phase = done // STAGES & 1
    mbarrier.wait(k_full_B.index(stage), phase)
    begin = start + (blocks - 1) * BLOCK_N
    scores = score_masked(q_MD, ring, stage, begin, limits, SCALE, SOFT_CAP, BLOCK_N)
    top = gl.full([64], -1e30, gl.float32, by_line)
    total = gl.zeros([64], gl.float32, by_line)
    weights, total, top, _ = weigh(scores, total, top, SCALE, SOFT_CAP)
    weights = gl.convert_layout(weights.to(dtype), weighed)
    result = gl.zeros([64, D], gl.float32, summed)
    held, held_phase = stage, phase
    done += 1
    stage = done % STAGES
    phase = done // STAGES & 1
    mbarrier.wait(k_full_B.index(stage), phase, pred=blocks > 1)

    for block in range(1, masked):  # seldom any: one thing after the other
        result = add_values(result, weights, ring, held, held_phase)
        begin -= BLOCK_N
        scores = score_masked(q_MD, ring, stage, begin, limits, SCALE, SOFT_CAP, BLOCK_N)
        weights, total, top, fade = weigh(scores, total, top, SCALE, SOFT_CAP)
        weights = gl.convert_layout(weights.to(dtype), weighed)
        result = result * gl.convert_layout(fade, of_result)[:, None]
        held, held_phase = stage, phase
        done += 1
        stage = done % STAGES
        phase = done // STAGES & 1
        mbarrier.wait(k_full_B.index(stage), phase, pred=block + 1 < blocks)

    for block in range(masked, blocks):
        fence_async_shared()
        scores = warpgroup_mma(q_MD, k_BND.index(stage).permute((1, 0)), nothing, use_acc=False, is_async=True)
        mbarrier.wait(v_full_B.index(held), held_phase)
        fence_async_shared()
        result = warpgroup_mma(weights, v_BND.index(held), result, is_async=True)
        scores = warpgroup_mma_wait(1, deps=[scores])
        mbarrier.arrive(k_free_B.index(stage))
        scores = capped(scores, SCALE, SOFT_CAP)
        fresh, total, top, fade = weigh(scores, total, top, SCALE, SOFT_CAP)
        fresh = gl.convert_layout(fresh.to(dtype), weighed)
        # The wait for the next keys, by its branch, keeps the compiler from moving the wait for products ahead of
        # the softmax that is to run beside them; and that one is told of the weights lest they move behind it.
        freed = held
        held, held_phase = stage, phase
        done += 1
        stage = done % STAGES
        phase = done // STAGES & 1
        mbarrier.wait(k_full_B.index(stage), phase, pred=block + 1 < blocks)
        result, weights, fresh, total = warpgroup_mma_wait(0, deps=[result, weights, fresh, total])
        mbarrier.arrive(v_free_B.index(freed))
        result = result * gl.convert_layout(fade, of_result)[:, None]
        weights = fresh

    result = add_values(result, weights, ring, held, held_phase)
    return result, total, top, done
