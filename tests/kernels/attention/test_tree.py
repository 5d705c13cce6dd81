"""Rows that attend to a shared prefix together get what each would get alone, on a GPU or in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ..triton_device import DEVICE, GPU

pytest.importorskip("triton")

from callboard.kernels.attention.row_groups import Groups
from callboard.kernels.attention.tree_launch import can_specialise
from callboard.kernels.attention.tree_tuning import TreeTile, TreeTuning
from callboard.kernels.attention.triton_attention import TritonAttention
from callboard.kernels.attention.tuning import DecodeTile, Tuning

from .tree_cases import EAGER, Level, attention_for, check_tree, draw_tree, packed_batch, together
from .triton_cases import Case, wanted

FLAT = (Level(40, (3, 20, 1, 5)),)
NESTED = (Level(21, (Level(16, (3, 20)), Level(37, (1, 2, Level(9, (4, 4)))), 5)), 30, Level(8, (1, 1, 1)))

own = st.integers(1, 20)
level = st.deferred(
    lambda: st.builds(Level, st.integers(1, 50), st.lists(own | level, min_size=2, max_size=4).map(tuple))
)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    tops=st.lists(own | level, min_size=1, max_size=2).map(tuple),
    shape=st.sampled_from([(2, 2, 16), (4, 2, 16), (3, 1, 16), (14, 2, 8)]),
    seed=st.integers(0, 2**31),
    tile=st.sampled_from([TreeTile(16, 16, 4, 2, 3, 1e9), TreeTile(32, 16, 4, 2, 5, 1e9)]),
)
def test_random_trees(tops: tuple[Level | int, ...], shape: tuple[int, int, int], seed: int, tile: TreeTile) -> None:
    if any(isinstance(top, Level) and len(top.below) > 1 for top in tops):
        tree = draw_tree(tops, shape, seed)
        if len(tree.groups.members_M) <= 4 * len(tree.case.tables):
            check_tree(tree, shape, tuning=TreeTuning((tile,), smallest_part=16, rates=EAGER))


@pytest.mark.parametrize("shape", [(2, 2, 16), (4, 2, 32), (8, 1, 64), (6, 2, 24), (16, 1, 8)], ids=str)
def test_any_ratio_of_heads_and_any_width(shape: tuple[int, int, int]) -> None:
    lines = max(16, 4 * shape[0] // shape[1])
    tuning = TreeTuning((TreeTile(lines, 16, 4, 2, 3, 1e9),), smallest_part=16, rates=EAGER)
    check_tree(draw_tree(NESTED, shape), shape, tuning=tuning)


def test_own_keys_in_several_parts() -> None:
    tuning = Tuning(own=DecodeTile(keys=16, programs=40, smallest_part=1))
    check_tree(draw_tree((Level(64, (100, 20, 3)),), (4, 2, 16)), (4, 2, 16), own_tuning=tuning)


def test_where_warps_cannot_be_specialised_the_other_kernel_does_the_work() -> None:
    tuning = TreeTuning((TreeTile(128, 16, 4, 2, 3, 1e9, specialised=True),), smallest_part=16, rates=EAGER)
    check_tree(draw_tree(FLAT, (4, 2, 16)), (4, 2, 16), tuning=tuning)


@pytest.mark.parametrize("programs", [1, 2, 7, 60])
def test_any_number_of_programs_does_the_work(programs: int) -> None:
    tuning = TreeTuning((TreeTile(16, 16, 4, 2, programs, 1e9),), smallest_part=16, rates=EAGER)
    check_tree(draw_tree(NESTED, (4, 2, 16)), (4, 2, 16), tuning=tuning)


def test_a_soft_cap_bends_scores() -> None:
    check_tree(draw_tree(NESTED, (4, 2, 16)), (4, 2, 16), soft_cap=0.5)


@pytest.mark.parametrize("window", [1, 30, 100])
def test_layers_with_a_window_attend_alone(window: int) -> None:
    """The layer that is tested has a window, another one has not."""
    check_tree(draw_tree(NESTED, (4, 2, 16)), (4, 2, 16), windows=(window, None))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_its_digits(dtype: torch.dtype) -> None:
    check_tree(draw_tree(NESTED, (4, 2, 16), dtype=dtype), (4, 2, 16), 2e-2)


def test_a_pool_of_float8() -> None:
    tree = draw_tree(NESTED, (4, 2, 16), dtype=torch.bfloat16, pool_dtype=torch.float8_e4m3fn)
    check_tree(tree, (4, 2, 16), 2e-2)


def test_padding_rows_are_in_no_group() -> None:
    tree = draw_tree(FLAT, (4, 2, 16), padding=3)
    check_tree(tree, (4, 2, 16))


def test_decoding_rows_of_a_step_that_extends_too() -> None:
    """Groups count decoding rows from 0, wherever they stand in the step."""
    shape = (4, 2, 16)
    tree = draw_tree(NESTED, shape)
    attention = attention_for(tree, shape, extra_rows=1)
    packed = attention.pack(tree.groups, len(tree.case.tables))
    assert packed is not None
    batch = packed_batch(tree, packed)
    assert batch.rows_R is not None
    assert batch.lengths_R is not None
    queries = 5
    rows = len(batch.lengths) + 1
    starts_R1 = torch.tensor([0, *range(queries, queries + rows)], dtype=torch.int32)
    mixed = replace(
        batch,
        query_starts_R1=starts_R1,
        query_lengths=[queries] + [1] * (rows - 1),
        lengths=[batch.lengths[0], *batch.lengths],
        rows_R=torch.cat((batch.rows_R[:1], batch.rows_R)),
        lengths_R=torch.cat((batch.lengths_R[:1], batch.lengths_R)),
        starts_R1=starts_R1.to(DEVICE),
        extends=1,
    )
    q_THD = torch.randn(queries + rows - 1, *shape[::2], device=DEVICE)
    result = attention.attend(q_THD, 0, tree.case.pool, attention.plan(mixed))
    case = Case(tree.case.pool, mixed, q_THD, [tree.case.tables[0], *tree.case.tables])
    torch.testing.assert_close(result.double(), wanted(case, attention.scale), rtol=0, atol=2e-5)


def test_where_every_layer_has_a_window_nothing_is_packed() -> None:
    tree = draw_tree(FLAT, (4, 2, 16))
    assert attention_for(tree, (4, 2, 16), windows=(30, 30)).pack(tree.groups, 4) is None


def test_without_tree_tuning_rows_attend_alone() -> None:
    tree = draw_tree(FLAT, (4, 2, 16))
    alone = TritonAttention(4, 2, 16, max_rows=4, device=DEVICE, dtype=torch.float32)
    assert attention_for(tree, (4, 2, 16)).pack(tree.groups, 4) is not None
    assert alone.pack(tree.groups, 4) is None
    assert alone.scratch_bytes < attention_for(tree, (4, 2, 16), own_tuning=Tuning()).scratch_bytes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lines": 24}, "lines is 24; it must be a power of two"),
        ({"keys": 8}, "a matrix unit's side is 16"),
        ({"programs": 0}, "programs is 0; they must be at least 1"),
        ({"specialised": True}, "it has 16 lines, 16 keys, 2 stages; one that is specialised has 128 lines"),
    ],
    ids=str,
)
def test_tiles_that_cannot_be_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TreeTile(**{"lines": 16, "keys": 16, "warps": 4, "stages": 2, "programs": 3, "products": 1e9, **arguments})


def test_wide_keys_are_taken_a_few_at_once() -> None:
    keys = [[tile.keys for tile in TreeTuning().narrowed(width).tiles] for width in (128, 256, 512, 1 << 20)]
    usual = [tile.keys for tile in TreeTuning().tiles]
    assert keys == [usual, usual, [each // 2 for each in usual], [16] * len(usual)]


def test_no_tiles_are_refused() -> None:
    with pytest.raises(ValueError, match=r"tiles is \(\); it must have at least one"):
        TreeTuning(())


BIG: list[tuple[Level | int, ...]] = [
    (Level(8192, (160,) * 64), Level(8000, (1,) * 33), 900),
    (Level(1000, (Level(5000, (3,) * 5), Level(77, tuple(range(1, 60))), Level(300, (Level(200, (9,) * 7), 4)))),),
    (Level(100_000, (5, 700)), 3),
    tuple(Level(512, (40, 50, 60, 70)) for _ in range(40)),
]


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("tops", BIG, ids=range(len(BIG)))
@pytest.mark.parametrize("shape", [(32, 8, 128), (16, 8, 128), (28, 4, 128), (8, 8, 64), (8, 4, 256)], ids=str)
@pytest.mark.parametrize("tile", TreeTuning().tiles, ids=lambda tile: f"{tile.lines} lines")
@pytest.mark.parametrize("options", [{}, {"soft_cap": 30.0}], ids=str)
def test_long_prefixes_in_bfloat16(
    tops: tuple[Level | int, ...], shape: tuple[int, int, int], tile: TreeTile, options: dict[str, Any]
) -> None:
    tree = draw_tree(tops, shape, dtype=torch.bfloat16)
    tuning = TreeTuning((tile,), rates=EAGER)
    check_tree(tree, shape, 2e-2, tuning, own_tuning=Tuning(), **options)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    tops=st.lists(own | level, min_size=1, max_size=6).map(tuple),
    shape=st.sampled_from([(32, 8, 128), (28, 4, 128), (8, 8, 64)]),
    seed=st.integers(0, 2**31),
    tile=st.sampled_from(TreeTuning().tiles),
)
def test_random_trees_in_bfloat16(
    tops: tuple[Level | int, ...], shape: tuple[int, int, int], seed: int, tile: TreeTile
) -> None:
    if any(isinstance(top, Level) and len(top.below) > 1 for top in tops):
        tree = draw_tree(tops, shape, seed, dtype=torch.bfloat16)
        check_tree(tree, shape, 2e-2, TreeTuning((tile,), rates=EAGER), own_tuning=Tuning())


# keys, stages, programs
SPECIALISED = [(128, 3, 132), (128, 2, 1), (64, 6, 7), (64, 3, 132)]
SHAPED = [((32, 8, 128), knobs) for knobs in SPECIALISED] + [
    (shape, SPECIALISED[0]) for shape in ((28, 4, 128), (8, 8, 64), (16, 1, 64))
]
SHORT: list[tuple[Level | int, ...]] = [
    (Level(1, (3, 9)), Level(2, (1,) * 70), 5),
    tuple(Level(keys, (4, 7, 9)) for keys in (63, 64, 65, 127, 128, 129, 255, 257, 300, 512, 513)),
    (Level(130, (Level(1, (2,) * 9), Level(500, (3,) * 40))),),
]


def specialised(keys: int, stages: int, programs: int) -> TreeTile:
    return TreeTile(128, keys, 8, stages, programs, 400e3, specialised=True)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("tops", [*BIG, *SHORT], ids=range(len(BIG) + len(SHORT)))
@pytest.mark.parametrize(("shape", "knobs"), SHAPED, ids=str)
def test_specialised_warps(
    tops: tuple[Level | int, ...], shape: tuple[int, int, int], knobs: tuple[int, int, int]
) -> None:
    """Tails of blocks, prefixes of a key, several items a program; slots that no row has hold NaN."""
    assert can_specialise(DEVICE, torch.bfloat16, shape[2]) == (torch.cuda.get_device_capability() == (9, 0))
    tree = draw_tree(tops, shape, dtype=torch.bfloat16)
    tuning = TreeTuning((specialised(*knobs),), rates=EAGER)
    check_tree(tree, shape, 2e-2, tuning, own_tuning=Tuning())


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
def test_specialised_warps_bend_scores() -> None:
    shape = (32, 8, 128)
    tuning = TreeTuning((specialised(*SPECIALISED[0]),), rates=EAGER)
    check_tree(draw_tree(BIG[1], shape, dtype=torch.bfloat16), shape, 2e-2, tuning, own_tuning=Tuning(), soft_cap=5.0)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("pool_dtype", [None, torch.float8_e4m3fn])
def test_specialised_warps_where_the_types_fit(dtype: torch.dtype, pool_dtype: torch.dtype | None) -> None:
    shape = (32, 8, 128)
    tree = draw_tree(BIG[3], shape, dtype=dtype, pool_dtype=pool_dtype)
    tuning = TreeTuning((specialised(*SPECIALISED[0]),), rates=EAGER)
    check_tree(tree, shape, 2e-2, tuning, own_tuning=Tuning())


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("special", [False, True])
def test_a_captured_step_is_right_for_other_groups(special: bool) -> None:
    shape = (32, 8, 128)
    trees = [draw_tree((Level(3000, (9,) * 40),), shape, 1, dtype=torch.bfloat16)]
    first = trees[0]
    tile = replace(TreeTuning().tiles[2], specialised=special)
    attention = attention_for(first, shape, TreeTuning((tile,), rates=EAGER), own_tuning=Tuning())
    packed = attention.pack(first.groups, 40)
    assert packed is not None
    words_W = torch.zeros(packed.room, dtype=torch.int32, device=DEVICE)
    batch = replace(packed_batch(first, packed), groups=Groups(words_W, packed.kind))
    words_W[: len(packed.words_W)] = torch.from_numpy(packed.words_W).to(DEVICE)
    attention.attend(first.case.q_THD, 0, first.case.pool, attention.plan(batch))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out_THD = attention.attend(first.case.q_THD, 0, first.case.pool, attention.plan(batch))
    inner = first.groups
    half = replace(inner, ends_N=inner.ends_N // 2)
    few = replace(inner, counts_N=inner.counts_N - 30, members_M=inner.members_M[:10])
    for groups in (half, few, inner):
        packed = attention.pack(groups, 40)
        assert packed is not None
        words_W[: len(packed.words_W)] = torch.from_numpy(packed.words_W).to(DEVICE)
        graph.replay()
        torch.testing.assert_close(out_THD.double(), wanted(first.case, attention.scale), rtol=0, atol=2e-2)


def test_groups_change_nothing_but_the_last_digits() -> None:
    tree = draw_tree(NESTED, (4, 2, 16))
    attention = attention_for(tree, (4, 2, 16))
    alone = attention.attend(tree.case.q_THD, 0, tree.case.pool, attention.plan(tree.case.batch))
    torch.testing.assert_close(together(tree, attention), alone, rtol=0, atol=1e-5)
