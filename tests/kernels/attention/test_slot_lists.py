"""Rows' slots are listed side by side, on a GPU or in Triton's interpreter."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ..triton_device import DEVICE

pytest.importorskip("triton")

from callboard.kernels.attention.slot_lists import list_slots

from .triton_cases import Case, draw

SHAPE = (1, 1, 16)


def check(case: Case, first: int, rows: int) -> None:
    """Hold a listing against one by hand, and see that it writes nowhere else."""
    tables = case.tables[first : first + rows]
    wanted = [slot for table in tables for slot in table]
    starts_R1 = torch.full((rows + 3,), -7, dtype=torch.int32, device=DEVICE)
    slots_N = torch.full((len(wanted) + 5,), -7, dtype=torch.int32, device=DEVICE)
    list_slots(case.batch, first, rows, starts_R1, slots_N)
    ends = torch.tensor([len(table) for table in tables]).cumsum(0).tolist()
    assert starts_R1.tolist() == [0, *ends, -7, -7]
    assert slots_N.tolist() == [*wanted, *[-7] * 5]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=9), seed=st.integers(0, 99), lines=st.booleans())
def test_any_rows_of_a_batch(lengths: list[int], seed: int, lines: bool) -> None:
    chance = random.Random(seed)
    first = chance.randrange(len(lengths))
    case = draw([(1, length) for length in lengths], SHAPE, seed, lines=lines)
    check(case, first, chance.randint(1, len(lengths) - first))


def test_a_row_longer_than_a_block_and_more_rows_than_one() -> None:
    check(draw([(1, 3), (1, 5000), (1, 1)], SHAPE), 0, 3)
    check(draw([(1, 1 + row % 3) for row in range(300)], SHAPE), 7, 290)


def test_the_device_knows_the_lengths_better_than_the_host() -> None:
    """A captured step is replayed with other lengths."""
    case = draw([(1, 30), (1, 7), (1, 45)], SHAPE)
    assert case.batch.lengths_R is not None
    case.batch.lengths_R.copy_(torch.tensor([12, 7, 3], dtype=torch.int32))
    tables = [table[:length] for table, length in zip(case.tables, (12, 7, 3), strict=True)]
    check(Case(case.pool, case.batch, case.q_THD, tables), 0, 3)
