"""Adjusted rows are drawn from what torch's penalties, masks, bans and bias leave of their logits; others stay."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from callboard.kernels.masks import apply_bitmask
from callboard.kernels.sampling import penalize, subtracted

from .test_device_sampling import NEEDS_GPU, TUNING, VOCABULARY, is_right, parameters_of
from .triton_device import DEVICE, GPU

from callboard.kernels.sampler.adjustments import Adjustments, Edits, History, lay_edits  # isort: skip
from callboard.kernels.sampler.sampler import Sampler  # isort: skip

Row = dict[str, Any]


@dataclass
class Wish:
    """What one row wants done: tokens it had, how they count against it, bits of what is allowed, and edits."""

    strengths: tuple[float, float, float] | None = None
    output: list[int] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    mask: Tensor | None = None
    edits: dict[int, float] = field(default_factory=dict)


def history_of(wishes: dict[int, Wish], vocabulary: int) -> History:
    """Put each row's tokens on the line of its index; counts that nobody set are rubbish."""
    history = History.empty(max(wishes) + 1, vocabulary, torch.device("cpu"))
    history.counts_LV.fill_(-12345)
    for line, wish in wishes.items():
        seen = np.zeros(-(-vocabulary // 32) * 32, bool)
        for token in {*wish.output, *wish.prompt}:
            seen[token] = True
            history.counts_LV[line, token] = wish.output.count(token)
        history.seen_LW[line] = torch.from_numpy(np.packbits(seen, bitorder="little").view(np.int32))
        history.strengths_L3[line] = torch.tensor(wish.strengths or (0.0, 0.0, 1.0))
    return History(history.seen_LW.to(DEVICE), history.counts_LV.to(DEVICE), history.strengths_L3.to(DEVICE))


def adjustments_of(wishes: dict[int, Wish], position: int, sampler: Sampler, block: int) -> Adjustments:
    """Gather the wishes of rows, each given with its place among those that sample; a row's number is its place."""

    def lines(has: list[bool]) -> Tensor:
        numbers = np.cumsum(has) - 1
        return torch.from_numpy(np.where(has, numbers, -1).astype(np.int32)).to(DEVICE)

    places = torch.tensor(list(wishes), dtype=torch.int32, device=DEVICE)
    masks = [wish.mask for wish in wishes.values() if wish.mask is not None]
    edits = [wish.edits for wish in wishes.values() if wish.edits]
    laid = lay_edits([(np.array(list(e)), np.array(list(e.values()))) for e in edits], sampler.blocks, block)
    return Adjustments(
        places,
        places,
        torch.full_like(places, position),
        torch.tensor([p if w.strengths else -1 for p, w in wishes.items()], dtype=torch.int32, device=DEVICE),
        lines([wish.mask is not None for wish in wishes.values()]),
        lines([bool(wish.edits) for wish in wishes.values()]),
        history_of(wishes, sampler.vocabulary),
        torch.stack(masks).to(DEVICE),
        Edits.read(torch.from_numpy(laid).to(DEVICE), len(edits), sampler.blocks),
    )


def adjusted(logits_V: Tensor, wish: Wish) -> Tensor:
    """Adjust one row by torch, float32."""
    logits_1V, vocabulary = logits_V.float().clone().unsqueeze(0), len(logits_V)
    if wish.strengths:
        frequency, presence, repetition = (torch.tensor(strength) for strength in wish.strengths)
        counts = torch.bincount(torch.tensor(wish.output, dtype=torch.int64), minlength=vocabulary)
        seen = counts + torch.bincount(torch.tensor(wish.prompt, dtype=torch.int64), minlength=vocabulary) > 0
        penalize(logits_1V, subtracted(counts, frequency, presence), torch.where(seen, repetition, 1.0))
    if wish.mask is not None:
        apply_bitmask(logits_1V, wish.mask.unsqueeze(0))
    for token, value in wish.edits.items():
        logits_1V[0, token] += value
    return logits_1V[0]


def redraw(
    logits: Tensor, rows: list[Row], wishes: dict[int, Wish], position: int, *, cuts: bool
) -> tuple[list[int], Tensor, Adjustments]:
    """Draw all rows plainly, then the adjusted ones again; tokens, greatest logits, and what stands behind."""
    count, vocabulary = logits.shape
    sampler, parameters = Sampler(count, vocabulary, DEVICE, TUNING), parameters_of(rows)
    tokens = torch.full((count,), -7, dtype=torch.int32, device=DEVICE)
    best, last = torch.full((count,), 7.0e7, device=DEVICE), torch.full((count,), -7, device=DEVICE)
    adjustments = adjustments_of(wishes, position, sampler, TUNING.block)
    before = logits.nan_to_num()
    sampler.redraw(logits, adjustments, parameters, tokens, best, last, cuts=cuts)
    assert torch.equal(logits.nan_to_num(), before), "logits are only read"
    assert last.tolist() == tokens.tolist()
    return tokens.tolist(), best.cpu(), adjustments


def random_wishes(seed: int, vocabulary: int, count: int) -> dict[int, Wish]:
    """Make wishes of every kind and of all at once, for every second row."""
    numbers = np.random.default_rng(seed)

    def tokens(most: int) -> list[int]:
        return numbers.integers(0, vocabulary, int(numbers.integers(1, most))).tolist()

    def mask(words: int) -> Tensor:
        return torch.from_numpy(numbers.integers(-(2**31), 2**31, words).astype(np.int32))

    wishes: dict[int, Wish] = {}
    words = -(-vocabulary // 32) - 1  # tokens without a bit are kept out
    for number, place in enumerate(range(0, 2 * count, 2)):
        wish = wishes[place] = Wish()
        kind = number % 5
        if kind in (0, 4):
            wish.strengths = (0.5, -0.3, 1.4) if number < 5 else (0.0, 0.0, 0.6)
            wish.output, wish.prompt = tokens(60) * 2, tokens(30)
        if kind in (1, 4):
            wish.mask = mask(words)
        if kind in (2, 4):
            wish.edits = {token: float(numbers.normal() * 4) for token in tokens(40)}
        if kind in (3, 4):
            wish.edits |= dict.fromkeys(tokens(5), -torch.inf)
    return wishes


KINDS: list[Row] = [
    {},
    {"temperature": 0.9},
    {"temperature": 1.4, "top_k": 9},
    {"temperature": 1.0, "top_p": 0.7, "min_p": 0.02},
]


@pytest.mark.parametrize(
    ("dtype", "kind"), [*((torch.bfloat16, kind) for kind in KINDS), (torch.float32, KINDS[1])], ids=str
)
def test_adjusted_rows_draw_from_what_torch_leaves_and_others_are_untouched(dtype: torch.dtype, kind: Row) -> None:
    seed, count = torch.randint(1 << 30, ()).item(), 10 if GPU else 5
    vocabulary = VOCABULARY + 3  # no whole number of words
    cuts = len(kind) > 1
    wishes = random_wishes(int(seed), vocabulary, count)
    logits = (torch.randn(2 * count, vocabulary) * 3).to(dtype)
    rows = [kind] * (2 * count)
    tokens, best, adjustments = redraw(logits.to(DEVICE), rows, wishes, 11, cuts=cuts)
    history = adjustments.history
    for place, token in enumerate(tokens):
        if place not in wishes:
            assert token == -7
            continue
        wish = wishes[place]
        wanted = adjusted(logits[place], wish)
        assert best[place].item() == pytest.approx(wanted.max().item(), rel=1e-6), f"seed {seed}, row {place}"
        assert is_right(token, wanted, kind, 11, place), f"seed {seed}, row {place}: {wish}"
        if wish.strengths:
            assert history.counts_LV[place, token].item() == wish.output.count(token) + 1
            assert (history.seen_LW[place, token // 32].item() >> (token % 32)) & 1


@pytest.mark.parametrize(
    "vocabulary", [*(pytest.param(size, marks=NEEDS_GPU) for size in (128_256, 151_936)), 130], ids=str
)
def test_a_whole_batch_of_wishes_leaves_each_row_its_own_greatest_logit(vocabulary: int) -> None:
    """Greedy, so that every token is compared; with the same greatest logit twice, either will do."""
    count = 128 if GPU else 6
    wishes = random_wishes(int(torch.randint(1 << 30, ()).item()), vocabulary, count)
    logits = torch.randn(2 * count, vocabulary).mul_(3).bfloat16()
    tokens, best, _ = redraw(logits.to(DEVICE), [{}] * (2 * count), wishes, 5, cuts=False)
    for place, wish in wishes.items():
        wanted = adjusted(logits[place], wish)
        assert best[place].item() == pytest.approx(wanted.max().item(), rel=1e-6)
        assert wanted[tokens[place]].item() == pytest.approx(wanted.max().item(), rel=1e-6)


def test_a_rows_new_token_counts_against_it_the_next_time() -> None:
    logits = torch.zeros(1, VOCABULARY, device=DEVICE)
    logits[0, 31] = logits[0, 32] = logits[0, 7] = 1.0
    wishes = {0: Wish((0.5, 0.0, 1.0), [], [31], torch.full((VOCABULARY // 32 + 1,), -1), {7: -1.0})}
    sampler, parameters = Sampler(1, VOCABULARY, DEVICE, TUNING), parameters_of([{}])
    adjustments = adjustments_of(wishes, 0, sampler, TUNING.block)
    tokens, last = torch.zeros(2, 1, dtype=torch.int32, device=DEVICE)
    best = torch.zeros(1, device=DEVICE)
    told = []
    for _ in range(6):
        sampler.redraw(logits, adjustments, parameters, tokens, best, last, cuts=False)
        told.append(tokens.item())
    assert told == [31, 32, 31, 32, 0, 1]


def test_a_mask_that_leaves_nothing_and_logits_that_are_not_numbers_show() -> None:
    logits = torch.randn(3, VOCABULARY, device=DEVICE)
    logits[1, 5] = torch.nan
    nothing, all_of_it = torch.zeros(VOCABULARY // 32 + 1, dtype=torch.int32), None
    wishes = {0: Wish(mask=nothing), 1: Wish(mask=all_of_it, edits={9: 1.0}), 2: Wish(edits={9: 100.0})}
    for row in KINDS[1:3]:
        tokens, best, _ = redraw(logits, [row] * 3, wishes, 2, cuts=len(row) > 1)
        assert best[0].item() == -torch.inf
        assert best[1].isnan()
        assert tokens[2] == 9
        assert all(0 <= token < VOCABULARY for token in tokens)


def test_edits_are_laid_out_by_row_and_block() -> None:
    rows = [(np.array([70, 3, 31]), np.array([1.0, 2.0, 3.0])), (np.array([32]), np.array([-np.inf]))]
    edits = Edits.read(torch.from_numpy(lay_edits(rows, 3, 32)), 2, 3)
    assert edits.starts_SC.tolist() == [[0, 2, 2, 3], [3, 3, 4, 4]]
    assert edits.tokens_E.tolist() == [3, 31, 70, 32]
    assert edits.values_E.tolist() == [2.0, 3.0, 1.0, -torch.inf]
