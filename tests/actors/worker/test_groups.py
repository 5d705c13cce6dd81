"""Rows that the scheduler says attend together get the same tokens, and what they share is read once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from callboard.actors.messages import Extend, Step
from callboard.actors.sampling import SamplingParams
from callboard.actors.worker.groups import GroupPacker, read_groups
from callboard.actors.worker.kv_reads import KVReads
from callboard.kernels.attention.interface import Attention
from callboard.kernels.attention.reference import ReferenceAttention
from callboard.kernels.attention.row_groups import PackedGroups, RowGroups
from callboard.kernels.kv_pool import KVPool

from ...kernels.triton_device import DEVICE, GPU
from .driver import Driver, packed, read

GREEDY = SamplingParams(temperature=0.0, max_new_tokens=8)
# Rows 6 4 1 share [0, 20), of these 6 and 4 share [20, 31); rows 3 and 0 share [0, 9).
GROUPS = packed([6, 0, 20, 3, 6, 4, 1, 6, 20, 31, 2, 6, 4, 3, 0, 9, 2, 3, 0])


def test_groups_are_read_as_the_step_tells_them() -> None:
    numbers = np.full(8, -1, np.int32)
    groups = read_groups(GROUPS, np.array([0, 1, 3, 4, 6], np.int32), numbers)
    assert groups.lines_N.tolist() == [6, 6, 3]
    assert groups.starts_N.tolist() == [0, 20, 0]
    assert groups.ends_N.tolist() == [20, 31, 9]
    assert groups.counts_N.tolist() == [3, 2, 2]
    assert groups.members_M.tolist() == [4, 3, 1, 4, 3, 2, 0], "numbers among the decoding rows"
    assert (numbers == -1).all()


class CountingAttention(ReferenceAttention):
    """Packs groups into as many words as they have rows, and counts how often."""

    packs = 0

    def pack(self, groups: RowGroups, rows: int) -> PackedGroups | None:
        self.packs += 1
        return PackedGroups(groups.members_M, rows, 0, self.packs)


def test_groups_are_packed_anew_only_if_they_or_their_rows_change() -> None:
    attention = CountingAttention(2, 1, 4)
    packer = GroupPacker(attention, 8)
    step = Step(1, decode_rows=packed([0, 1, 3, 4, 6]), groups=GROUPS)
    first = packer.pack(step, 6)
    assert packer.pack(msgspec.structs.replace(step, number=2), 6) is first
    assert packer.pack(msgspec.structs.replace(step, groups=b""), 6) is None
    assert packer.pack(step, 6) is first
    assert attention.packs == 1
    assert packer.pack(step, 8) is not first
    other = packer.pack(msgspec.structs.replace(step, decode_rows=packed([6, 4, 3, 1, 0])), 8)
    assert other is not None
    assert other.words_W.tolist() == [0, 1, 3, 0, 1, 2, 4]


def test_groups_of_extends_are_packed_with_what_they_bring() -> None:
    seen: list[tuple[list[int], list[int]]] = []

    class Attention(ReferenceAttention):
        def pack_extends(self, groups: RowGroups, queries_R: np.ndarray) -> PackedGroups | None:
            seen.append((groups.members_M.tolist(), queries_R.tolist()))
            return None

    extends = tuple(
        Extend(row, start, packed([7] * count), packed([0] * count), True)
        for row, start, count in ((4, 20, 2), (5, 0, 9), (1, 22, 1))
    )
    packer = GroupPacker(Attention(2, 1, 4), 8)
    assert packer.pack_extends(Step(1, extends)) is None
    assert packer.pack_extends(Step(1, extends, extend_groups=packed([4, 0, 20, 2, 4, 1]))) is None
    assert seen == [([0, 2], [2, 9, 1])]


def test_an_attention_that_packs_nothing_lets_rows_attend_alone() -> None:
    packer = GroupPacker(ReferenceAttention(2, 1, 4), 8)
    assert packer.pack(Step(1, decode_rows=packed([0, 1, 3, 4, 6]), groups=GROUPS), 6) is None


def test_reads_are_counted_with_and_without_sharing() -> None:
    pool = KVPool(layers=3, slots=9, kv_heads=2, head_dim=8, dtype=torch.float32, device=torch.device("cpu"))
    slot_bytes = 2 * 2 * 8 * 4
    reads = KVReads(pool, (None, 10, None))
    reads.count(np.array([100, 50, 4]), 30)
    reads.count(np.array([], np.int64), 0)
    unshared = 2 * 154 + 24
    assert reads.statistics() == {
        "kv_bytes_read": (unshared - 2 * 30) * slot_bytes,
        "kv_bytes_unshared": unshared * slot_bytes,
    }


@dataclass
class Branches:
    """Six rows on three prompts: rows 6 4 1 and 3 0 as GROUPS says, row 2 alone, row 5 comes later."""

    driver: Driver

    def begin(self, *, together: bool) -> list[int]:
        driver = self.driver
        prompts = driver.extend(6, list(range(1, 40)), GREEDY), driver.extend(3, list(range(100, 112)), GREEDY)
        told = read(driver.step(*prompts).tokens)
        slots = driver.slots
        step = driver.make(
            driver.extend(4, [7, 8], GREEDY, start=31, prefix_slots=slots[6][:31]),
            driver.extend(1, [9], GREEDY, start=20, prefix_slots=slots[6][:20]),
            driver.extend(0, [10, 11, 12], GREEDY, start=9, prefix_slots=slots[3][:9]),
            driver.extend(2, [13, 14], GREEDY),
        )
        if together:
            step = msgspec.structs.replace(step, extend_groups=packed([4, 0, 20, 2, 4, 1]))
        told += read(driver.runner.run(step).tokens)
        return told

    def decode(self, groups: bytes, *, extends: bool = False) -> list[int]:
        driver = self.driver
        begun = (driver.extend(5, [21, 22, 23], GREEDY),) if extends else ()
        step = driver.make(*begun, decode=(0, 1, 2, 3, 4, 6))
        return read(driver.runner.run(msgspec.structs.replace(step, groups=groups)).tokens)

    def tokens(self, groups: bytes) -> list[list[int]]:
        told = [self.begin(together=bool(groups)), self.decode(groups), self.decode(groups, extends=True)]
        return [*told, self.decode(b""), self.decode(groups)]


def make_driver(folder: Path, *, tile_programs: int = 3, capture: bool = False) -> Driver:
    """Make a driver of the GPU's runner over our attention, for which every group pays."""
    pytest.importorskip("triton")
    from callboard.actors.worker.device_draw import DeviceDraw
    from callboard.actors.worker.device_runner import DeviceRunner
    from callboard.actors.worker.rows import Rows
    from callboard.kernels.attention.tree_tuning import DeviceRates, TreeTile, TreeTuning
    from callboard.kernels.attention.triton_attention import TritonAttention
    from callboard.kernels.attention.tuning import DecodeTile, ExtendTile, Tuning
    from callboard.models.loader import load

    model = load(folder, device=DEVICE, dtype=torch.float32)
    config = model.config
    shape = config.heads, config.kv_heads, config.head_dim
    pool = KVPool(
        layers=config.layers,
        slots=512,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        dtype=torch.float32,
        device=DEVICE,
    )
    for entries in pool.entries:
        entries.fill_(float("nan"))  # a slot that is read before it is written shows
        entries[-1] = 0.0
    rows = Rows(8, 256, config.vocabulary, DEVICE, staged=True)
    rates = DeviceRates(copy=1e9, cached=1.0, launch_ns=0.0, item_ns=0.0, part_ns=0.0)
    tile = TreeTile(lines=16, keys=16, warps=4, stages=2, programs=tile_programs, products=1e9)
    alone, extend = DecodeTile(keys=16, programs=12, smallest_part=16), ExtendTile(16, 16, programs=12)
    attention: Attention = TritonAttention(
        *shape,
        max_rows=8,
        device=DEVICE,
        dtype=torch.float32,
        tuning=Tuning(decode=alone, own=alone, extend=extend, short=extend),
        tree=TreeTuning((tile,), smallest_part=16, rates=rates),
    )
    return Driver(DeviceRunner(model, pool, attention, rows, draw=DeviceDraw(rows), capture=capture))


def test_the_same_tokens_with_and_without_groups(tiny: Path, driver: Driver) -> None:
    wanted = Branches(driver).tokens(b"")
    with torch.inference_mode():
        branches = Branches(make_driver(tiny))
        assert branches.tokens(GROUPS) == wanted
    runner = branches.driver.runner
    told, entries = runner.statistics(), runner._pool.entries
    # Of 4 steps, 3 had groups: rows 6 4 1 read 20 keys once, 6 and 4 another 11, 3 and 0 another 9.
    saved_tokens = 3 * (2 * 20 + 11 + 9)
    assert told["kv_bytes_unshared"] - told["kv_bytes_read"] == saved_tokens * len(entries) * entries[0][:1].nbytes


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
def test_the_same_tokens_with_and_without_groups_in_graphs(tiny: Path, driver: Driver) -> None:
    wanted = Branches(driver).tokens(b"")
    with torch.inference_mode():
        branches = Branches(make_driver(tiny, capture=True))
        assert branches.tokens(GROUPS) == wanted
        assert branches.decode(GROUPS), "a graph that is replayed"
    assert branches.driver.runner.statistics()["graphs"] == 2, "of six rows, with groups and without"
