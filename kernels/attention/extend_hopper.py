"""Paged extend on Hopper: warps that copy beside warps that multiply, as hopper_blocks.py has them.

What extend.py's kernel does with tiles of 128 lines.  Programs stay, one a multiprocessor, and take the next tile when
they have done with one, as causal tiles differ in length; so a tile's first keys are copied while the one before is
still attended to.  The copying warps take tiles and tell the others, who may be one behind.

Shape suffixes:  T new tokens    X parts of tiles    P those that are one of several    M lines of a tile
                 H query heads     K key heads    G = H / K    D head_dim    N keys of a block
"""

# To the type checker a constant of a kernel is no number, and a layout no constant.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAssignmentType=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, fence_async_shared, mbarrier

from .hopper_blocks import attend_blocks, copy_blocks, make_ring

__all__ = ["specialised_extends"]


@gluon.jit
def find_keys(tile, BLOCK_N: gl.constexpr):
    """Find a part's keys [start, end), and how many blocks these are: at least one, for all warps alike."""
    stop = gl.load(tile + 3) + gl.load(tile + 2) - 1
    part, parts = gl.load(tile + 4), gl.load(tile + 5)
    size = ((stop + parts - 1) // parts + BLOCK_N - 1) // BLOCK_N * BLOCK_N
    start = part * size
    end = gl.minimum(start + size, stop)
    return start, end, gl.maximum((end - start + BLOCK_N - 1) // BLOCK_N, 1)


@gluon.jit
def tell(work, turn, news, COPY_WARPS: gl.constexpr):
    """Tell both sides what they are to attend to next: -1, nothing more."""
    works_2, told_2, heard_2 = news
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [COPY_WARPS], [0])
    mbarrier.wait(heard_2.index(turn & 1), turn // 2 & 1 ^ 1)
    works_2.index(turn & 1).store(gl.full([1], work, gl.int32, layout))
    mbarrier.arrive(told_2.index(turn & 1))


@gluon.jit
def hear(turn, news):
    """Hear what `tell` told."""
    works_2, told_2, heard_2 = news
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    mbarrier.wait(told_2.index(turn & 1), turn // 2 & 1)
    work = gl.max(works_2.index(turn & 1).load(layout), 0)
    mbarrier.arrive(heard_2.index(turn & 1))
    return work


@gluon.jit
def gather(
    entries_SE,
    table_RL,
    tiles_X8,
    counts_2,
    ring,
    news,
    works,
    table_stride,
    KV_HEADS: gl.constexpr,
    D: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    COPY_WARPS: gl.constexpr,
):
    """Take tiles as long as there are any, and copy their keys and values."""
    ENTRY: gl.constexpr = KV_HEADS * 2 * D
    work = gl.program_id(0)
    turn = 0
    done = 0
    while gl.load(tiles_X8 + work // KV_HEADS * 8 + 2, mask=work < works, other=0) > 0:
        tell(work, turn, news, COPY_WARPS)
        turn += 1
        tile = tiles_X8 + work // KV_HEADS * 8
        start, end, blocks = find_keys(tile, BLOCK_N)
        slots_L = table_RL + gl.load(tile).to(gl.int64) * table_stride
        heads = entries_SE + work % KV_HEADS * (2 * D)
        done = copy_blocks(heads, slots_L, start, end, blocks, ring, done, ENTRY, D, BLOCK_N, STAGES, COPY_WARPS)
        work = gl.num_programs(0) + gl.atomic_add(counts_2, 1)
    tell(-1, turn, news, COPY_WARPS)
    if gl.atomic_add(counts_2 + 1, 1) == gl.num_programs(0) - 1:  # the last one to count: as it was for the next launch
        gl.store(counts_2, 0)
        gl.store(counts_2 + 1, 0)
    async_copy.wait_group(0)


@gluon.jit
def find_lines(token, queries, head, SIDE: gl.constexpr, G: gl.constexpr, D: gl.constexpr, layout: gl.constexpr):
    """Find lines' tokens [64, 1], where their heads [64, D] lie within these, and which lines are a query's [64, 1]."""
    line = SIDE * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    dims = gl.arange(0, D, layout=gl.SliceLayout(0, layout))
    heads_at = (head * G + line % G)[:, None] * D + dims[None, :]
    return (token + line // G).to(gl.int64)[:, None], heads_at, (line < queries * G)[:, None]


@gluon.jit
def attend(
    tensors,
    q_MD,
    ring,
    news,
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
    """Attend lines [64 SIDE, 64 SIDE + 64) of every tile that this program takes."""
    q_THD, tiles_X8, out_THD, parts_PKMD, lse_PKM = tensors
    ACROSS: gl.constexpr = D // 8
    loaded: gl.constexpr = gl.BlockedLayout([1, 8], [32 // ACROSS, ACROSS], [4, 1], [1, 0])
    scored: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    summed: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    by_line: gl.constexpr = gl.SliceLayout(1, scored)
    of_result: gl.constexpr = gl.SliceLayout(1, summed)
    turn = 0
    done = 0
    work = hear(turn, news)
    while work >= 0:
        head = work % KV_HEADS
        tile = tiles_X8 + work // KV_HEADS * 8
        token, queries, first_limit = gl.load(tile + 1), gl.load(tile + 2), gl.load(tile + 3)
        start, end, blocks = find_keys(tile, BLOCK_N)
        tokens, heads_at, live = find_lines(token, queries, head, SIDE, G, D, loaded)
        q_MD.store(gl.load(q_THD + tokens * q_stride + heads_at, mask=live, other=0.0))
        fence_async_shared()

        line = SIDE * 64 + gl.arange(0, 64, layout=by_line)
        # Lines without a query repeat the last one's limit, so that no softmax is empty.
        limits = first_limit + gl.minimum(line // G, queries - 1)
        seen_by_all = gl.maximum(gl.minimum(first_limit, end) - start, 0) // BLOCK_N
        masked = gl.maximum(blocks - seen_by_all, 1)
        result, total, top, done = attend_blocks(
            q_MD, ring, done, start, limits[:, None], masked, blocks, SCALE, SOFT_CAP, D, BLOCK_N, STAGES
        )
        # A part may have no keys, and a line of it none that it sees: they weigh nothing.
        empty = total == 0
        total = gl.where(empty, 1.0, total)
        result = result / gl.convert_layout(total, of_result)[:, None]
        # Read again: registers were short.
        token, queries = gl.load(tile + 1), gl.load(tile + 2)
        part, parts, first_part = gl.load(tile + 4), gl.load(tile + 5), gl.load(tile + 6)
        if parts > 1:
            place = ((first_part + part) * KV_HEADS + head).to(gl.int64) * 128
            gl.store(
                lse_PKM + place + line, gl.where(empty, float("-inf"), top + gl.log2(total)), mask=line < queries * G
            )
            lines = SIDE * 64 + gl.arange(0, 64, layout=of_result)
            dims = gl.arange(0, D, layout=gl.SliceLayout(0, summed))
            parts_at = parts_PKMD + place * D + lines[:, None] * D + dims[None, :]
            gl.store(parts_at, result, mask=(lines < queries * G)[:, None])
        else:
            # Through the queries' place, which are done with: what a thread stores is then 16 bytes side by side.
            q_MD.store(result.to(q_MD.dtype))
            tokens, heads_at, live = find_lines(token, queries, head, SIDE, G, D, loaded)
            gl.store(out_THD + tokens * (KV_HEADS * G * D) + heads_at, q_MD.load(loaded), mask=live)
        turn += 1
        work = hear(turn, news)


@gluon.jit(do_not_specialize=["works"])
def specialised_extends(
    q_THD,
    entries_SE,
    table_RL,
    tiles_X8,
    out_THD,
    parts_PKMD,
    lse_PKM,
    counts_2,
    works,
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
):
    """Attend tiles of new tokens, as extend_tiles does with BLOCK_M 128 and FEW 1.  Grid: any; four warps are told.

    Queries, results and the pool have one type of two bytes.  D: 64 or 128.  No window, no groups.
    works: X * KV_HEADS; tiles of zeros are behind the others.  counts_2: int32 zeros, left as zeros: tiles taken behind
    each program's first, and programs that have done with taking.
    """
    dtype: gl.constexpr = q_THD.dtype.element_ty
    wide: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, D], dtype)
    q_0 = gl.allocate_shared_memory(dtype, [64, D], wide)
    q_1 = gl.allocate_shared_memory(dtype, [64, D], wide)
    ring = make_ring(dtype, D, BLOCK_N, STAGES, COPY_WARPS)
    works_2 = gl.allocate_shared_memory(gl.int32, [2, 1], gl.SwizzledSharedLayout(1, 1, 1, order=[0]))
    told_2 = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    heard_2 = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for place in gl.static_range(2):
        mbarrier.init(told_2.index(place), count=1)
        mbarrier.init(heard_2.index(place), count=2)
    news = (works_2, told_2, heard_2)
    tensors = (q_THD, tiles_X8, out_THD, parts_PKMD, lse_PKM)
    gl.warp_specialize(
        [
            (attend, (tensors, q_0, ring, news, q_stride, 0, SCALE, SOFT_CAP, KV_HEADS, G, D, BLOCK_N, STAGES)),
            (attend, (tensors, q_1, ring, news, q_stride, 1, SCALE, SOFT_CAP, KV_HEADS, G, D, BLOCK_N, STAGES)),
            (
                gather,
                (
                    entries_SE, table_RL, tiles_X8, counts_2, ring, news, works, table_stride,
                    KV_HEADS, D, BLOCK_N, STAGES, COPY_WARPS,
                ),
            ),
        ],
        [4, COPY_WARPS],
        [REGISTERS, COPY_REGISTERS],
    )  # fmt: skip
