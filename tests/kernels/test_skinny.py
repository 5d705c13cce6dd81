"""Products of one token, with what is fused around them, agree with float64 in Triton's interpreter and on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from .triton_device import DEVICE  # before what imports triton

# isort: split
from callboard.kernels.skinny import SkinnyTuning, skinny_linear, takes

SMALL = SkinnyTuning(4, 32)


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def wanted(x_TI: Tensor, weight_IO: Tensor, norm_I: Tensor | None, bias_O: Tensor | None, gated: bool) -> Tensor:
    """Compute in float64 what the kernel promises, before the residual."""
    x = x_TI.double()
    if norm_I is not None:
        x = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm_I.double()
    y = x @ weight_IO.double()
    if bias_O is not None:
        y += bias_O.double()
    if gated:
        gate, up = y.chunk(2, -1)
        y = functional.silu(gate) * up
    return y


def distance(given: Tensor, reference: Tensor) -> float:
    return float((given.double() - reference).norm() / reference.norm())


@pytest.mark.parametrize(
    ("dtype", "normed", "biased", "gated"),
    [
        (torch.bfloat16, False, False, False),
        (torch.float16, True, False, False),
        (torch.float16, False, True, False),
        (torch.bfloat16, True, False, True),
        (torch.bfloat16, True, True, True),
    ],
)
def test_norm_product_bias_and_gate(dtype: torch.dtype, normed: bool, biased: bool, gated: bool) -> None:
    torch.manual_seed(1)
    # 80 inputs and 48 outputs, or 24 of each half: the last block is not whole, nor the last step
    x_TI, weight_IO = random(1, 80, dtype=dtype), random(48, 80, dtype=dtype).t()
    norm_I = random(80, dtype=dtype) if normed else None
    bias_O = random(48, dtype=dtype) if biased else None
    result = skinny_linear(
        x_TI, weight_IO, bias_O=bias_O, norm_I=norm_I, epsilon=1e-5, gated=gated, dtype=torch.float32, tuning=SMALL
    )
    assert result.dtype == torch.float32
    assert distance(result, wanted(x_TI, weight_IO, norm_I, bias_O, gated)) < 1e-5


@pytest.mark.parametrize(("inputs", "outputs"), [(80, 48), (64, 32), (128, 48)])
def test_the_residual_takes_the_product_in_place(inputs: int, outputs: int) -> None:
    torch.manual_seed(2)
    x_TI, weight_IO, residual_TO = random(1, inputs), random(outputs, inputs).t(), random(1, outputs)
    sum_TO = residual_TO.double() + wanted(x_TI, weight_IO, None, None, False)
    assert skinny_linear(x_TI, weight_IO, residual_TO=residual_TO) is residual_TO
    assert distance(residual_TO, sum_TO) < 1e-2


def test_a_mismatch_is_refused_by_name() -> None:
    x_TI, weight_IO = random(1, 64), random(32, 64).t()
    with pytest.raises(ValueError, match="x has 48 inputs, the weight 64"):
        skinny_linear(random(1, 48), weight_IO)
    with pytest.raises(ValueError, match=r"the residual is \(1, 16\)"):
        skinny_linear(x_TI, weight_IO, residual_TO=random(1, 16))
    with pytest.raises(ValueError, match="x has 2 tokens; it must have one"):
        skinny_linear(random(2, 64), weight_IO)


def test_a_cpu_keeps_its_own_products() -> None:
    assert not takes(torch.zeros(1, 64, dtype=torch.bfloat16), torch.zeros(32, 64, dtype=torch.bfloat16).t())


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [(4096, 6144), (4096, 28672), (14336, 4096), (4096, 4096), (1024, 4096), (2048, 1024), (1024, 6144), (3072, 1024)],
)
def test_real_shapes(inputs: int, outputs: int) -> None:
    torch.manual_seed(4)
    x_TI, weight_IO, norm_I = random(1, inputs), (random(outputs, inputs) * 0.02).t(), random(inputs)
    assert takes(x_TI, weight_IO)
    assert not takes(random(2, inputs), weight_IO)
    for gated in (False, True):
        result = skinny_linear(x_TI, weight_IO, norm_I=norm_I, epsilon=1e-5, gated=gated)
        assert distance(result, wanted(x_TI, weight_IO, norm_I, None, gated)) < 1e-2
    residual_TO = random(1, outputs)
    sum_TO = residual_TO.double() + wanted(x_TI, weight_IO, None, None, False)
    assert distance(skinny_linear(x_TI, weight_IO, residual_TO=residual_TO), sum_TO) < 1e-2


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
def test_what_is_launched_early_still_waits_for_its_input() -> None:
    torch.manual_seed(5)
    early = SkinnyTuning(4, 1024, dependent=True)
    late = SkinnyTuning(4, 1024)
    x_TI, weights = random(1, 1024), [(random(1024, 1024) * 0.03).t() for _ in range(50)]
    results = []
    for tuning in (early, late):
        y_TI = x_TI
        for weight_IO in weights:
            y_TI = skinny_linear(y_TI, weight_IO, tuning=tuning)
        results.append(y_TI)
    assert torch.equal(*results)
