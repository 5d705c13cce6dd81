"""The kernels around a layer's products give what their formulas say, in torch, Triton's interpreter and on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from callboard.kernels import activation, embedding, norm, rope
from callboard.kernels.kv_pool import KVPool

from .triton_device import DEVICE  # before what imports triton

# isort: split
from callboard.kernels.fused import activation as fused_activation
from callboard.kernels.fused import embedding as fused_embedding
from callboard.kernels.fused import norm as fused_norm
from callboard.kernels.fused import rope as fused_rope

CPU = torch.device("cpu")
DTYPES = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
# torch's own on the CPU, and the kernel where there is something to run it
PLACES = pytest.mark.parametrize("fused", [False, True], ids=["torch", "triton"])


def place(fused: bool) -> torch.device:
    return DEVICE if fused else CPU


def same(given: Tensor, wanted: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(given.double().cpu(), wanted.cpu(), rtol=tolerance, atol=tolerance)


def normed(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * weight


def turned(x_THD: Tensor, angles_TP: Tensor) -> Tensor:
    cos, sin = angles_TP.cos().unsqueeze(1), angles_TP.sin().unsqueeze(1)
    even, odd = x_THD[..., 0::2], x_THD[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


@DTYPES
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("width", [48, 64])
def test_rms_norm_of_rows_that_do_not_touch(dtype: torch.dtype, tolerance: float, scale: float, width: int) -> None:
    torch.manual_seed(2)
    x_TC = (torch.randn(5, 100, device=DEVICE) * scale).to(dtype)[:, :width]
    weight_C = torch.randn(width, device=DEVICE).to(dtype)
    wanted = normed(x_TC.double(), weight_C.double(), 1e-5)
    same(fused_norm.rms_norm(x_TC, weight_C, 1e-5), wanted, tolerance)


@DTYPES
@PLACES
@pytest.mark.parametrize("parts", [1, 3])
def test_the_sum_is_kept_and_its_norm_returned(dtype: torch.dtype, tolerance: float, fused: bool, parts: int) -> None:
    torch.manual_seed(3)
    x_TC, parts_PTC = torch.randn(6, 40, device=place(fused)).to(dtype), torch.randn(parts, 6, 40, device=place(fused))
    weight_C = torch.randn(40, device=place(fused)).to(dtype)
    added_TC = x_TC.double() + parts_PTC.double().sum(0)
    add = fused_norm.add_rms_norm_ if fused else norm.add_rms_norm_
    normed_TC = add(x_TC, parts_PTC, weight_C, 1e-5)
    same(x_TC, added_TC, tolerance)
    same(normed_TC, normed(x_TC.double(), weight_C.double(), 1e-5), tolerance)


@DTYPES
def test_silu_and_multiply_over_several_blocks(dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(4)
    gate_up_TF = (3 * torch.randn(3, 2 * 70, device=DEVICE)).to(dtype)
    gate, up = gate_up_TF.double().chunk(2, -1)
    result = fused_activation.silu_and_multiply(gate_up_TF, block=32)
    assert result.is_contiguous()
    same(result, gate * torch.sigmoid(gate) * up, tolerance)


@PLACES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embeddings_are_found_by_the_tokens_of_rows(dtype: torch.dtype, fused: bool) -> None:
    torch.manual_seed(6)
    device = place(fused)
    embedding_VC = torch.randn(30, 40, device=device).to(dtype)
    tokens_M, rows_T = torch.randint(30, (8,), device=device), torch.tensor([7, 0, 7, 3], device=device)
    wanted_TC = torch.stack([embedding_VC[int(tokens_M[row])] for row in rows_T.tolist()])
    if fused:
        assert torch.equal(fused_embedding.embed_rows(embedding_VC, tokens_M, rows_T, block=32), wanted_TC)
    else:
        assert torch.equal(embedding.embed_rows(embedding_VC, tokens_M, rows_T), wanted_TC)


@DTYPES
@PLACES
@pytest.mark.parametrize("with_norm", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 8), (3, 3, 12)])
def test_queries_are_rotated_and_keys_and_values_stored(
    dtype: torch.dtype, tolerance: float, fused: bool, with_norm: bool, heads: int, kv_heads: int, head_dim: int
) -> None:
    torch.manual_seed(1)
    qkv_TXD = torch.randn(5, heads + 2 * kv_heads, head_dim, device=place(fused)).to(dtype)
    function = fused_rope.rotate_and_store_ if fused else rope.rotate_and_store_
    check_rotation(function, qkv_TXD, heads, with_norm, tolerance)


def check_rotation(
    rotate_and_store_: Callable[..., None], qkv_TXD: Tensor, heads: int, with_norm: bool, tolerance: float
) -> None:
    """Compare with float64; positions repeat, slots are shuffled, and some slots stay empty."""
    device, dtype = qkv_TXD.device, qkv_TXD.dtype
    T, X, D = qkv_TXD.shape
    H, K = heads, (X - heads) // 2
    angles_LP = torch.randn(20, D // 2, dtype=torch.float64, device=device)
    rotations_LP = torch.polar(torch.ones_like(angles_LP), angles_LP).to(torch.complex64)
    positions_T = torch.randint(20, (T,), device=device)
    slots_T = torch.randperm(2 * T, device=device)[:T]
    pool = KVPool(layers=1, slots=2 * T, kv_heads=K, head_dim=D, dtype=dtype, device=device)
    q_norm_D, k_norm_D = torch.randn(2, D, device=device).to(dtype)
    wide = qkv_TXD.double()
    q_THD, k_TKD, v_TKD = wide[:, :H], wide[:, H : H + K], wide[:, H + K :]
    if with_norm:
        q_THD, k_TKD = normed(q_THD, q_norm_D.double(), 1e-5), normed(k_TKD, k_norm_D.double(), 1e-5)
    q_THD, k_TKD = turned(q_THD, angles_LP[positions_T]), turned(k_TKD, angles_LP[positions_T])

    norms = {"q_norm_D": q_norm_D, "k_norm_D": k_norm_D, "epsilon": 1e-5} if with_norm else {}
    rotate_and_store_(qkv_TXD, rotations_LP, positions_T, slots_T, pool.entries[0], H, K, **norms)

    same(qkv_TXD[:, :H], q_THD, tolerance)
    same(pool.keys[0][slots_T], k_TKD, tolerance)
    same(pool.values[0][slots_T], v_TKD, tolerance)
    untouched = torch.ones(2 * T + 1, dtype=torch.bool, device=device).index_fill_(0, slots_T, False)
    assert not pool.entries[0][untouched].any()


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
@pytest.mark.parametrize(
    ("hidden", "heads", "intermediate", "with_norm"), [(4096, 32, 14336, False), (1024, 16, 3072, True)]
)
@pytest.mark.parametrize("tokens", [1, 257])
def test_a_layer_of_a_real_model(hidden: int, heads: int, intermediate: int, with_norm: bool, tokens: int) -> None:
    torch.manual_seed(5)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.bfloat16, device=DEVICE)

    x_TC, parts_PTC, weight_C = random(tokens, hidden), random(8, tokens, hidden).float(), random(hidden)
    added_TC = x_TC.double() + parts_PTC.double().sum(0)
    normed_TC = norm.add_rms_norm_(x_TC, parts_PTC, weight_C, 1e-6)
    same(x_TC, added_TC, 2e-2)
    same(normed_TC, normed(x_TC.double(), weight_C.double(), 1e-6), 2e-2)
    gate_up_TF = random(tokens, 2 * intermediate)
    gate, up = gate_up_TF.double().chunk(2, -1)
    same(activation.silu_and_multiply_(gate_up_TF), gate * torch.sigmoid(gate) * up, 2e-2)
    check_rotation(rope.rotate_and_store_, random(tokens, heads + 16, 128), heads, with_norm, 2e-2)
