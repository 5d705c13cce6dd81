"""Norm of query and key heads, rotation and the write to the pool, in one kernel.

Shape suffixes:  T tokens    X heads of a token's row of qkv, H query heads + K key heads + K value heads
                 D head_dim    P = D / 2 rotary pairs    L context    S slots    E = K * 2 * D, a pool entry
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..early import launches_early
from ..kv_pool import FLOAT8

__all__ = ["Tuning", "rotate_and_store_"]


@dataclass(frozen=True, slots=True)
class Tuning:
    """How many heads a program takes, for a step of few tokens and of many, and by how many warps."""

    heads_of_few: int = 4
    heads_of_many: int = 8
    few_tokens: int = 256
    warps: int = 4


@triton.jit
def _rotate_and_store(
    qkv_ptr, rotations_ptr, positions_ptr, slots_ptr, entries_ptr, q_norm_ptr, k_norm_ptr,
    token_stride, head_stride, entry_stride, epsilon,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_D: tl.constexpr, NORM: tl.constexpr,
    FLOAT8_MAX: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_X + tl.arange(0, BLOCK_X)
    column = tl.arange(0, BLOCK_D)
    inside = (head < H + 2 * K)[:, None] & (column < D)[None, :]
    head_XD, column_XD = head[:, None], column[None, :]
    places = qkv_ptr + token * token_stride + head_XD * head_stride + column_XD
    position = tl.load(positions_ptr + token).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    rotation = tl.load(rotations_ptr + position * D + column, column < D, 0.0)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    x = tl.load(places, inside, 0.0)
    turned = x.to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(turned * turned, 1) / D + epsilon)
        q_norm = tl.load(q_norm_ptr + column, column < D, 0.0).to(tl.float32)
        k_norm = tl.load(k_norm_ptr + column, column < D, 0.0).to(tl.float32)
        turned = turned * scale[:, None] * tl.where(head_XD < H, q_norm[None, :], k_norm[None, :])
    cos, sin = tl.split(tl.reshape(rotation, [BLOCK_D // 2, 2]))
    even, odd = tl.split(tl.reshape(turned, [BLOCK_X, BLOCK_D // 2, 2]))
    first = even * cos[None, :] - odd * sin[None, :]
    second = even * sin[None, :] + odd * cos[None, :]
    turned = tl.reshape(tl.join(first, second), [BLOCK_X, BLOCK_D]).to(x.dtype)
    tl.store(places, turned, inside & (head_XD < H + K))
    # An entry of the pool:  for each head its key [0, D) and its value [D, 2 * D)
    is_value = head_XD >= H + K
    key_head = tl.where(is_value, head_XD - H - K, head_XD - H)
    offset = key_head * (2 * D) + tl.where(is_value, D, 0) + column_XD
    kept = tl.where(is_value, x, turned)
    if entries_ptr.dtype.element_ty == tl.float8e4nv:
        kept = kept.to(tl.float32)
        # Comparisons rather than a minimum, so that NaN stays NaN.
        kept = tl.where(kept > FLOAT8_MAX, FLOAT8_MAX, tl.where(kept < -FLOAT8_MAX, -FLOAT8_MAX, kept))
    kept = kept.to(entries_ptr.dtype.element_ty)
    tl.store(entries_ptr + slot * entry_stride + offset, kept, inside & (head_XD >= H))


def rotate_and_store_(
    qkv_TXD: Tensor,
    rotations_LP: Tensor,
    positions_T: Tensor,
    slots_T: Tensor,
    entries_SE: Tensor,
    heads: int,
    kv_heads: int,
    q_norm_D: Tensor | None = None,
    k_norm_D: Tensor | None = None,
    epsilon: float = 0.0,
    tuning: Tuning | None = None,
) -> None:
    """Do what `kernels.rope.rotate_and_store_` promises, on a device."""
    tuning = tuning or Tuning()
    tokens, row_heads, head_dim = qkv_TXD.shape
    block = tuning.heads_of_few if tokens <= tuning.few_tokens else tuning.heads_of_many
    normed = q_norm_D is not None and k_norm_D is not None
    grid = (tokens, triton.cdiv(row_heads, block))
    early = launches_early(qkv_TXD.device, tokens)
    _rotate_and_store[grid](
        qkv_TXD, torch.view_as_real(rotations_LP), positions_T, slots_T, entries_SE,
        q_norm_D if normed else qkv_TXD, k_norm_D if normed else qkv_TXD,
        qkv_TXD.stride(0), qkv_TXD.stride(1), entries_SE.stride(0), epsilon,
        H=heads, K=kv_heads, D=head_dim, BLOCK_X=block, BLOCK_D=triton.next_power_of_2(head_dim), NORM=normed,
        FLOAT8_MAX=torch.finfo(FLOAT8).max,
        DEPENDENT=early, num_warps=tuning.warps, launch_pdl=early,  # pyright: ignore[reportCallIssue]: the launcher's
    )  # fmt: skip
