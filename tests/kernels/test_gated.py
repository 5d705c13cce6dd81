"""Gated products of many tokens agree with float64; the kernel is Hopper's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from callboard.kernels.gated import gated_linear, takes_gated
from callboard.kernels.hopper import has_hopper_gluon

GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or not has_hopper_gluon(torch.device("cuda"), torch.bfloat16),
        reason="needs Hopper and Triton 3.6",
    ),
]


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def distance(given: Tensor, x_TI: Tensor, weight_IO: Tensor, bias_O: Tensor | None = None) -> float:
    y = x_TI.double() @ weight_IO.double()
    if bias_O is not None:
        y += bias_O.double()
    gate, up = y.chunk(2, -1)
    wanted = functional.silu(gate) * up
    assert given.shape == wanted.shape
    return float((given.double() - wanted).norm() / wanted.norm())


def test_a_cpu_has_no_such_kernel_and_sizes_are_refused_by_name() -> None:
    x_TI, weight_IO = torch.zeros(2048, 2048, dtype=torch.bfloat16), torch.zeros(28672, 2048, dtype=torch.bfloat16).t()
    assert not takes_gated(x_TI, weight_IO)
    with pytest.raises(ValueError, match=r"x is \(3, 2048\), the weight \(1024, 64\); they must have the same inputs"):
        gated_linear(x_TI[:3], torch.zeros(1024, 64))
    with pytest.raises(ValueError, match="outputs a multiple of 16"):
        gated_linear(x_TI, torch.zeros(2048, 24))


class TestOnHopper:
    pytestmark = GPU

    @pytest.mark.parametrize("tokens", [1024, 2048, 4000, 8192])
    def test_gates_and_ups_of_a_real_model(self, tokens: int) -> None:
        torch.manual_seed(tokens)
        x_TI, weight_IO = random(tokens, 4096), (random(28672, 4096) / 64).t()
        assert takes_gated(x_TI, weight_IO)
        given = gated_linear(x_TI, weight_IO)
        rows = torch.randint(tokens, (200,), device="cuda")
        assert distance(given[rows], x_TI[rows], weight_IO) < 4e-3
        assert distance(given[-9:], x_TI[-9:], weight_IO) < 4e-3

    @pytest.mark.parametrize("tokens", [1, 255, 700])
    @pytest.mark.parametrize(("inputs", "width"), [(64, 8), (1000, 200), (4096, 72), (136, 1032)])
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("biased", [False, True])
    def test_sizes_that_fill_no_tile(
        self, tokens: int, inputs: int, width: int, dtype: torch.dtype, biased: bool
    ) -> None:
        torch.manual_seed(inputs)
        x_TI, weight_IO = random(tokens, inputs, dtype=dtype), (random(2 * width, inputs) / inputs**0.5).to(dtype).t()
        bias_O = random(2 * width, dtype=dtype) if biased else None
        assert distance(gated_linear(x_TI, weight_IO, bias_O=bias_O), x_TI, weight_IO, bias_O) < 4e-3

    def test_it_is_the_same_each_time(self) -> None:
        torch.manual_seed(3)
        x_TI, weight_IO = random(3000, 2048), (random(8192, 2048) / 45).t()
        given = gated_linear(x_TI, weight_IO)
        assert all(torch.equal(gated_linear(x_TI, weight_IO), given) for _ in range(20))

    def test_what_it_does_not_take(self) -> None:
        weight_IO = random(28672, 4096).t()
        assert not takes_gated(random(512, 4096), weight_IO), "its rounds are not filled"
        assert not takes_gated(random(8192, 1024), random(6144, 1024).t()), "too few inputs"
        assert not takes_gated(random(8192, 4096).float(), weight_IO)
        assert not takes_gated(random(8192, 4096), random(4096, 28672))
