"""The kernels around a layer's products give what their formulas say, on the CPU, in Triton's interpreter and on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from callboard.kernels.kv_pool import KVPool
from callboard.kernels.rope import rotate_and_store_

CPU = torch.device("cpu")


def normed(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * weight


def turned(x_THD: Tensor, angles_TP: Tensor) -> Tensor:
    cos, sin = angles_TP.cos().unsqueeze(1), angles_TP.sin().unsqueeze(1)
    even, odd = x_THD[..., 0::2], x_THD[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("with_norm", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 8), (3, 3, 12)])
def test_queries_are_rotated_and_keys_and_values_stored(
    dtype: torch.dtype, tolerance: float, with_norm: bool, heads: int, kv_heads: int, head_dim: int
) -> None:
    torch.manual_seed(1)
    H, K, D, T = heads, kv_heads, head_dim, 5
    angles_LP = torch.randn(20, D // 2, dtype=torch.float64)
    rotations_LP = torch.polar(torch.ones_like(angles_LP), angles_LP).to(torch.complex64)
    positions_T, slots_T = torch.tensor([3, 0, 19, 3, 7]), torch.tensor([6, 2, 9, 0, 4])
    pool = KVPool(layers=1, slots=10, kv_heads=K, head_dim=D, dtype=dtype, device=CPU)
    qkv_TXD = torch.randn(T, H + 2 * K, D).to(dtype)
    weights = (torch.randn(D).to(dtype), torch.randn(D).to(dtype)) if with_norm else (None, None)
    wide = qkv_TXD.double()
    q_THD, k_TKD, v_TKD = wide[:, :H], wide[:, H : H + K], wide[:, H + K :]
    if weights[0] is not None and weights[1] is not None:
        q_THD, k_TKD = normed(q_THD, weights[0].double(), 1e-5), normed(k_TKD, weights[1].double(), 1e-5)
    q_THD, k_TKD = turned(q_THD, angles_LP[positions_T]), turned(k_TKD, angles_LP[positions_T])

    rotate_and_store_(qkv_TXD, rotations_LP, positions_T, slots_T, pool.entries[0], H, K, *weights, 1e-5)

    def same(given: Tensor, wanted: Tensor) -> None:
        torch.testing.assert_close(given.double(), wanted, rtol=tolerance, atol=tolerance)

    same(qkv_TXD[:, :H], q_THD)
    same(pool.keys[0][slots_T], k_TKD)
    same(pool.values[0][slots_T], v_TKD)
    untouched = torch.ones(11, dtype=torch.bool).index_fill_(0, slots_T, False)
    assert not pool.entries[0][untouched].any()
