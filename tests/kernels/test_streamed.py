"""Products of few tokens whose weights stream agree with float64 and are the same each time; the kernel is Hopper's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from callboard.kernels.hopper import has_hopper_gluon
from callboard.kernels.streamed import StreamTuning, stream_linear, stream_parts, streams

GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or not has_hopper_gluon(torch.device("cuda"), torch.bfloat16),
        reason="needs Hopper and Triton 3.6",
    ),
]
LLAMA, QWEN = {"hidden": 4096, "wide": 14336}, {"hidden": 1024, "wide": 3072}


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def distance(given: Tensor, reference: Tensor) -> float:
    return float((given.double() - reference).norm() / reference.norm())


def wanted(x_TI: Tensor, weight_IO: Tensor, bias_O: Tensor | None, *, gated: bool = False) -> Tensor:
    y = x_TI.double() @ weight_IO.double()
    if bias_O is not None:
        y += bias_O.double()
    if not gated:
        return y
    gate, up = y.chunk(2, -1)
    return functional.silu(gate) * up


@pytest.mark.parametrize("tokens", [2, 5, 8, 9, 31, 64, 65, 128, 200, 256])
@pytest.mark.parametrize("outputs", [1024, 4096, 6144, 28672])
@pytest.mark.parametrize("inputs", [64, 1024, 3072, 14336])
@pytest.mark.parametrize("divided", [False, True])
def test_a_tuning_fits_a_multiprocessor_and_leaves_no_part_empty(
    tokens: int, outputs: int, inputs: int, divided: bool
) -> None:
    tuning = StreamTuning.of(tokens, inputs, outputs, divided=divided)
    stage = 2 * (tuning.block_outputs + tuning.block_tokens) * tuning.block_inputs
    assert tuning.stages >= 3
    assert tuning.stages * stage <= 220 << 10
    assert tuning.block_outputs * tuning.block_tokens <= 128 * 32 * tuning.warps  # sums a thread
    assert 1 <= tuning.parts <= -(-inputs // tuning.block_inputs)
    assert divided or tuning.parts == 1


def test_a_cpu_has_no_such_kernel() -> None:
    x_TI, weight_IO = torch.zeros(4, 64, dtype=torch.bfloat16), torch.zeros(64, 64, dtype=torch.bfloat16).t()
    assert not streams(x_TI, weight_IO)
    with pytest.raises(ValueError, match=r"tuning\.parts is 2; only stream_parts"):
        stream_linear(x_TI, weight_IO, tuning=StreamTuning(64, 8, 64, 3, parts=2))


class TestOnHopper:
    pytestmark = GPU

    @pytest.mark.parametrize("tokens", [1, 2, 7, 8, 33, 64, 100, 128])
    @pytest.mark.parametrize("model", [LLAMA, QWEN], ids=["llama", "qwen"])
    def test_a_layers_products(self, model: dict[str, int], tokens: int) -> None:
        torch.manual_seed(tokens)
        hidden, wide = model["hidden"], model["wide"]
        x_TI, weight_IO = random(tokens, hidden), random(hidden + 2048, hidden).t()
        assert streams(x_TI, weight_IO)
        assert distance(stream_linear(x_TI, weight_IO), wanted(x_TI, weight_IO, None)) < 4e-3
        gates_IO = (random(2 * wide, hidden) / hidden**0.5).t()
        assert distance(stream_linear(x_TI, gates_IO, gated=True), wanted(x_TI, gates_IO, None, gated=True)) < 4e-3
        x_TI, down_IO = random(2 * tokens, wide), random(hidden, wide).t()
        assert distance(stream_parts(x_TI, down_IO).sum(0), wanted(x_TI, down_IO, None)) < 1e-5

    @pytest.mark.parametrize("tokens", [3, 150, 256])
    @pytest.mark.parametrize(("inputs", "outputs"), [(80, 48), (1000, 202), (2048, 1024)])
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_sizes_that_fill_no_block_with_a_bias(
        self, tokens: int, inputs: int, outputs: int, dtype: torch.dtype
    ) -> None:
        torch.manual_seed(inputs)
        x_TI, bias_O = random(tokens, inputs, dtype=dtype), random(outputs, dtype=dtype)
        weight_IO = (random(outputs, inputs, dtype=dtype) / inputs**0.5).t()
        assert streams(x_TI, weight_IO)
        given = stream_linear(x_TI, weight_IO, bias_O=bias_O)
        assert given.dtype == dtype
        assert distance(given, wanted(x_TI, weight_IO, bias_O)) < 4e-3
        gated = stream_linear(x_TI, weight_IO, bias_O=bias_O, gated=True)
        assert gated.shape == (tokens, outputs // 2)
        assert distance(gated, wanted(x_TI, weight_IO, bias_O, gated=True)) < 4e-3
        parts = stream_parts(x_TI, weight_IO, bias_O=bias_O)
        assert distance(parts.sum(0), wanted(x_TI, weight_IO, bias_O)) < 1e-5

    @pytest.mark.parametrize("tuning", [
        StreamTuning(64, 8, 64, 3), StreamTuning(128, 32, 64, 5), StreamTuning(128, 64, 128, 4, warps=8),
        StreamTuning(64, 256, 64, 4), StreamTuning(64, 16, 128, 3, parts=7),
    ])  # fmt: skip
    def test_every_tuning_gives_the_same_product(self, tuning: StreamTuning) -> None:
        torch.manual_seed(4)
        x_TI, weight_IO = random(40, 1024), random(384, 1024).t()
        given = stream_parts(x_TI, weight_IO, tuning=tuning)
        assert given.shape == (tuning.parts, 40, 384)
        assert distance(given.sum(0), wanted(x_TI, weight_IO, None)) < 1e-5
        for _ in range(20):
            assert torch.equal(stream_parts(x_TI, weight_IO, tuning=tuning), given)

    def test_products_in_a_row_wait_for_each_other_in_a_graph(self) -> None:
        torch.manual_seed(5)
        x_TI = random(6, 2048)
        weights = [(random(2048, 2048) / 2048**0.5).t() for _ in range(24)]

        def chain() -> Tensor:
            y_TI = x_TI
            for weight_IO in weights:
                y_TI = stream_linear(y_TI, weight_IO)
            return y_TI

        chain()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            given = chain()
        y = x_TI.double()
        for weight_IO in weights:
            y = (y @ weight_IO.double()).bfloat16().double()
        for _ in range(10):
            given.zero_()
            graph.replay()
            torch.cuda.synchronize()
            assert distance(given, y) < 3e-2

    def test_what_it_does_not_take(self) -> None:
        x_TI, weight_IO = random(4, 64), random(32, 64).t()
        assert streams(x_TI, weight_IO)
        assert not streams(x_TI.float(), weight_IO)
        assert not streams(random(257, 64), weight_IO)
        assert not streams(random(129, 4096), random(4096, 4096).t())
        assert streams(random(129, 14336), random(4096, 14336).t(), divided=True)
        assert not streams(x_TI, random(64, 32))
        assert not streams(random(4, 128)[:, ::2], weight_IO)
        assert not streams(random(4, 60), random(32, 60).t())
