"""Rows that extend by a library's kernel: what it is given, and on a GPU what it gives."""

from __future__ import annotations

import pytest
import torch

from ..triton_device import DEVICE, GPU

pytest.importorskip("triton")

from callboard.kernels.attention.flash_extend import CUDNN_STEP, can_cudnn, can_flash, gather, plan_flash
from callboard.kernels.attention.triton_attention import TritonAttention

from .triton_cases import check, draw

ROWS = [(3, 30), (9, 9), (1, 5), (1, 40)]


@pytest.mark.parametrize("lines", [True, False])
def test_keys_are_gathered_row_behind_row(lines: bool) -> None:
    case = draw(ROWS, (6, 3, 16), extends=3, lines=lines)
    plan = plan_flash(case.batch, whole=False)
    slots = [slot for table in case.tables[:3] for slot in table]
    assert plan.key_starts_R1.tolist() == [0, 30, 39, 44]
    assert torch.equal(gather(case.pool.entries[0], plan, torch.float32), case.pool.entries[0][slots])


def test_room_that_no_key_fills_repeats_the_last_one() -> None:
    case = draw([(5, 5), (CUDNN_STEP, CUDNN_STEP)], (1, 1, 16))
    gathered = gather(case.pool.entries[0], plan_flash(case.batch, whole=True), torch.float32)
    assert len(gathered) == 2 * CUDNN_STEP
    assert torch.equal(gathered[4:CUDNN_STEP], case.pool.entries[0][[case.tables[0][4]] * (CUDNN_STEP - 4)])
    assert torch.equal(gathered[CUDNN_STEP:], case.pool.entries[0][case.tables[1]])


@pytest.mark.parametrize(
    ("dtype", "head_dim", "soft_cap", "can"),
    [
        (torch.bfloat16, 128, 0.0, True),
        (torch.float16, 64, 0.0, True),
        (torch.float32, 128, 0.0, False),
        (torch.bfloat16, 20, 0.0, False),
        (torch.bfloat16, 512, 0.0, False),
        (torch.bfloat16, 128, 30.0, False),
    ],
)
def test_what_flash_attention_computes(dtype: torch.dtype, head_dim: int, soft_cap: float, can: bool) -> None:
    assert can_flash(dtype, head_dim, soft_cap) is can


@pytest.mark.parametrize(
    ("rows", "head_dim", "windows", "can"),
    [
        ([(64, 64), (32, 32), (1, 90)], 128, (), True),
        ([(64, 64), (32, 33)], 128, (), False),
        ([(64, 64), (31, 31)], 128, (), False),
        ([(64, 64)], 128, (0, 16), False),
        ([(64, 64)], 256, (), False),
    ],
)
def test_what_cudnn_is_asked_to(
    rows: list[tuple[int, int]], head_dim: int, windows: tuple[int, ...], can: bool
) -> None:
    assert can_cudnn(draw(rows, (1, 1, 16)).batch, head_dim, windows, shortest=32) is can


def test_what_no_library_computes_is_ours() -> None:
    attention = TritonAttention(2, 1, 16, max_rows=2, device=DEVICE, dtype=torch.float32, extend="cudnn")
    assert attention.extend == "triton"


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(ValueError, match="extend is 'fast'; it must be one of .*triton, flash, cudnn"):
        TritonAttention(2, 1, 16, max_rows=2, device=DEVICE, dtype=torch.bfloat16, extend="fast")  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("extend", ["flash", "cudnn"])
@pytest.mark.parametrize(
    "rows",
    [
        [(2048, 2048)] * 4,
        [(1024, 1024), (1500, 1500), (3000, 3000), (1, 700)],
        [(512, 8192), (1, 1), (77, 4000), (1, 50), (1, 9000)],
        [(8191, 8191)],
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(32, 8, 128), (16, 8, 128), (8, 8, 64)], ids=str)
def test_a_library_agrees(extend: str, rows: list[tuple[int, int]], shape: tuple[int, int, int]) -> None:
    ordered = sorted(rows, key=lambda row: row[0] == 1)
    case = draw(ordered, shape, dtype=torch.bfloat16, fused_qkv=True)
    check(case, shape, 2e-2, tuning=None, extend=extend)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
def test_a_library_keeps_to_windows() -> None:
    case = draw([(2000, 3000), (300, 300), (1, 4000)], (32, 8, 128), dtype=torch.bfloat16)
    check(case, (32, 8, 128), 2e-2, tuning=None, extend="flash", windows=(512,))
