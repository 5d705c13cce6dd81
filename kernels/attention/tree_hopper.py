"""Attention over shared prefixes on Hopper: warps that copy beside warps that multiply, in Gluon.

What tree.py's kernel does with tiles of 128 lines, where a key is read so seldom that products are what takes the time.
Four warps gather keys and values by their slots into a ring of stages in shared memory.  Two times four warps take 64
lines of the tile each, at their own pace, so that one's softmax runs beside the other's products; and beside its own:
each has the values' products of one block under way while it takes the next block's scores.  After FlashAttention-3
(Shah et al. 2024).

    gather     K_0 V_0 K_1 V_1 K_2 V_2 ...          each into its stage as soon as both others have done with it
    attend     S_0       S_1, P_0 V_0       S_2, P_1 V_1       ...       P V          products, which run by themselves
                    P_0               P_1               P_2    ...                    softmax

Shape suffixes:  R rows    I items    M lines of a tile    P parts of rows    H query heads    K key heads
                 G = H / K    D head_dim    N keys of a block    B stages
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
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from . import online

__all__ = ["specialised_tiles"]

capped = gluon.jit(online.capped.fn)


@gluon.jit
def find_item(words_W, work, R, BLOCK_N: gl.constexpr, KV_HEADS: gl.constexpr):
    """Find an item's words, its keys [start, end), and how many blocks these are: at least one, for all warps alike."""
    item = words_W + 4 + 3 * R + work // KV_HEADS * 8
    start, end = gl.load(item + 1), gl.load(item + 2)
    return item, start, end, gl.maximum((end - start + BLOCK_N - 1) // BLOCK_N, 1)


@gluon.jit
def gather(
    entries_SE,
    table_RL,
    words_W,
    ring,
    R,
    table_stride,
    KV_HEADS: gl.constexpr,
    D: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    COPY_WARPS: gl.constexpr,
):
    """Copy the keys and values of every block of every item of this program, the last block of an item first."""
    k_BND, v_BND, k_full_B, k_free_B, v_full_B, v_free_B = ring
    ENTRY: gl.constexpr = KV_HEADS * 2 * D
    ACROSS: gl.constexpr = D // 8  # threads that copy one key, 16 bytes each
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 // ACROSS, ACROSS], [COPY_WARPS, 1], [1, 0])
    line_N = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, layout))
    dims = gl.arange(0, D, layout=gl.SliceLayout(0, layout))
    works = gl.load(words_W) * KV_HEADS
    done = 0
    for work in range(gl.program_id(0), works, gl.num_programs(0)):
        item, start, end, blocks = find_item(words_W, work, R, BLOCK_N, KV_HEADS)
        slots_L = table_RL + gl.load(item).to(gl.int64) * table_stride
        heads = entries_SE + work % KV_HEADS * (2 * D) + dims[None, :]
        block = start + (blocks - 1) * BLOCK_N
        slots_N = gl.load(slots_L + gl.minimum(block + line_N, end - 1))
        for _ in range(blocks):
            keys = heads + (slots_N.to(gl.int64) * ENTRY)[:, None]
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
    async_copy.wait_group(0)


@gluon.jit
def weigh(scores, total, top, SCALE: gl.constexpr, SOFT_CAP: gl.constexpr):
    """Take `capped` products [M, N] into an online softmax, as online.softmax_step does."""
    factor: gl.constexpr = 1.0 if SOFT_CAP > 0 else SCALE * 1.4426950408889634
    new_top = gl.maximum(top, gl.max(scores, 1) * factor)
    weights = gl.exp2(scores * factor - new_top[:, None])
    fade = gl.exp2(top - new_top)
    return weights, total * fade + gl.sum(weights, 1), new_top, fade


@gluon.jit
def attend(
    tensors,
    q_MD,
    ring,
    R,
    q_stride,
    SIDE: gl.constexpr,
    SCALE: gl.constexpr,
    SOFT_CAP: gl.constexpr,
    KV_HEADS: gl.constexpr,
    G: gl.constexpr,
    D: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Attend lines [64 SIDE, 64 SIDE + 64) of every item of this program."""
    q_RHD, words_W, parts_PHD, lse_PH = tensors
    k_BND, v_BND, k_full_B, k_free_B, v_full_B, v_free_B = ring
    HEADS: gl.constexpr = KV_HEADS * G
    ACROSS: gl.constexpr = D // 8
    dtype: gl.constexpr = k_BND.dtype
    loaded: gl.constexpr = gl.BlockedLayout([1, 8], [32 // ACROSS, ACROSS], [4, 1], [1, 0])
    scored: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    summed: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    weighed: gl.constexpr = gl.DotOperandLayout(0, summed, 2)
    by_line: gl.constexpr = gl.SliceLayout(1, scored)
    of_result: gl.constexpr = gl.SliceLayout(1, summed)
    column = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, scored))
    nothing = gl.zeros([64, BLOCK_N], gl.float32, scored)
    works = gl.load(words_W) * KV_HEADS
    done = 0
    for work in range(gl.program_id(0), works, gl.num_programs(0)):
        head = work % KV_HEADS
        item, start, end, blocks = find_item(words_W, work, R, BLOCK_N, KV_HEADS)
        members = words_W + gl.load(item + 3)
        lines = gl.load(item + 4) * G
        line = SIDE * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, loaded))
        row = gl.load(members + line // G * 2, mask=line < lines, other=0)
        dims = gl.arange(0, D, layout=gl.SliceLayout(0, loaded))
        heads_at = (head * G + line % G)[:, None] * D + dims[None, :]
        q_at = q_RHD + (row.to(gl.int64) * q_stride)[:, None] + heads_at
        q_MD.store(gl.load(q_at, mask=(line < lines)[:, None], other=0.0))
        fence_async_shared()

        # The last block of the prefix, which may be shorter than the others.
        stage = done % STAGES
        phase = done // STAGES & 1
        mbarrier.wait(k_full_B.index(stage), phase)
        fence_async_shared()
        scores = warpgroup_mma(q_MD, k_BND.index(stage).permute((1, 0)), nothing, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, deps=[scores])
        mbarrier.arrive(k_free_B.index(stage))
        scores = capped(scores, SCALE, SOFT_CAP)
        begin = start + (blocks - 1) * BLOCK_N
        scores = gl.where((begin + column < end)[None, :], scores, float("-inf"))
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

        for block in range(1, blocks):
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

        mbarrier.wait(v_full_B.index(held), held_phase)
        fence_async_shared()
        result = warpgroup_mma(weights, v_BND.index(held), result, is_async=True)
        result = warpgroup_mma_wait(0, deps=[result])
        mbarrier.arrive(v_free_B.index(held))

        line = SIDE * 64 + gl.arange(0, 64, layout=by_line)
        place = gl.load(members + line // G * 2 + 1, mask=line < lines, other=0) + gl.load(item + 5)
        gl.store(lse_PH + place * HEADS + head * G + line % G, top + gl.log2(total), mask=line < lines)
        result = result / gl.convert_layout(total, of_result)[:, None]
        line = SIDE * 64 + gl.arange(0, 64, layout=of_result)
        place = gl.load(members + line // G * 2 + 1, mask=line < lines, other=0) + gl.load(item + 5)
        dims = gl.arange(0, D, layout=gl.SliceLayout(0, summed))
        result_at = (place * (HEADS * D) + (head * G + line % G) * D)[:, None] + dims[None, :]
        gl.store(parts_PHD + result_at, result, mask=(line < lines)[:, None])


# The words come out of one packed transfer and start anywhere.
@gluon.jit(do_not_specialize=["R"], do_not_specialize_on_alignment=["words_W"])
def specialised_tiles(
    q_RHD,
    entries_SE,
    table_RL,
    words_W,
    parts_PHD,
    lse_PH,
    R,
    q_stride,
    table_stride,
    SCALE: gl.constexpr,
    SOFT_CAP: gl.constexpr,
    KV_HEADS: gl.constexpr,
    G: gl.constexpr,
    D: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    COPY_WARPS: gl.constexpr,
    COPY_REGISTERS: gl.constexpr,
    REGISTERS: gl.constexpr,
    DEPENDENT: gl.constexpr,
):
    """Attend the rows of items to their keys, as tree_tiles does with BLOCK_M 128.  Grid: any; four warps are told.

    Queries and the pool have one type of two bytes.  D: 64 or 128.
    Every item has a key at least.  All warps go round the same items and blocks, each with its own count of blocks
    `done`: block number d is in stage d % STAGES, and it is that stage's use number d // STAGES, whose parity waits are
    told.  A stage is full once every copying thread's bytes are there, and free once both sides have waited for the
    products that read it.
    """
    dtype: gl.constexpr = q_RHD.dtype.element_ty
    wide: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, D], dtype)
    q_0 = gl.allocate_shared_memory(dtype, [64, D], wide)
    q_1 = gl.allocate_shared_memory(dtype, [64, D], wide)
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
    ring = (k_BND, v_BND, k_full_B, k_free_B, v_full_B, v_free_B)
    tensors = (q_RHD, words_W, parts_PHD, lse_PH)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    gl.warp_specialize(
        [
            (attend, (tensors, q_0, ring, R, q_stride, 0, SCALE, SOFT_CAP, KV_HEADS, G, D, BLOCK_N, STAGES)),
            (attend, (tensors, q_1, ring, R, q_stride, 1, SCALE, SOFT_CAP, KV_HEADS, G, D, BLOCK_N, STAGES)),
            (gather, (entries_SE, table_RL, words_W, ring, R, table_stride, KV_HEADS, D, BLOCK_N, STAGES, COPY_WARPS)),
        ],
        [4, COPY_WARPS],
        [REGISTERS, COPY_REGISTERS],
    )  # fmt: skip
