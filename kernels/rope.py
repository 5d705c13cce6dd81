"""Rotary position embedding, applied to interleaved pairs, and what surrounds it in a layer.

Shape suffixes:  T tokens    X heads of a token's row of qkv, H query heads + K key heads + K value heads
                 D head_dim    P = D / 2 rotary pairs    L context    S slots    E = K * 2 * D, a pool entry
"""

from __future__ import annotations

import torch
from torch import Tensor

from .kv_pool import store_
from .norm import rms_norm

__all__ = ["rotate_", "rotate_and_store_"]


def rotate_(x_THD: Tensor, rotations_TP: Tensor) -> None:
    """Rotate every pair (2p, 2p + 1) of each head in place by its token's angle.

    x_THD: [T, heads, head_dim], head_dim contiguous.  rotations_TP: complex64 [T, head_dim / 2].  A pair is read as one
    complex number, so the rotation is a single multiplication; in half precision it is done in float32.
    """
    pairs = x_THD if x_THD.dtype == torch.float32 else x_THD.float()
    pairs_THP = torch.view_as_complex(pairs.unflatten(-1, (-1, 2)))
    pairs_THP.mul_(rotations_TP.unsqueeze(1))
    if pairs is not x_THD:
        x_THD.copy_(pairs)


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
    *,
    invariant: bool = False,
) -> None:
    """Norm queries and keys if there are weights for it, rotate both, and store keys and values in a layer's pool.

    qkv_TXD: [T, heads + 2 * kv_heads, head_dim], head_dim contiguous; its queries and keys hold the result.
    rotations_LP: complex64, one row a position.  positions_T, slots_T: int64.  entries_SE: `KVPool.entries[layer]`; in
    one of float8 what is out of its range saturates.
    q_norm_D, k_norm_D: weights of the RMSNorm of each head, both or neither, ordered as the head's interleaved pairs.
    invariant: a GPU cuts the work alike for any number of tokens, so that a token's bits do not depend on it.
    """
    if qkv_TXD.is_cuda:
        from .fused import rope

        tuning = rope.Tuning(few_tokens=0) if invariant else None
        rope.rotate_and_store_(
            qkv_TXD,
            rotations_LP,
            positions_T,
            slots_T,
            entries_SE,
            heads,
            kv_heads,
            q_norm_D,
            k_norm_D,
            epsilon,
            tuning,
        )
        return
    H, K = heads, kv_heads
    if q_norm_D is not None and k_norm_D is not None:
        qkv_TXD[:, :H].copy_(rms_norm(qkv_TXD[:, :H], q_norm_D, epsilon))
        qkv_TXD[:, H : H + K].copy_(rms_norm(qkv_TXD[:, H : H + K], k_norm_D, epsilon))
    rotate_(qkv_TXD[:, : H + K], rotations_LP.index_select(0, positions_T))
    # A row of qkv holds all keys and then all values, an entry each head's key and then its value.
    by_kind_S2KD = entries_SE.view(-1, K, 2, qkv_TXD.shape[2]).transpose(1, 2)
    store_(by_kind_S2KD, slots_T, qkv_TXD[:, H:].unflatten(1, (2, K)))
