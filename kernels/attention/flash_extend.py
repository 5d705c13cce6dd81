"""Extend by a library's attention: gather the rows' keys and values side by side, then call torch's own kernels.

Two of them.  FlashAttention takes rows of any lengths over cached prefixes in one call.  cuDNN's is the fastest on a
Hopper GPU but plans for every shape it meets, so it takes whole new prompts alone, padded to few lengths.

Shape suffixes:  T new tokens    R rows that extend    L their keys, one row behind the other    H query heads
                 K key heads     D head_dim            E = K * 2 * D, a token's entry in the pool
"""

# A launch takes more, and other types, than its kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from .interface import AttentionBatch

__all__ = ["CUDNN_STEP", "FlashPlan", "can_cudnn", "can_flash", "cudnn_extend", "flash_extend", "gather", "plan_flash"]

# cuDNN sees rows padded to a multiple of this many tokens: at most 64 plans up to 16,384.
CUDNN_STEP = 256


@dataclass(frozen=True, slots=True)
class FlashPlan:
    """R rows that extend, each given room for `lengths`, rounded up to CUDNN_STEP if `whole`: prompts without a prefix.

    starts_R1, key_starts_R1: int32 [R + 1] on the device, where queries and keys of a row begin.
    """

    batch: AttentionBatch
    starts_R1: Tensor
    key_starts_R1: Tensor
    queries: list[int]
    rooms: list[int]
    whole: bool


def can_flash(dtype: torch.dtype, head_dim: int, soft_cap: float) -> bool:
    """Tell whether FlashAttention computes this."""
    return dtype in {torch.float16, torch.bfloat16} and head_dim % 8 == 0 and head_dim <= 256 and not soft_cap


def can_cudnn(batch: AttentionBatch, head_dim: int, windows: tuple[int, ...], shortest: int = 2048) -> bool:
    """Tell whether cuDNN computes this, and faster: whole prompts, none shorter than `shortest` tokens, no windows."""
    queries = batch.query_lengths[: batch.extends]
    return (
        head_dim <= 128
        and not any(windows)
        and queries == batch.lengths[: batch.extends]
        and min(queries, default=0) >= shortest
    )


def plan_flash(batch: AttentionBatch, *, whole: bool) -> FlashPlan:
    """Work out where the extending rows' keys go."""
    assert batch.lengths_R is not None
    assert batch.starts_R1 is not None
    extends, step = batch.extends, CUDNN_STEP if whole else 1
    rooms = [-(-length // step) * step for length in batch.lengths[:extends]]
    lengths_R = batch.lengths_R[:extends]
    if whole:
        lengths_R = (lengths_R + (step - 1)) // step * step
    key_starts_R1 = functional.pad(lengths_R.cumsum(0, dtype=torch.int32), (1, 0))
    return FlashPlan(batch, batch.starts_R1[: extends + 1], key_starts_R1, batch.query_lengths[:extends], rooms, whole)


def gather(entries_SE: Tensor, plan: FlashPlan, dtype: torch.dtype) -> Tensor:
    """Copy the rows' entries from the pool, one row behind the other, to `dtype`: [L, E].

    What a row has more room than keys for repeats its last key: it is masked, but a weight of zero hides no NaN.
    """
    batch, width = plan.batch, entries_SE.shape[1]
    gathered_LE = torch.empty(sum(plan.rooms), width, dtype=dtype, device=entries_SE.device)
    block_n = max(1, 16384 // triton.next_power_of_2(width))
    gather_entries[(triton.cdiv(max(plan.rooms), block_n), len(plan.rooms))](
        entries_SE,
        batch.table_RL,
        batch.rows_R,
        batch.lengths_R,
        plan.key_starts_R1,
        gathered_LE,
        batch.table_RL.stride(0),
        HAS_ROWS=batch.rows_R is not None,
        ENTRY=width,
        BLOCK_E=triton.next_power_of_2(width),
        BLOCK_N=block_n,
        num_warps=8,
    )
    return gathered_LE


def flash_extend(
    q_THD: Tensor, entries_SE: Tensor, plan: FlashPlan, kv_heads: int, scale: float, window: int
) -> Tensor:
    """Attend the rows' queries by torch's FlashAttention; returns [T, H, D].  window: 0 for none."""
    k_LKD, v_LKD = gather(entries_SE, plan, q_THD.dtype).view(-1, kv_heads, 2, q_THD.shape[2]).unbind(2)
    # The public way to it, scaled_dot_product_attention, takes no rows of several lengths.
    out = torch.ops.aten._flash_attention_forward(  # noqa: SLF001
        q_THD,
        k_LKD,
        v_LKD,
        plan.starts_R1,
        plan.key_starts_R1,
        max(plan.queries),
        max(plan.rooms),
        0.0,
        True,  # the last query sees the last key, as here
        False,
        scale=scale,
        window_size_left=window - 1 if window else None,
        window_size_right=0 if window else None,
    )
    return out[0]


def cudnn_extend(
    q_THD: Tensor,
    entries_SE: Tensor,
    plan: FlashPlan,
    kv_heads: int,
    scale: float,
    out_THD: Tensor,
    fresh: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Attend the queries of whole prompts by cuDNN, neighbours of one length together; returns out_THD or in its place.

    fresh: the prompts' keys and values, [T, K, D] each.  They are gathered from the pool if they are not given, or if a
    row is padded: what stands behind it is another row's, and a weight of zero hides no NaN.
    """
    if fresh is None or plan.queries != plan.rooms:
        kv_LKD = gather(entries_SE, plan, q_THD.dtype).view(-1, kv_heads, 2, q_THD.shape[2]).unbind(2)
    else:
        kv_LKD = fresh
    token = key = row = 0
    while row < len(plan.queries):
        queries, room = plan.queries[row], plan.rooms[row]
        count = 1
        while queries == room and row + count < len(plan.queries) and plan.queries[row + count] == queries:
            count += 1
        q = q_THD[token : token + count * room]
        if len(q) < room:  # the last row: the step has no tokens left to stand in for padding
            q = functional.pad(q, (0, 0, 0, 0, 0, room - len(q)))
        kv = (part[key : key + count * room] for part in kv_LKD)
        q_RHND, k_RKND, v_RKND = (each.unflatten(0, (count, room)).transpose(1, 2) for each in (q, *kv))
        # The public way to it chooses a kernel by the shapes' looks, or by a context that costs more than the launch.
        out_RHND = torch.ops.aten._scaled_dot_product_cudnn_attention(  # noqa: SLF001
            q_RHND, k_RKND, v_RKND, None, False, 0.0, True, False, scale=scale
        )[0]
        result = out_RHND.transpose(1, 2)[:, :queries].flatten(0, 1)
        if len(result) == len(out_THD):  # all there is: a copy less
            return result
        out_THD[token : token + count * queries] = result
        token, key, row = token + count * queries, key + count * room, row + count
    return out_THD


@triton.jit(do_not_specialize_on_alignment=["rows_R", "lengths_R", "key_starts_R1"])
def gather_entries(
    entries_SE,
    table_RL,
    rows_R,
    lengths_R,
    key_starts_R1,
    gathered_LE,
    table_stride,
    HAS_ROWS: tl.constexpr,
    ENTRY: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Copy BLOCK_N keys of one row.  Grid: (blocks of the longest row, R)."""
    begin = tl.program_id(0) * BLOCK_N
    row = tl.program_id(1)
    start = tl.load(key_starts_R1 + row)
    room = tl.load(key_starts_R1 + row + 1) - start
    if begin >= room:
        return
    line = row
    if HAS_ROWS:
        line = tl.load(rows_R + row)
    columns = begin + tl.arange(0, BLOCK_N)
    last = tl.load(lengths_R + row) - 1
    slots = tl.load(table_RL + line.to(tl.int64) * table_stride + tl.minimum(columns, last)).to(tl.int64)
    within = tl.arange(0, BLOCK_E)
    inside = (columns < room)[:, None]
    if BLOCK_E != ENTRY:
        inside &= (within < ENTRY)[None, :]
    values = tl.load(entries_SE + slots[:, None] * ENTRY + within[None, :], mask=inside)
    places = (start + columns).to(tl.int64)
    tl.store(
        gathered_LE + places[:, None] * ENTRY + within[None, :], values.to(gathered_LE.dtype.element_ty), mask=inside
    )
