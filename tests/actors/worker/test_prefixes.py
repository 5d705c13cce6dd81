"""What rows begin with reaches the tables, and travels once however many rows share it."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.actors.worker.prefixes import Prefixes

from .driver import packed


def written(begun: list[tuple[int, list[int]]], prefixes: Prefixes) -> tuple[torch.Tensor, int]:
    """Begin rows of a table of 8 lines of 12, zeros; give it as it then is, and how many slots were sent."""
    for row, slots in begun:
        prefixes.add(row, packed(slots))
    told = prefixes.tell()
    tables_RL = torch.zeros(8, 12, dtype=torch.int32)
    told.write([torch.from_numpy(part.copy()) for part in told.parts], tables_RL)
    return tables_RL, len(told.parts[1])


def test_rows_that_begin_alike_send_their_slots_once() -> None:
    shared, other = list(range(100, 110)), [7, 8, 9]
    tables_RL, sent = written([(5, shared), (2, other), (0, shared), (3, shared)], Prefixes())
    assert sent == len(shared) + len(other)
    assert [tables_RL[row, :10].tolist() for row in (0, 3, 5)] == [shared] * 3
    assert tables_RL[2].tolist() == other + [0] * 9
    assert not tables_RL[[1, 4, 6, 7]].any()


def test_runs_that_only_end_alike_are_told_apart() -> None:
    """Joined branches bring the same length and the same last slot, and others between."""
    tables_RL, sent = written([(1, [1, 2, 9]), (0, [3, 4, 9])], Prefixes())
    assert sent == 6
    assert tables_RL[:2, :3].tolist() == [[3, 4, 9], [1, 2, 9]]


def test_what_was_sent_is_forgotten() -> None:
    prefixes = Prefixes()
    written([(1, [4, 5])], prefixes)
    tables_RL, sent = written([], prefixes)
    assert not sent
    assert not tables_RL.any()


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.dictionaries(st.integers(0, 7), st.lists(st.integers(1, 3), min_size=1, max_size=12), min_size=1))
def test_every_row_finds_its_own(begun: dict[int, list[int]]) -> None:
    tables_RL, _ = written(list(begun.items()), Prefixes())
    wanted = np.zeros((8, 12), np.int32)
    for row, slots in begun.items():
        wanted[row, : len(slots)] = slots
    np.testing.assert_array_equal(tables_RL.numpy(), wanted)
