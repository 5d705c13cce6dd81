"""Attention over shared prefixes on Hopper: warps that copy beside warps that multiply, as hopper_blocks.py has them.

What tree.py's kernel does with tiles of 128 lines, where a key is read so seldom that products are what takes the time.

Shape suffixes:  R rows    I items    M lines of a tile    P parts of rows    H query heads    K key heads
                 G = H / K    D head_dim
"""

# To the type checker a constant of a kernel is no number, and a layout no constant.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAssignmentType=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, fence_async_shared
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .hopper_blocks import attend_blocks, copy_blocks, make_ring

__all__ = ["specialised_tiles"]


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
    ENTRY: gl.constexpr = KV_HEADS * 2 * D
    works = gl.load(words_W) * KV_HEADS
    done = 0
    for work in range(gl.program_id(0), works, gl.num_programs(0)):
        item, start, end, blocks = find_item(words_W, work, R, BLOCK_N, KV_HEADS)
        slots_L = table_RL + gl.load(item).to(gl.int64) * table_stride
        heads = entries_SE + work % KV_HEADS * (2 * D)
        done = copy_blocks(heads, slots_L, start, end, blocks, ring, done, ENTRY, D, BLOCK_N, STAGES, COPY_WARPS)
    async_copy.wait_group(0)


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
    HEADS: gl.constexpr = KV_HEADS * G
    ACROSS: gl.constexpr = D // 8
    loaded: gl.constexpr = gl.BlockedLayout([1, 8], [32 // ACROSS, ACROSS], [4, 1], [1, 0])
    scored: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    summed: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    by_line: gl.constexpr = gl.SliceLayout(1, scored)
    of_result: gl.constexpr = gl.SliceLayout(1, summed)
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

        result, total, top, done = attend_blocks(
            q_MD, ring, done, start, end, 1, blocks, SCALE, SOFT_CAP, D, BLOCK_N, STAGES
        )
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
    Every item has a key at least.
    """
    dtype: gl.constexpr = q_RHD.dtype.element_ty
    wide: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, D], dtype)
    q_0 = gl.allocate_shared_memory(dtype, [64, D], wide)
    q_1 = gl.allocate_shared_memory(dtype, [64, D], wide)
    ring = make_ring(dtype, D, BLOCK_N, STAGES, COPY_WARPS)
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
