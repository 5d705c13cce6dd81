"""A padded step attends as the step itself does, whatever lies in the room that is nobody's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ..triton_device import DEVICE

pytest.importorskip("triton")

from callboard.kernels.attention.interface import AttentionBatch
from callboard.kernels.attention.reference import ReferenceAttention
from callboard.kernels.attention.triton_attention import TritonAttention
from callboard.kernels.attention.tuning import ExtendTile, Tuning

from .triton_cases import MIXED, ROW, SMALL, Case, draw, wanted

PARTS = ExtendTile(16, 16, smallest_part=8, few=2)
SPLIT = Tuning(decode=ROW, own=ROW, extend=PARTS, short=PARTS)


def padded(case: Case, room: int, extends: int, decodes: int) -> AttentionBatch:
    """Give each part of a batch more room; rows that are nobody's decode one key, nobody's too, or have no token."""
    batch = case.batch
    first, rows = batch.extends, len(batch.lengths)
    assert batch.rows_R is not None
    nobody = next(line for line in range(len(batch.table_RL)) if line not in batch.rows_R.tolist())
    batch.table_RL[nobody, 0] = len(case.pool.entries[0]) - 1

    def spread(values: list[int], fill: int) -> Tensor:
        filled = [*values[:first], *[fill] * (extends - first), *values[first:], *[fill] * (decodes - rows + first)]
        return torch.tensor(filled, dtype=torch.int32, device=DEVICE)

    starts = batch.query_starts_R1.tolist()[: first + 1]
    return replace(
        batch,
        query_lengths=[1] * (extends + decodes),
        lengths=[max(batch.lengths)] * (extends + decodes),
        rows_R=spread(batch.rows_R.tolist(), nobody),
        lengths_R=spread(batch.lengths, 1),
        starts_R1=torch.tensor([*starts, *[starts[-1]] * (extends - first)], dtype=torch.int32, device=DEVICE),
        extends=extends,
        room=room,
    )


@pytest.mark.parametrize(
    ("rows", "room", "extends", "decodes"),
    [
        (MIXED, 32, 4, 8),
        (MIXED, 25, 2, 4),  # no room is left
        ([(9, 9), (1, 60)], 64, 8, 1),
        ([(3, 90), (17, 40), (2, 2)], 40, 3, 0),
    ],
)
@pytest.mark.parametrize("tuning", [SMALL, SPLIT], ids=("whole", "in parts"))
def test_room_that_is_nobodys_changes_nothing(
    rows: list[tuple[int, int]], room: int, extends: int, decodes: int, tuning: Tuning
) -> None:
    shape = 6, 2, 24
    case = draw(rows, shape)
    attention = TritonAttention(*shape, max_rows=8, device=DEVICE, dtype=torch.float32, tuning=tuning)
    tokens = case.batch.query_starts_R1.tolist()[case.batch.extends]
    decoding = len(rows) - case.batch.extends
    q_THD = torch.full((room + decodes, *case.q_THD.shape[1:]), float("nan"), device=DEVICE)
    q_THD[:tokens] = case.q_THD[:tokens]
    q_THD[room : room + decoding] = case.q_THD[tokens:]
    plan = attention.plan(padded(case, room, extends, decodes))
    expected = wanted(case, attention.scale)
    for _ in range(2):  # the second time finds the scratch as the first one left it
        result = attention.attend(q_THD, 0, case.pool, plan)
        told = torch.cat((result[:tokens], result[room : room + decoding]))
        torch.testing.assert_close(told.double(), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("short", [False, True])
def test_room_for_short_extends_has_smaller_tiles(short: bool) -> None:
    shape = 4, 2, 16
    case = draw([(1, 60), (3, 200), (1, 9)], shape, extends=2)
    tuning = Tuning(decode=ROW, own=ROW, extend=ExtendTile(64, 16, programs=12), short=PARTS, few_tokens=0)
    attention = TritonAttention(*shape, max_rows=8, device=DEVICE, dtype=torch.float32, tuning=tuning)
    plan = attention.plan(replace(padded(case, 8, 4, 2), short=short))
    assert plan.tile.lines == (16 if short else 64)
    q_THD = torch.zeros(10, 4, 16, device=DEVICE)
    q_THD[:4], q_THD[8] = case.q_THD[:4], case.q_THD[4]
    result = attention.attend(q_THD, 0, case.pool, plan)
    told = torch.cat((result[:4], result[8:9]))
    torch.testing.assert_close(told.double(), wanted(case, attention.scale), rtol=0, atol=2e-5)


def test_the_lengths_of_a_padded_step_may_change_behind_its_plan() -> None:
    """A captured step is replayed so: the host's numbers are those of the first one."""
    shape = 4, 2, 16
    attention = TritonAttention(*shape, max_rows=8, device=DEVICE, dtype=torch.float32, tuning=SMALL)
    plans = []
    for rows in ([(5, 5), (1, 90)], [(12, 70), (7, 9), (1, 1), (1, 33)]):
        case = draw(rows, shape)
        batch = replace(padded(case, 32, 4, 4), lengths=[90] * 8)
        plans.append(attention.plan(batch))
        tokens = case.batch.query_starts_R1.tolist()[case.batch.extends]
        decoding = len(rows) - case.batch.extends
        q_THD = torch.zeros(36, 4, 16, device=DEVICE)
        q_THD[:tokens], q_THD[32 : 32 + decoding] = case.q_THD[:tokens], case.q_THD[tokens:]
        result = attention.attend(q_THD, 0, case.pool, plans[-1])
        told = torch.cat((result[:tokens], result[32 : 32 + decoding]))
        torch.testing.assert_close(told.double(), wanted(case, attention.scale), rtol=0, atol=2e-5)
    first, second = plans
    assert first.extends.parts_X8.shape == second.extends.parts_X8.shape
    assert first.items[0].items_W8.shape == second.items[0].items_W8.shape


def test_who_pads_says_so() -> None:
    assert TritonAttention.pads
    assert not ReferenceAttention.pads
