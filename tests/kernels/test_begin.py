"""What rows begin with stands where steps read it: their cached slots, and how they are sampled."""

from __future__ import annotations

import random

import pytest
import torch

from .triton_device import DEVICE

pytest.importorskip("triton")

from callboard.kernels.fused import prefixes
from callboard.kernels.sampler.begin import write_parameters
from callboard.kernels.sampler.parameters import DeviceSampling


@pytest.mark.parametrize(("rows", "longest"), [(1, 1), (1, 40), (5, 33), (9, 100)])
def test_slots_reach_their_rows_and_no_other_place(rows: int, longest: int) -> None:
    generator = random.Random(rows)
    counts = [generator.randint(1, longest) for _ in range(rows - 1)] + [longest]
    lines = generator.sample(range(12), rows)
    slots = torch.randint(1, 1 << 30, (2 * longest + 3,), dtype=torch.int32)
    offsets = [generator.randint(0, len(slots) - count) for count in counts]
    tables_RL = torch.zeros(12, 128, dtype=torch.int32, device=DEVICE)
    sent = torch.cat((torch.zeros(3, dtype=torch.int32), torch.tensor([*counts, *lines, *offsets]), slots)).int()
    begun_3B, slots_S = sent.to(DEVICE)[3:].split((3 * rows, len(slots)))
    prefixes.write(tables_RL, begun_3B, slots_S, longest, block=16)
    wanted = torch.zeros(12, 128, dtype=torch.int32)
    for count, line, offset in zip(counts, lines, offsets, strict=True):
        wanted[line, :count] = slots[offset : offset + count]
    assert torch.equal(tables_RL.cpu(), wanted)


@pytest.mark.parametrize("rows", [1, 7, 20])
def test_parameters_reach_their_rows_with_all_their_bits(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    into = DeviceSampling.empty(24, DEVICE)
    lines = torch.randperm(24, generator=generator)[:rows].int()
    keys = torch.randint(-(1 << 63), (1 << 63) - 1, (rows,), generator=generator)
    temperature, top_p, min_p = torch.rand(3, rows, generator=generator).unbind(0)
    top_k = torch.randint(0, 1000, (rows,), generator=generator).int()
    parts = [keys.view(torch.int32), lines, *(part.view(torch.int32) for part in (temperature, top_k, top_p, min_p))]
    write_parameters(into, [part.to(DEVICE) for part in parts], block=8)
    others = torch.ones(24, dtype=torch.bool)
    others[lines.long()] = False
    for found, given, at_first in (
        (into.keys_R, keys, 0),
        (into.temperature_R, temperature, 0.0),
        (into.top_k_R, top_k, 0),
        (into.top_p_R, top_p, 1.0),
        (into.min_p_R, min_p, 0.0),
    ):
        assert torch.equal(found.cpu()[lines.long()], given)
        assert (found.cpu()[others] == at_first).all()
