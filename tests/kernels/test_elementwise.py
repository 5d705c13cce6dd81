"""Norm, rotation, gated activation and packed products give what their formulas say in float64."""

from __future__ import annotations

import pytest
import torch

from callboard.kernels.activation import silu_and_multiply_
from callboard.kernels.half_linear import HalfMatrix, fits_half
from callboard.kernels.norm import rms_norm
from callboard.kernels.rope import rotate_


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_rms_norm(dtype: torch.dtype, tolerance: float, scale: float) -> None:
    torch.manual_seed(1)
    x, weight = (torch.randn(5, 48) * scale).to(dtype), torch.randn(48).to(dtype)
    wide = x.double()
    wanted = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    before = x.clone()
    torch.testing.assert_close(rms_norm(x, weight, 1e-5).double(), wanted, rtol=tolerance, atol=tolerance)
    assert torch.equal(x, before)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_rotation_turns_neighbouring_pairs_of_a_slice(dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(2)
    whole, angles = torch.randn(4, 7, 6).to(dtype), torch.randn(4, 3)
    before = whole.clone().double()
    rotate_(whole[:, :5], torch.polar(torch.ones_like(angles), angles))
    cos, sin = angles.double().cos().unsqueeze(1), angles.double().sin().unsqueeze(1)
    wanted = before.clone()
    wanted[:, :5, 0::2] = before[:, :5, 0::2] * cos - before[:, :5, 1::2] * sin
    wanted[:, :5, 1::2] = before[:, :5, 0::2] * sin + before[:, :5, 1::2] * cos
    torch.testing.assert_close(whole.double(), wanted, rtol=tolerance, atol=tolerance)


def test_silu_and_multiply() -> None:
    torch.manual_seed(3)
    gate, up = torch.randn(3, 8), torch.randn(3, 8)
    result = silu_and_multiply_(torch.cat((gate, up), 1))
    torch.testing.assert_close(result, gate * torch.sigmoid(gate) * up)


@pytest.mark.parametrize("biased", [False, True])
def test_a_packed_matrix_multiplies_as_the_weight_it_was_made_of(biased: bool) -> None:
    torch.manual_seed(4)
    weight = (torch.randn(512, 600) * 0.05).bfloat16().float()
    bias = torch.randn(600) if biased else None
    assert fits_half(weight)
    x = torch.randn(5, 512)
    wanted = x.double() @ weight.double() + (0.0 if bias is None else bias.double())
    torch.testing.assert_close(HalfMatrix(weight, bias).multiply(x).double(), wanted, rtol=0, atol=1e-5)


def test_only_large_float32_weights_that_float16_holds_are_packed() -> None:
    torch.manual_seed(5)
    weight = torch.randn(512, 600).bfloat16().float()
    assert fits_half(weight)
    assert not fits_half(weight.bfloat16())
    assert not fits_half(weight[:20])
    assert not fits_half(torch.randn(512, 600)), "float32's digits would be cut"
    assert not fits_half(weight * 2.0**20), "beyond float16's range"
    weight[3, 5] = float("nan")
    assert not fits_half(weight)
