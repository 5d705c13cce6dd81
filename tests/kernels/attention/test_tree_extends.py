"""New tokens of rows that share a prefix attend to it together and get what they would get alone."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ..triton_device import DEVICE, GPU

pytest.importorskip("triton")

from callboard.kernels.attention.reference import ReferenceAttention
from callboard.kernels.attention.row_groups import Groups, PackedGroups, RowGroups
from callboard.kernels.attention.tree_plan import TreePlanner
from callboard.kernels.attention.tree_tuning import TreeTile, TreeTuning
from callboard.kernels.attention.triton_attention import TritonAttention
from callboard.kernels.attention.tuning import ExtendTile, Tuning

from .tree_cases import EAGER, SMALL_TREE, Level, TreeCase, draw_tree
from .triton_cases import SMALL, Case, wanted

NESTED = (Level(21, (Level(16, (3, 20)), Level(37, (1, 2, Level(9, (4, 4)))), 5)), 30, Level(8, (1, 1, 1)))
SMALLER = (Level(21, (Level(16, (3, 5)), 2, 4)),)
FULL = 128  # lines of an extend's tile, as far as planning goes

own = st.integers(1, 12)
level = st.deferred(
    lambda: st.builds(Level, st.integers(1, 50), st.lists(own | level, min_size=2, max_size=4).map(tuple))
)


def int32(values: Any) -> np.ndarray:
    return np.array(list(values), np.int32)


def among(groups: RowGroups, rows: range) -> RowGroups:
    """Leave of groups what these rows share, numbered from the first of them."""
    left: list[tuple[int, int, int, list[int]]] = []
    ends_N = groups.counts_N.cumsum()
    for line, start, end, count, stop in zip(
        groups.lines_N, groups.starts_N, groups.ends_N, groups.counts_N, ends_N, strict=True
    ):
        members = [row - rows.start for row in groups.members_M[stop - count : stop].tolist() if row in rows]
        if len(members) > 1:
            left.append((line, start, end, members))
    return RowGroups(
        int32(line for line, *_ in left),
        int32(start for _, start, _, _ in left),
        int32(end for _, _, end, _ in left),
        int32(len(members) for *_, members in left),
        int32(row for *_, members in left for row in members),
    )


def on_device(packed: PackedGroups) -> Groups:
    """Hand groups over as a step does: in a part of a larger transfer."""
    words_W = np.concatenate((int32([7]), packed.words_W, int32([-(10**9)] * 3)))
    return Groups(torch.from_numpy(words_W).to(DEVICE)[1:], packed.kind, packed.parts)


def extended(tree: TreeCase, extends: int, most: int = 1 << 20, seed: int = 0) -> Case:
    """Let the first `extends` rows extend by some of their own keys, up to `most`; the others decode."""
    generator, batch = random.Random(seed), tree.case.batch
    shared = [0] * len(tree.case.tables)
    stops = tree.groups.counts_N.cumsum()
    for end, count, stop in zip(tree.groups.ends_N, tree.groups.counts_N, stops, strict=True):
        for row in tree.groups.members_M[stop - count : stop].tolist():
            shared[row] = int(end)
    queries = [
        min(most, generator.randint(1, length - known)) if row < extends else 1
        for row, (length, known) in enumerate(zip(batch.lengths, shared, strict=True))
    ]
    starts_R1 = torch.tensor([0, *np.cumsum(queries).tolist()], dtype=torch.int32)
    batch = replace(
        batch, query_starts_R1=starts_R1, query_lengths=queries, starts_R1=starts_R1.to(DEVICE), extends=extends
    )
    q_RHD = tree.case.q_THD
    q_THD = torch.randn(sum(queries), *q_RHD.shape[1:], device=DEVICE).to(q_RHD.dtype)
    return Case(tree.case.pool, batch, q_THD, tree.case.tables)


def packed_case(tree: TreeCase, case: Case, attention: TritonAttention) -> tuple[Case, PackedGroups | None]:
    """Pack the groups of the rows that extend, and of those that decode; gives the former."""
    batch, count = case.batch, case.batch.extends
    extends = attention.pack_extends(among(tree.groups, range(count)), int32(batch.query_lengths[:count]))
    rows = range(count, len(batch.lengths))
    decodes = attention.pack(among(tree.groups, rows), len(rows))
    batch = replace(
        batch,
        extend_groups=None if extends is None else on_device(extends),
        groups=None if decodes is None else on_device(decodes),
    )
    return replace(case, batch=batch), extends


def attention_for(
    tree: TreeCase, shape: tuple[int, int, int], tuning: TreeTuning, own_tuning: Tuning = SMALL, **options: Any
) -> TritonAttention:
    rows, dtype = len(tree.case.tables), tree.case.q_THD.dtype
    return TritonAttention(*shape, max_rows=rows, device=DEVICE, dtype=dtype, tuning=own_tuning, tree=tuning, **options)


def check(
    tree: TreeCase,
    shape: tuple[int, int, int],
    extends: int | None = None,
    tolerance: float = 2e-5,
    *,
    tuning: TreeTuning = SMALL_TREE,
    own_tuning: Tuning = SMALL,
    most: int = 1 << 20,
    pays: bool | None = True,
    **options: Any,
) -> None:
    """Compare with float64.  pays: whether anything must be taken together; None if either may be."""
    case = extended(tree, len(tree.case.tables) if extends is None else extends, most)
    attention = attention_for(tree, shape, tuning, own_tuning, **options)
    case, packed = packed_case(tree, case, attention)
    assert pays is None or (packed is not None) == pays
    plan = attention.plan(case.batch)
    expected = wanted(case, attention.scale, options.get("windows", (None,))[0], options.get("soft_cap"))
    for _ in range(2):
        result = attention.attend(case.q_THD, 0, case.pool, plan)
        torch.testing.assert_close(result.double(), expected, rtol=0, atol=tolerance)


@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    tops=st.lists(own | level, min_size=1, max_size=2).map(tuple),
    shape=st.sampled_from([(2, 2, 16), (4, 2, 16), (3, 1, 16), (14, 2, 8)]),
    seed=st.integers(0, 2**31),
    share=st.floats(0.3, 1.0),
    tile=st.sampled_from([TreeTile(16, 16, 4, 2, 3, 1e9), TreeTile(32, 16, 4, 2, 5, 1e9)]),
)
def test_random_trees(
    tops: tuple[Level | int, ...], shape: tuple[int, int, int], seed: int, share: float, tile: TreeTile
) -> None:
    tree = draw_tree(tops, shape, seed)
    extends = max(1, round(share * len(tree.case.tables)))
    tuning = TreeTuning((tile,), smallest_part=16, rates=EAGER)
    check(tree, shape, extends, tuning=tuning, pays=None)


@pytest.mark.parametrize(("shape", "most"), [((2, 2, 16), 4), ((4, 2, 32), 1), ((6, 1, 24), 4)], ids=str)
def test_short_extends_at_every_level(shape: tuple[int, int, int], most: int) -> None:
    tuning = TreeTuning((TreeTile(32, 16, 4, 2, 3, 1e9),), smallest_part=16, rates=EAGER)
    check(draw_tree(NESTED, shape), shape, tuning=tuning, most=most)


@pytest.mark.parametrize("extends", [5, 9])
def test_rows_that_decode_beside_them_have_groups_of_their_own(extends: int) -> None:
    check(draw_tree(NESTED, (4, 2, 16)), (4, 2, 16), extends, most=3, pays=None)


def test_own_keys_in_several_parts() -> None:
    """The tiles of a step are few: their own keys are spread over programs, and one of them takes the groups' parts."""
    tuning = Tuning(extend=(tile := ExtendTile(16, 16, programs=64, smallest_part=16)), short=tile)
    check(draw_tree((Level(64, (100, 90, 3, 1)),), (4, 2, 16)), (4, 2, 16), own_tuning=tuning, most=3)


def test_a_prefix_in_several_parts() -> None:
    tuning = TreeTuning((TreeTile(16, 16, 4, 2, 60, 1e9),), smallest_part=16, rates=EAGER)
    check(draw_tree((Level(200, (3, 2, 5)),), (2, 2, 16)), (2, 2, 16), tuning=tuning)


@pytest.mark.parametrize("options", [{"soft_cap": 0.5}, {"windows": (30, None)}, {"windows": (None, 30)}], ids=str)
def test_soft_caps_and_windows(options: dict[str, Any]) -> None:
    """A layer with a window attends alone, whatever another layer does."""
    check(draw_tree(SMALLER, (4, 2, 16)), (4, 2, 16), most=3, **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_its_digits(dtype: torch.dtype) -> None:
    check(draw_tree(SMALLER, (4, 2, 16), dtype=dtype), (4, 2, 16), tolerance=2e-2, most=3)


def test_the_reference_attends_alone_and_agrees() -> None:
    tree = draw_tree(NESTED, (4, 2, 16))
    case = extended(tree, len(tree.case.tables), 3)
    attention = attention_for(tree, (4, 2, 16), SMALL_TREE)
    case, _ = packed_case(tree, case, attention)
    reference = ReferenceAttention(4, 2, 16)
    assert reference.pack_extends(tree.groups, int32([])) is None
    lines = case.batch.rows_R
    assert lines is not None
    plain = replace(case.batch, table_RL=case.batch.table_RL[lines], rows_R=None)
    alone = reference.attend(case.q_THD, 0, case.pool, reference.plan(plain))
    together = attention.attend(case.q_THD, 0, case.pool, attention.plan(case.batch))
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


# --- what pays -----------------------------------------------------------------------------------------------------


def pays(heads: int, rows: int, queries: int, prefix: int) -> bool:
    planner = TreePlanner(heads, 8, 128, 2, TreeTuning(), FULL)
    groups = RowGroups(int32([0]), int32([0]), int32([prefix]), int32([rows]), int32(range(rows)))
    return planner.pack_extends(groups, int32([queries] * rows)) is not None


@pytest.mark.parametrize(
    ("heads", "queries", "wanted"), [(32, 1, True), (32, 8, True), (32, 32, False), (16, 32, True), (16, 64, False)]
)
def test_only_rows_whose_tiles_are_not_full_save_anything(heads: int, queries: int, wanted: bool) -> None:
    assert pays(heads, 64, queries, 8192) == wanted


def test_a_short_prefix_is_left_to_the_rows() -> None:
    assert not pays(32, 2, 4, 64)


def test_what_the_step_must_know_of_them() -> None:
    """Two rows share 100 keys, a third has 40 of its own; tokens are as many as the extends bring."""
    planner = TreePlanner(4, 2, 16, 4, SMALL_TREE, FULL)
    groups = RowGroups(int32([0]), int32([0]), int32([100]), int32([2]), int32([2, 0]))
    packed = planner.pack_extends(groups, int32([3, 2, 1]))
    assert packed is not None
    shared, _, merged = packed.words_W[4 : 4 + 18].reshape(3, 6)
    assert shared.tolist() == [100, 100, 100, 0, 0, 100]
    assert packed.parts == merged.sum()


def test_groups_leave_no_more_parts_than_there_is_room_for() -> None:
    """A part of 64 heads of 128 is 32 KiB, so there may be 8,192; the second group's 4,800 tokens find no room."""
    planner = TreePlanner(64, 8, 128, 2, TreeTuning(), FULL)
    groups = RowGroups(int32([0, 600]), int32([0, 0]), int32([8000] * 2), int32([600] * 2), int32(range(1200)))
    packed = planner.pack_extends(groups, int32([8] * 1200))
    assert packed is not None
    assert packed.parts == 4800


# --- on a GPU ------------------------------------------------------------------------------------------------------

BIG: list[tuple[tuple[Level | int, ...], int]] = [
    ((Level(8192, (32,) * 64),), 32),
    ((Level(8192, (4,) * 64), Level(3000, (9,) * 33), 900), 4),
    ((Level(1000, (Level(5000, (3,) * 5), Level(77, tuple(range(1, 60))))),), 8),
    (tuple(Level(512, (40, 50, 60, 70)) for _ in range(40)), 16),
]


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize(("tops", "most"), BIG, ids=range(len(BIG)))
@pytest.mark.parametrize("shape", [(32, 8, 128), (16, 8, 128), (28, 4, 128), (8, 8, 64)], ids=str)
@pytest.mark.parametrize("tile", TreeTuning().tiles, ids=lambda tile: f"{tile.lines} lines")
def test_long_prefixes_in_bfloat16(
    tops: tuple[Level | int, ...], most: int, shape: tuple[int, int, int], tile: TreeTile
) -> None:
    tree = draw_tree(tops, shape, dtype=torch.bfloat16)
    tuning = TreeTuning((tile,), rates=EAGER)
    check(tree, shape, None, 2e-2, tuning=tuning, own_tuning=Tuning(), most=most, pays=None)
