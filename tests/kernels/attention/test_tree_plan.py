"""What groups are cut into: every row's every shared key is attended to once, within the room there is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.kernels.attention.row_groups import PackedGroups, RowGroups
from callboard.kernels.attention.tree_plan import HEADER, TreePlanner
from callboard.kernels.attention.tree_tuning import DeviceRates, TreeTile, TreeTuning

EAGER = DeviceRates(copy=1e9, cached=1.0, launch_ns=0.0, item_ns=0.0, part_ns=0.0)
TILES = (TreeTile(16, 16, 4, 2, 8, 1e9), TreeTile(128, 64, 4, 2, 3, 1e9))
LLAMA = TreePlanner(32, 8, 128, 2, TreeTuning())


def int32(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


def flat(groups: int, rows: int, keys: int) -> RowGroups:
    """Groups of so many rows, each on a prefix of its own."""
    return RowGroups(
        int32([rows * group for group in range(groups)]),
        int32([0] * groups),
        int32([keys] * groups),
        int32([rows] * groups),
        int32(list(range(groups * rows))),
    )


@st.composite
def trees(draw: st.DrawFn) -> tuple[RowGroups, int]:
    """Draw groups as a scheduler tells them, and how many rows decode."""
    rows = draw(st.integers(2, 40))
    order = draw(st.permutations(range(rows)))
    found: list[tuple[int, int, list[int]]] = []

    def split(members: list[int], start: int, depth: int) -> None:
        end = start + draw(st.integers(1, 500))
        found.append((start, end, members))
        if depth < 3 and len(members) > 3 and draw(st.booleans()):
            middle = draw(st.integers(2, len(members) - 2))
            split(members[:middle], end, depth + 1)
            split(members[middle:], end, depth + 1)

    cut = draw(st.integers(2, rows))
    split(order[:cut], 0, 0)
    if rows - cut > 2:
        split(order[cut:-1], 0, 0)
    groups = RowGroups(
        int32([members[0] + 100 for _, _, members in found]),
        int32([start for start, _, _ in found]),
        int32([end for _, end, _ in found]),
        int32([len(members) for _, _, members in found]),
        int32([row for _, _, members in found for row in members]),
    )
    return groups, rows


def seen(packed: PackedGroups, rows: int, heads_a_tile: int) -> list[list[int]]:
    """Follow the items as the kernel does: the keys that each row's parts hold, sorted; and check where parts lie."""
    words = packed.words_W
    assert len(words) <= packed.room
    items = words[HEADER + 3 * rows :][: 8 * int(words[0])].reshape(-1, 8)
    shared, first, count = words[HEADER : HEADER + 3 * rows].reshape(3, rows).tolist()
    keys: list[list[int]] = [[] for _ in range(rows)]
    places: list[list[int]] = [[] for _ in range(rows)]
    for _line, start, end, members, member_count, part, _, _ in items.tolist():
        assert end > start
        assert 0 < member_count <= heads_a_tile
        for member in range(member_count):
            row, place = words[members + 2 * member : members + 2 * member + 2].tolist()
            keys[row] += range(start, end)
            places[row].append(place + part)
    for row in range(rows):
        assert sorted(places[row]) == list(range(first[row], first[row] + count[row]))
        assert sorted(keys[row]) == list(range(shared[row]))
    taken = sorted(place for row in places for place in row)
    assert taken == list(range(len(taken))), "no two parts in one place"
    assert len(taken) <= TreePlanner.parts_at_most(rows)
    return keys


@settings(max_examples=60, deadline=None, derandomize=True)
@given(trees(), st.sampled_from(TILES), st.sampled_from([EAGER, DeviceRates(launch_ns=0.0), DeviceRates(copy=40.0)]))
def test_every_row_sees_each_shared_key_once(tree: tuple[RowGroups, int], tile: TreeTile, rates: DeviceRates) -> None:
    groups, rows = tree
    planner = TreePlanner(8, 2, 64, 2, TreeTuning((tile,), smallest_part=32, rates=rates))
    packed = planner.pack(groups, rows)
    if packed is None:
        assert rates is not EAGER
        return
    keys = seen(packed, rows, tile.lines // 4)
    if rates is EAGER:
        for start, end, count, ends in zip(
            groups.starts_N, groups.ends_N, groups.counts_N, groups.counts_N.cumsum(), strict=True
        ):
            for row in groups.members_M[ends - count : ends].tolist():
                assert set(range(start, end)) <= set(keys[row])


def test_sharing_little_is_left_to_the_rows() -> None:
    assert LLAMA.pack(flat(1, 4, 64), 4) is None, "launches cost more"
    assert LLAMA.pack(flat(1, 2, 500), 2) is None
    assert LLAMA.pack(flat(0, 2, 1), 2) is None


def test_sharing_much_is_not() -> None:
    for groups, rows, keys in ((4, 64, 8192), (32, 32, 2048), (1, 256, 4096), (64, 4, 4096)):
        packed = LLAMA.pack(flat(groups, rows, keys), groups * rows)
        assert packed is not None
        assert packed.saved_tokens == groups * (rows - 1) * keys


def test_a_group_that_does_not_pay_is_left_out_unless_one_inside_it_does() -> None:
    # Rows 0 to 31 share 4,096 keys behind 20 that rows 0 to 32 share; rows 33 and 34 share 10.
    groups = RowGroups(
        int32([0, 0, 33]),
        int32([0, 20, 0]),
        int32([20, 4116, 10]),
        int32([33, 32, 2]),
        int32([*range(33), *range(32), 33, 34]),
    )
    rates = replace(DeviceRates(), copy=500.0)  # a part that is merged costs more than 20 keys
    packed = TreePlanner(32, 8, 128, 2, TreeTuning(rates=rates)).pack(groups, 40)
    assert packed is not None
    shared = packed.words_W[HEADER : HEADER + 40].tolist()
    assert shared == [4116] * 32 + [20] + [0] * 7


def test_more_levels_than_there_is_room_for_are_cut_off_from_the_inside() -> None:
    levels = 12
    groups = RowGroups(
        int32([0] * levels),
        int32([100 * level for level in range(levels)]),
        int32([100 * level + 100 for level in range(levels)]),
        int32([8] * levels),
        int32(list(range(8)) * levels),
    )
    planner = TreePlanner(8, 2, 64, 2, TreeTuning(TILES, rates=EAGER))
    packed = planner.pack(groups, 8)
    assert packed is not None
    keys = seen(packed, 8, max(tile.lines for tile in TILES) // 4)
    assert [len(row) for row in keys] == [400] * 8


@pytest.mark.parametrize(("rows", "lines"), [(2, 16), (64, 128)])
def test_the_tile_fits_the_group(rows: int, lines: int) -> None:
    packed = LLAMA.pack(flat(1, rows, 100_000), rows)
    assert packed is not None
    assert LLAMA.tuning.tiles[packed.kind].lines == lines


def test_a_long_prefix_of_few_rows_is_spread_over_the_device() -> None:
    packed = LLAMA.pack(flat(1, 2, 100_000), 2)
    assert packed is not None
    assert 8 * int(packed.words_W[0]) >= 132


def test_heads_that_fit_no_tile_attend_alone() -> None:
    planner = TreePlanner(64, 1, 128, 2, TreeTuning((TILES[0],), rates=EAGER))
    assert planner.pack(flat(1, 8, 5000), 8) is None
