"""A draw in C chooses what the draw in torch chooses, from what a mask allows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from callboard.kernels.masks import apply_bitmask
from callboard.kernels.native.draw import NativeDraw, native_draw
from callboard.kernels.sampling import Draw, Sorting, sample

CPU = torch.device("cpu")
ROWS = 12


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> NativeDraw:
    monkeypatch.delenv("CALLBOARD_NATIVE", raising=False)
    found = native_draw(CPU)
    if found is None:
        pytest.skip("native code cannot be compiled here")
    return found


def logits(vocabulary: int, seed: int) -> Tensor:
    return torch.randn(ROWS, vocabulary, generator=torch.Generator().manual_seed(seed)) * 4


def masked(logits_NV: Tensor, masks_RW: np.ndarray, lines_N: np.ndarray) -> Tensor:
    """Keep out with torch what the rows' masks forbid."""
    masked_NV = logits_NV.clone()
    apply_bitmask(masked_NV, torch.from_numpy(masks_RW[lines_N]))
    return torch.where(torch.from_numpy(lines_N < 0).unsqueeze(1), logits_NV, masked_NV)


def assert_agrees(
    native: NativeDraw,
    logits_NV: Tensor,
    masks_RW: np.ndarray,
    lines_N: np.ndarray,
    temperature: float,
    rng: np.random.Generator,
) -> None:
    """Hold what C chooses among the tokens that masks allow against what torch does, greatest logits too."""
    draw = Draw(None, torch.full((ROWS,), temperature)) if temperature else None
    uniform_N = rng.random(ROWS) if temperature else None
    tokens_N, best_N = native(logits_NV, draw, uniform_N, masks_RW, lines_N)
    wanted = sample(
        masked(logits_NV, masks_RW, lines_N), draw, None if uniform_N is None else torch.from_numpy(uniform_N)
    )
    assert torch.equal(best_N, wanted[1])
    assert torch.equal(tokens_N, wanted[0])


@pytest.mark.parametrize("vocabulary", [1, 7, 64, 65, 200, 4099])
@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 3.0])
def test_it_chooses_what_torch_chooses(native: NativeDraw, vocabulary: int, temperature: float) -> None:
    rng = np.random.default_rng(vocabulary)
    words = (vocabulary + 31) // 32
    for width in {max(1, words - 1), words, words + 1}:
        logits_NV = logits(vocabulary, width)
        masks_RW = rng.integers(-(2**31), 2**31 - 1, (20, width)).astype(np.int32) | 1
        lines_N = rng.integers(0, 20, ROWS).astype(np.int32)
        lines_N[::4] = -1
        assert_agrees(native, logits_NV, masks_RW, lines_N, temperature, rng)


@pytest.mark.parametrize("vocabulary", [63, 64, 65, 200, 4099])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_it_finds_the_few_tokens_that_a_mask_allows(native: NativeDraw, vocabulary: int, temperature: float) -> None:
    rng = np.random.default_rng(vocabulary)
    for width in (1, (vocabulary + 31) // 32, (vocabulary + 31) // 32 + 3):
        covered = min(vocabulary, 32 * width)
        bits_RV = np.zeros((ROWS, 32 * width), np.uint8)
        for row in range(ROWS):
            bits_RV[row, rng.choice(covered, 1 + row % 3, replace=False)] = 1
        masks_RW = np.packbits(bits_RV, axis=1, bitorder="little").view(np.int32)
        logits_NV, lines_N = logits(vocabulary, width), np.arange(ROWS, dtype=np.int32)
        assert_agrees(native, logits_NV, masks_RW, lines_N, temperature, rng)


def test_numbers_that_are_none_are_told_even_where_nothing_is_allowed(native: NativeDraw) -> None:
    logits_NV = torch.ones(1, 200)
    logits_NV[0, 130] = math.nan
    masks_RW = np.zeros((1, 7), np.int32)
    masks_RW[0, 0] = 1
    assert math.isnan(native(logits_NV, None, None, masks_RW, np.zeros(1, np.int32))[1][0])


def test_some_rows_draw_and_the_others_take_the_greatest(native: NativeDraw) -> None:
    logits_NV = logits(200, 0)
    draw = Draw(torch.tensor([1, 4, 9]), torch.tensor([0.5, 1.0, 2.0]))
    uniform_M = np.array([0.1, 0.5, 0.9])
    tokens_N, best_N = native(logits_NV, draw, uniform_M)
    wanted = sample(logits_NV, draw, torch.from_numpy(uniform_M))
    assert torch.equal(tokens_N, wanted[0])
    assert torch.equal(best_N, wanted[1])


def test_no_share_reaches_a_token_that_is_kept_out(native: NativeDraw) -> None:
    logits_NV = torch.zeros(2, 70)
    logits_NV[:, :3] = -math.inf
    logits_NV[:, 69] = -math.inf
    draw = Draw(None, torch.ones(2))
    tokens_N, _ = native(logits_NV, draw, np.array([0.0, 1.0 - 2.0**-32]))
    assert tokens_N.tolist() == [3, 68]


def test_equal_logits_give_the_first(native: NativeDraw) -> None:
    masks_RW = np.full((1, 7), ~1, np.int32)
    lines_N = np.array([-1, 0], np.int32)
    assert native(torch.ones(2, 200), None, None, masks_RW, lines_N)[0].tolist() == [0, 1]


def test_the_greatest_tells_that_a_token_means_nothing(native: NativeDraw) -> None:
    logits_NV = torch.ones(3, 40)
    logits_NV[0, 33] = math.nan
    masks_RW = np.zeros((1, 2), np.int32)
    _, best_N = native(logits_NV, Draw(None, torch.ones(3)), np.zeros(3), masks_RW, np.array([-1, 0, -1], np.int32))
    assert math.isnan(best_N[0])
    assert best_N[1:].tolist() == [-math.inf, 1.0]


def test_cuts_and_other_types_are_torchs(native: NativeDraw) -> None:
    logits_NV, ones = torch.ones(1, 8), torch.ones(1)
    assert native.takes(logits_NV, None)
    assert native.takes(logits_NV, Draw(None, ones))
    assert not native.takes(logits_NV.half(), None)
    assert not native.takes(logits_NV, Draw(None, ones, min_p_M=ones))
    assert not native.takes(logits_NV, Draw(None, ones, sorting=Sorting(None, torch.tensor([2]), ones.double(), 2)))


def test_native_code_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLBOARD_NATIVE", "0")
    assert native_draw(CPU) is None
