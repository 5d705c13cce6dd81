"""Extends by the kernel with specialised warps, on a device that has them, give what a loop over queries gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from ..triton_device import DEVICE, GPU

pytest.importorskip("triton")

from callboard.kernels.attention.flash_extend import FlashPlan
from callboard.kernels.attention.tree_launch import can_specialise
from callboard.kernels.attention.triton_attention import TritonAttention
from callboard.kernels.attention.triton_plan import Tiles
from callboard.kernels.attention.tuning import ExtendTile, Tuning

from .test_padded import padded
from .triton_cases import Case, check, draw, wanted

SPECIALISED = ExtendTile(programs=132, few=1, specialised=True)
KNOBS = [
    SPECIALISED,
    replace(SPECIALISED, stages=2, programs=3),
    replace(SPECIALISED, keys=64, stages=6, programs=1000),
]
SHAPED = [((32, 8, 128), tile) for tile in KNOBS]
SHAPED += [(shape, tile) for shape in ((16, 8, 128), (28, 4, 128), (8, 8, 64), (16, 1, 64)) for tile in KNOBS[:1]]
SHAPED += [((8, 8, 128), KNOBS[2])]  # three blocks that not all queries see
ROWS = [
    [(300, 300)],
    [(2000, 2000), (1, 50), (1, 1)],
    [(queries, queries + cached) for queries, cached in ((2, 0), (31, 1), (33, 97), (32, 96), (65, 31), (200, 127))],
    [(queries, keys) for queries, keys in ((500, 8192), (16, 16), (128, 4000), (77, 129), (2, 3), (9, 128))],
    [(40, 60 + row) for row in range(100)],
    [(300, 100_000), (5, 5), (1, 9000)],
]


def tuned(tile: ExtendTile) -> Tuning:
    return Tuning(extend=tile, few_tokens=0, short=replace(tile, lines=128))


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("rows", ROWS, ids=lambda rows: f"{len(rows)} rows to {max(keys for _, keys in rows)}")
@pytest.mark.parametrize(("shape", "tile"), SHAPED, ids=str)
def test_specialised_warps(rows: list[tuple[int, int]], shape: tuple[int, int, int], tile: ExtendTile) -> None:
    """Slots that no row has hold NaN."""
    assert can_specialise(DEVICE, torch.bfloat16, shape[2]) == (torch.cuda.get_device_capability() == (9, 0))
    case = draw(rows, shape, dtype=torch.bfloat16, fused_qkv=True)
    check(case, shape, 2e-2, tuning=tuned(tile))


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("options", [{"soft_cap": 5.0}, {"windows": (200,)}, {"scale": 0.3}], ids=str)
@pytest.mark.parametrize("rows", ROWS[2:4], ids=len)
def test_specialised_warps_bend_scores_and_leave_windows(rows: list[tuple[int, int]], options: dict[str, Any]) -> None:
    shape = (32, 8, 128)
    check(draw(rows, shape, dtype=torch.bfloat16), shape, 2e-2, tuning=tuned(SPECIALISED), **options)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("pool_dtype", [None, torch.float8_e4m3fn])
def test_specialised_warps_where_the_types_fit(dtype: torch.dtype, pool_dtype: torch.dtype | None) -> None:
    shape = (32, 8, 128)
    case = draw(ROWS[3], shape, dtype=dtype, pool_dtype=pool_dtype)
    check(case, shape, 2e-2, tuning=tuned(SPECIALISED))


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("rows", "room"), [([(90, 300), (7, 40), (1, 60)], 2048), ([(200, 9000), (3, 3)], 512), ([(32, 32)] * 4, 128)]
)
def test_room_that_is_nobodys_changes_nothing(rows: list[tuple[int, int]], room: int) -> None:
    shape = (32, 8, 128)
    case = draw(rows, shape, dtype=torch.bfloat16)
    attention = TritonAttention(*shape, max_rows=8, device=DEVICE, dtype=torch.bfloat16, tuning=tuned(SPECIALISED))
    tokens = case.batch.query_starts_R1.tolist()[case.batch.extends]
    decoding = len(rows) - case.batch.extends
    q_THD = torch.full((room + 4, *case.q_THD.shape[1:]), float("nan"), device=DEVICE, dtype=torch.bfloat16)
    q_THD[:tokens] = case.q_THD[:tokens]
    q_THD[room : room + decoding] = case.q_THD[tokens:]
    plan = attention.plan(padded(case, room, 6, 4))
    expected = wanted(case, attention.scale)
    for _ in range(2):
        result = attention.attend(q_THD, 0, case.pool, plan)
        told = torch.cat((result[:tokens], result[room : room + decoding]))
        torch.testing.assert_close(told.double(), expected, rtol=0, atol=2e-2)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("kv_dtype", [None, torch.bfloat16, torch.float8_e4m3fn])
def test_whole_prompts_are_a_library_s_only_where_warps_are_not_specialised(kv_dtype: torch.dtype | None) -> None:
    attention = TritonAttention(
        32, 8, 128, max_rows=1, device=DEVICE, dtype=torch.bfloat16, kv_dtype=kv_dtype, extend="auto"
    )
    alike = kv_dtype in {None, torch.bfloat16}
    ours = alike and can_specialise(DEVICE, torch.bfloat16, 128)
    plan = attention.plan(draw([(2048, 2048)], (32, 8, 128), dtype=torch.bfloat16).batch)
    assert isinstance(plan.extends, Tiles if ours else FlashPlan)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
def test_a_captured_step_is_right_again_and_again() -> None:
    """Programs count the tiles that they take, and leave the counts as they were."""
    shape = (32, 8, 128)
    case: Case = draw(ROWS[3], shape, dtype=torch.bfloat16)
    attention = TritonAttention(*shape, max_rows=8, device=DEVICE, dtype=torch.bfloat16, tuning=tuned(SPECIALISED))
    attention.attend(case.q_THD, 0, case.pool, attention.plan(case.batch))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out_THD = attention.attend(case.q_THD, 0, case.pool, attention.plan(case.batch))
    for _ in range(3):
        case.q_THD.normal_()
        graph.replay()
        torch.testing.assert_close(out_THD.double(), wanted(case, attention.scale), rtol=0, atol=2e-2)
