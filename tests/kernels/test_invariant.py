"""Products that do not depend on the batch: right, and the same bits for a token in any batch and by any tile."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from .triton_device import DEVICE, GPU  # before what imports triton

pytest.importorskip("triton")

# isort: split
from callboard.kernels.invariant import Tuning, invariant_linear

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# What `Tuning.of` may choose, and fetched either way.
TUNINGS = [
    Tuning(64, 32, 128, stages=6),
    Tuning(64, 64, 128, stages=6),
    Tuning(64, 128, 128),
    Tuning(64, 256, 64),
    Tuning(128, 64, 128),
    Tuning(128, 128, 64, warps=8),
    Tuning(128, 256, 64, warps=8, stages=3, programs=16),
    Tuning(64, 64, 64, descriptors=False),
    Tuning(128, 128, 64, warps=8, stages=3, descriptors=False),
]
SMALL = [
    Tuning(64, 16, 32),
    Tuning(64, 16, 16, descriptors=False),
    Tuning(64, 32, 64, programs=2, group=2),
    Tuning(128, 16, 32, programs=1, descriptors=False),
]


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def distance(given: Tensor, reference: Tensor) -> float:
    return float((given.double() - reference).norm() / reference.norm())


@pytest.mark.parametrize("tuning", SMALL, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_product_is_right(dtype: torch.dtype, tuning: Tuning) -> None:
    torch.manual_seed(1)
    x_TI, weight_IO, bias_O = random(70, 40, dtype=dtype), random(24, 40, dtype=dtype).t(), random(24, dtype=dtype)
    wanted = x_TI.double() @ weight_IO.double()
    assert distance(invariant_linear(x_TI, weight_IO, dtype=torch.float32, tuning=tuning), wanted) < 1e-5
    biased = invariant_linear(x_TI, weight_IO, bias_O=bias_O, tuning=tuning)
    assert biased.dtype == dtype
    assert distance(biased, wanted + bias_O.double()) < 1e-2


@pytest.mark.parametrize("tokens", [1, 66])
def test_a_residual_takes_the_product_in_place(tokens: int) -> None:
    torch.manual_seed(2)
    x_TI, weight_IO, residual_TO = random(tokens, 48), random(40, 48).t(), random(tokens, 40)
    wanted = residual_TO.double() + x_TI.double() @ weight_IO.double()
    assert invariant_linear(x_TI, weight_IO, residual_TO=residual_TO) is residual_TO
    assert distance(residual_TO, wanted) < 1e-2


def test_rows_may_lie_apart_and_tiles_need_no_alignment() -> None:
    torch.manual_seed(3)
    wide = random(6, 100)
    for x_TI in (wide[:, 3:36], wide[::2, :33], wide.t()[:33, :6].t()):
        weight_IO = random(24, 33).t()
        wanted = x_TI.double() @ weight_IO.double()
        assert distance(invariant_linear(x_TI, weight_IO, dtype=torch.float32), wanted) < 1e-5


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_token_has_the_same_bits_in_any_batch(dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    inputs, outputs = (1024, 384) if GPU else (48, 24)
    x_TI, weight_IO = random(130, inputs, dtype=dtype), random(outputs, inputs, dtype=dtype).t()
    whole = invariant_linear(x_TI, weight_IO, dtype=torch.float32)
    for tokens in (1, 5, 17, 64):
        for first in (3, 130 - tokens):
            some = invariant_linear(x_TI[first : first + tokens], weight_IO, dtype=torch.float32)
            assert torch.equal(some, whole[first : first + tokens]), (tokens, first)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_small_tile_changes_a_bit(dtype: torch.dtype) -> None:
    torch.manual_seed(6)
    x_TI, weight_IO = random(70, 40, dtype=dtype), random(24, 40, dtype=dtype).t()
    for given in (torch.float32, torch.bfloat16):  # only the latter is written by programs of several tiles
        results = [invariant_linear(x_TI, weight_IO, dtype=given, tuning=tuning) for tuning in SMALL]
        assert all(torch.equal(result, results[0]) for result in results)


def test_a_neighbour_that_is_no_number_changes_nobody() -> None:
    torch.manual_seed(5)
    x_TI, weight_IO = random(5, 64), random(32, 64).t()
    alone = invariant_linear(x_TI[2:4], weight_IO)
    x_TI[0], x_TI[4] = float("nan"), -1e4
    assert torch.equal(invariant_linear(x_TI, weight_IO)[2:4], alone)


def test_every_tile_takes_64_tokens_and_fits_shared_memory() -> None:
    for tokens in (1, 16, 64, 128, 256, 1024, 8192):
        for outputs in (1024, 4096, 6144, 28672, 151936):
            tuning = Tuning.of(tokens, outputs)
            assert tuning.block_tokens % 64 == 0
            assert tuning.stages >= 3
            assert 2 * tuning.stages * tuning.block_inputs * (tuning.block_tokens + tuning.block_outputs) <= 200 << 10


def test_what_cannot_be_multiplied_is_refused_by_name() -> None:
    x_TI = random(2, 64)
    with pytest.raises(ValueError, match="x has 64 inputs, the weight 48"):
        invariant_linear(x_TI, random(32, 48).t())
    with pytest.raises(ValueError, match=r"transposed view of \[32, 64\]"):
        invariant_linear(x_TI, random(64, 32))
    with pytest.raises(ValueError, match=r"the residual is \(2, 16\)"):
        invariant_linear(x_TI, random(32, 64).t(), residual_TO=random(2, 16))
    with pytest.raises(ValueError, match="block_tokens is 32; it must be a power of two and at least 64"):
        Tuning(32, 32)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), [(4096, 6144), (14336, 4096), (1024, 4096), (1000, 392)])
def test_no_tile_changes_a_bit(inputs: int, outputs: int, dtype: torch.dtype) -> None:
    torch.manual_seed(6)
    x_TI, weight_IO = random(300, inputs, dtype=dtype), (random(outputs, inputs, dtype=dtype) * 0.02).t()
    for given in (torch.float32, dtype):  # only the latter is written by programs of several tiles
        results = [invariant_linear(x_TI, weight_IO, dtype=given, tuning=tuning) for tuning in TUNINGS]
        assert distance(results[0], x_TI.double() @ weight_IO.double()) < 1e-2
        for tuning, result in zip(TUNINGS, results, strict=True):
            assert torch.equal(result, results[0]), tuning


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.parametrize(("inputs", "outputs"), [(4096, 6144), (4096, 28672), (14336, 4096), (1024, 151936)])
def test_real_shapes_have_the_same_bits_in_any_batch(inputs: int, outputs: int) -> None:
    torch.manual_seed(7)
    most = 8192 if outputs < 100_000 else 512
    x_TI, weight_IO = random(most, inputs), (random(outputs, inputs) * 0.02).t()
    whole = invariant_linear(x_TI, weight_IO)
    for tokens in (1, 2, 16, 63, 64, 100, 128, 200, 256, 500):
        first = tokens % 13
        assert torch.equal(invariant_linear(x_TI[first : first + tokens], weight_IO), whole[first : first + tokens])
