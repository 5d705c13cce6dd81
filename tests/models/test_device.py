"""What only a GPU has: products fused with their neighbours, and steps that fit a CUDA graph."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from callboard.kernels.attention.interface import AttentionBatch
from callboard.models.layers import DeviceLinear, Norm, Residual

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


def close(given: Tensor, wanted: Tensor) -> None:
    """Compare with float64, relative to the whole: an element near zero has lost its digits to the others."""
    assert float((given.double() - wanted).norm() / wanted.norm()) < 1e-2


@pytest.mark.parametrize("tokens", [1, 3, 16, 17, 200])
@pytest.mark.parametrize("biased", [False, True])
def test_a_product_and_what_is_around_it(tokens: int, biased: bool) -> None:
    torch.manual_seed(tokens)
    x_TI, residual_TO = (torch.randn(tokens, width, device="cuda").bfloat16() for width in (256, 192))
    weight_IO = torch.randn(192, 256, device="cuda").bfloat16().t()
    bias_O = torch.randn(192, device="cuda").bfloat16() if biased else None
    norm = Norm(torch.rand(256, device="cuda").bfloat16(), 1e-5)
    product = DeviceLinear(weight_IO, bias_O)

    def plain(x: Tensor) -> Tensor:
        return x @ weight_IO.double() + (0.0 if bias_O is None else bias_O.double())

    x = x_TI.double()
    normed = x / (x.square().mean(-1, keepdim=True) + norm.epsilon).sqrt() * norm.weight_I.double()
    gate, up = plain(normed).chunk(2, -1)
    close(product.multiply(x_TI), plain(x))
    close(product.normed(Residual(x_TI), norm), plain(normed))
    close(product.gated(Residual(x_TI), norm), functional.silu(gate) * up)
    scores_TO = product.scores(x_TI)
    assert scores_TO.dtype == torch.float32
    close(scores_TO, plain(x))
    wanted = residual_TO.double() + plain(x)
    residual = Residual(residual_TO)
    product.add_to_(residual, x_TI)
    close(residual.x_TO, wanted)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("device", ["cuda"], indirect=True)
@torch.inference_mode()
def test_a_decode_step_waits_for_nothing_and_fits_a_graph(
    pair: Any, runner: Any, row: Any, family: str, device: torch.device
) -> None:
    models = pair(700, family=family, head_dim=16)
    run, generator = runner(models.model, 700), random.Random(700)
    rows = [row([generator.randrange(97) for _ in range(30)]) for _ in range(4)]
    run.step([(each, 29) for each in rows])
    slots = [run.free.pop() for _ in rows]
    table_RL = torch.tensor([[*each.slots, slot] for each, slot in zip(rows, slots, strict=True)], device=device)
    slots_T, positions_T = torch.tensor(slots, device=device), torch.full((4,), 29, device=device)
    tokens_T = torch.tensor([each.tokens[29] for each in rows], device=device)
    starts_R1 = torch.arange(5, dtype=torch.int32)
    plan = run.attention.plan(AttentionBatch(starts_R1, [1] * 4, [30] * 4, table_RL, slots_T, positions_T))

    def step() -> Tensor:
        hidden = models.model.forward(tokens_T, positions_T, slots_T, run.pool, run.attention, plan)
        return models.model.logits(hidden)

    step()  # compiles, plans the parts and grows the gather buffer
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits_RV = step()
    graph.replay()
    for number, each in enumerate(rows):
        torch.testing.assert_close(logits_RV[number].cpu(), models.wanted(each.tokens)[29], rtol=0, atol=1e-4)
