"""Our Triton attention gives what a loop over queries gives in float64, on a GPU or in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ..triton_device import DEVICE, GPU

pytest.importorskip("triton")

from callboard.kernels.attention.interface import AttentionBatch
from callboard.kernels.attention.reference import ReferenceAttention
from callboard.kernels.attention.triton_attention import TritonAttention
from callboard.kernels.attention.tuning import DecodeTile, ExtendTile, Tuning

from .triton_cases import MIXED, ROW, SMALL, Case, check, draw, wanted


@pytest.mark.parametrize("shape", [(2, 2, 16), (4, 2, 32), (8, 2, 16), (7, 1, 64), (6, 2, 24), (20, 1, 8)], ids=str)
def test_any_ratio_of_heads_and_any_width(shape: tuple[int, int, int]) -> None:
    check(draw(MIXED, shape), shape)


@pytest.mark.parametrize("window", [1, 7, 16, 40, 100])
def test_a_window_hides_what_lies_before_it(window: int) -> None:
    check(draw(MIXED, (4, 2, 16)), (4, 2, 16), windows=(window,))


@pytest.mark.parametrize("soft_cap", [0.5, 30.0])
def test_a_soft_cap_bends_scores(soft_cap: float) -> None:
    check(draw(MIXED, (4, 2, 16)), (4, 2, 16), soft_cap=soft_cap, scale=2.0)


@pytest.mark.parametrize("parts", range(1, 9))
def test_a_row_in_any_number_of_parts(parts: int) -> None:
    tuning = Tuning(decode=DecodeTile(keys=16, programs=parts, smallest_part=1))
    check(draw([(1, 16 * parts - 3)], (2, 1, 16), parts), (2, 1, 16), tuning=tuning)


def test_more_parts_than_are_merged_at_once() -> None:
    tuning = Tuning(decode=DecodeTile(keys=16, programs=40, smallest_part=1))
    check(draw([(1, 600), (1, 3)], (2, 1, 16)), (2, 1, 16), tuning=tuning)


@pytest.mark.parametrize("programs", [2, 6, 14, 60])
def test_a_program_may_have_parts_of_several_rows(programs: int) -> None:
    tuning = Tuning(decode=DecodeTile(keys=16, programs=programs, smallest_part=1))
    lengths = (1, 90, 16, 17, 240, 5, 64, 33, 15, 128)
    check(draw([(1, length) for length in lengths], (4, 2, 16)), (4, 2, 16), tuning=tuning)


@pytest.mark.parametrize("options", [{}, {"windows": (30,)}], ids=str)
@pytest.mark.parametrize("parts", [2, 4])
def test_few_tiles_of_many_keys_are_split_over_keys(parts: int, options: dict[str, Any]) -> None:
    tile = ExtendTile(16, 16, programs=2 * parts, smallest_part=20)
    tuning = Tuning(decode=ROW, own=ROW, extend=tile, short=tile)
    case = draw([(3, 90), (2, 5), (1, 50)], (6, 2, 24))
    attention = TritonAttention(6, 2, 24, max_rows=3, device=DEVICE, dtype=torch.float32, tuning=tuning)
    tiles_X8 = attention.plan(case.batch).extends.parts_X8
    assert tiles_X8[:, 5].max() == parts, "the long row's tile; the other is whole"
    assert tiles_X8[:, 5].tolist().count(1) == 1
    check(case, (6, 2, 24), tuning=tuning, **options)


@pytest.mark.parametrize("options", [{}, {"windows": (90,)}, {"soft_cap": 20.0}], ids=str)
@pytest.mark.parametrize("few", [1, 3])
@pytest.mark.parametrize("parts", [2, 4, 17, 20])
def test_tiles_in_many_parts_are_merged_apart(parts: int, few: int, options: dict[str, Any]) -> None:
    tile = ExtendTile(16, 16, programs=2 * parts, smallest_part=16, few=few)
    tuning = Tuning(decode=ROW, own=ROW, extend=tile, short=tile)
    case = draw([(3, 16 * parts), (1, 30)], (6, 2, 24))
    attention = TritonAttention(6, 2, 24, max_rows=3, device=DEVICE, dtype=torch.float32, tuning=tuning)
    tiles = attention.plan(case.batch).extends
    assert tiles.parts_X8[:, 5].max() == parts
    assert len(tiles.many_V8) == parts // few
    assert tiles.many_V8[:, 5].sum() == (parts if parts > few else 0)
    check(case, (6, 2, 24), tuning=tuning, **options)


def test_parts_are_no_more_than_shares_where_many_are_merged_apart() -> None:
    """Rows of a little more than a share each would else be twice as many programs as are resident at once."""
    tile = ExtendTile(16, 16, programs=16, smallest_part=16, few=1)
    tuning = Tuning(decode=ROW, own=ROW, extend=tile, short=tile)
    case = draw([*((2, 100 + row) for row in range(8)), (3, 400)], (4, 2, 16))
    attention = TritonAttention(4, 2, 16, max_rows=9, device=DEVICE, dtype=torch.float32, tuning=tuning)
    tiles = attention.plan(case.batch).extends
    assert sorted(tiles.parts_X8[tiles.parts_X8[:, 2] > 0][:, 5].tolist()) == [1] * 8 + [3] * 3
    check(case, (4, 2, 16), tuning=tuning)


def test_a_step_of_few_tokens_is_short_whatever_its_rows() -> None:
    shape = 4, 2, 16
    tuning = Tuning(decode=ROW, own=ROW, extend=ExtendTile(64, 16), short=ExtendTile(16, 16, few=1), few_tokens=30)
    for queries, lines in ((20, 16), (21, 64)):
        case = draw([(queries, 90), (10, 40)], shape)
        attention = TritonAttention(*shape, max_rows=2, device=DEVICE, dtype=torch.float32, tuning=tuning)
        assert attention.plan(case.batch).tile.lines == lines
        check(case, shape, tuning=tuning)


def test_a_tile_may_have_more_parts_than_programs_were_meant() -> None:
    """A joined row is as long as all others together, and brings few tokens."""
    tile = ExtendTile(16, 16, programs=16, smallest_part=16)
    tuning = Tuning(decode=ROW, own=ROW, extend=tile, short=tile)
    case = draw([*((2, 30) for _ in range(8)), (3, 400), (5, 61)], (4, 2, 16))
    check(case, (4, 2, 16), tuning=tuning)


SHORT = Tuning(
    decode=ROW,
    own=ROW,
    extend=ExtendTile(64, 16, programs=12),
    short=ExtendTile(16, 32, programs=12, few=1),
    few_tokens=0,
)


@pytest.mark.parametrize(("longest", "lines"), [(8, 16), (9, 64)])
@pytest.mark.parametrize("options", [{}, {"windows": (30,)}, {"soft_cap": 20.0}], ids=str)
def test_a_step_of_short_extends_has_smaller_tiles(longest: int, lines: int, options: dict[str, Any]) -> None:
    shape = 4, 2, 16
    case = draw([(2, 90), (longest, 400), (1, 300), (1, 5)], shape)
    attention = TritonAttention(*shape, max_rows=5, device=DEVICE, dtype=torch.float32, tuning=SHORT)
    assert attention.short_queries == 8
    assert attention.plan(case.batch).tile.lines == lines
    check(case, shape, tuning=SHORT, **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_its_digits(dtype: torch.dtype) -> None:
    check(draw(MIXED, (4, 2, 16), dtype=dtype), (4, 2, 16), 2e-2)


def test_a_pool_of_float8() -> None:
    case = draw(MIXED, (4, 2, 16), dtype=torch.bfloat16, pool_dtype=torch.float8_e4m3fn)
    check(case, (4, 2, 16), 2e-2)


def test_queries_may_be_a_part_of_the_fused_product() -> None:
    check(draw(MIXED, (4, 2, 16), fused_qkv=True), (4, 2, 16))


@pytest.mark.parametrize("extends", [0, 2, 3])
def test_without_rows_R_the_lines_are_the_rows(extends: int) -> None:
    rows = [(1, 12), (1, 40), (1, 19)] if extends != 2 else [(3, 12), (9, 40), (1, 19)]
    check(draw(rows, (4, 2, 16), extends=extends, lines=False), (4, 2, 16))


def test_the_scale_is_what_was_asked_for() -> None:
    check(draw(MIXED, (4, 2, 16)), (4, 2, 16), scale=0.9)


def test_it_agrees_with_the_reference() -> None:
    case = draw([(9, 30), (4, 4), (1, 50), (1, 2)], (4, 2, 16), lines=False)
    reference = ReferenceAttention(4, 2, 16)
    attention = TritonAttention(4, 2, 16, max_rows=4, device=DEVICE, dtype=torch.float32, tuning=SMALL)
    expected = reference.attend(case.q_THD, 0, case.pool, reference.plan(case.batch))
    result = attention.attend(case.q_THD, 0, case.pool, attention.plan(case.batch))
    torch.testing.assert_close(result, expected, rtol=0, atol=2e-5)


def test_padding_rows_read_the_dummy_slot_and_spoil_nothing() -> None:
    case = draw([(1, 30), (1, 1), (1, 1), (1, 45)], (4, 2, 16), lines=False)
    for row in (1, 2):
        case.tables[row] = [case.pool.dummy_slot]
        case.batch.table_RL[row, 0] = case.pool.dummy_slot
    case.pool.entries[0][case.pool.dummy_slot] = 0.0
    check(case, (4, 2, 16))


def test_what_lengths_R_says_goes_over_the_host() -> None:
    """A captured step is replayed with other lengths: the host's are an upper bound."""
    case = draw([(1, 30), (1, 7), (1, 45)], (4, 2, 16))
    bounded = AttentionBatch(
        case.batch.query_starts_R1,
        case.batch.query_lengths,
        [10**6] * 3,
        case.batch.table_RL,
        case.batch.slots_T,
        case.batch.positions_T,
        rows_R=case.batch.rows_R,
        lengths_R=case.batch.lengths_R,
    )
    check(Case(case.pool, bounded, case.q_THD, case.tables), (4, 2, 16))


def test_it_tells_its_scratch() -> None:
    attention = TritonAttention(4, 2, 16, max_rows=3, device=DEVICE, dtype=torch.float32, tuning=SMALL)
    items, tiles = 3 + 12 // 2, 2 * (12 // 2)
    rows = items * 4 * (16 + 1) * 4 + 3 * 2 * 4
    assert attention.scratch_bytes == rows + tiles * 2 * (16 * (16 + 1) * 4 + 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heads": 5}, r"heads is 5; it must be a multiple of kv_heads \(2\)"),
        ({"max_rows": 0}, "max_rows is 0; it must be at least 1"),
        ({"scale": -1.0}, r"scale is -1\.0; it must be above 0"),
        ({"windows": (None, 0)}, r"windows is \(None, 0\); each must be at least 1, or None"),
        ({"soft_cap": -1.0}, r"soft_cap is -1\.0; it must be above 0, or None"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"heads": 4, "kv_heads": 2, "head_dim": 16, "max_rows": 3, "dtype": torch.float32}
    with pytest.raises(ValueError, match=message):
        TritonAttention(**{**given, "device": DEVICE, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"warps": 3}, "warps is 3; it must be a power of two"),
        ({"stages": 0}, "stages is 0; it must be at least 1"),
        ({"programs": 0}, "programs is 0; it must be at least 1"),
        ({"keys": 8}, "keys is 8; a matrix unit's side is 16"),
    ],
    ids=str,
)
@pytest.mark.parametrize("tile", [DecodeTile, ExtendTile])
def test_a_tile_that_cannot_be_is_refused(
    tile: type[DecodeTile | ExtendTile], arguments: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=f"{tile.__name__}: .*{message}"):
        tile(**arguments)


def test_a_tile_is_told_when_to_be_merged_apart_by_a_number() -> None:
    with pytest.raises(ValueError, match="ExtendTile: few is -1; it must be at least 0"):
        ExtendTile(few=-1)


def test_a_tile_that_cannot_be_specialised_is_refused() -> None:
    with pytest.raises(ValueError, match="it has 128 lines, 128 keys, 3 stages, and few is 0; one that is specialised"):
        ExtendTile(specialised=True)


def test_where_warps_cannot_be_specialised_the_other_kernel_does_the_work() -> None:
    tile = ExtendTile(128, 16, few=1, specialised=True)
    check(draw(MIXED, (4, 2, 16)), (4, 2, 16), tuning=Tuning(decode=ROW, own=ROW, extend=tile, short=tile))


def test_more_rows_than_it_was_made_for_are_refused() -> None:
    attention = TritonAttention(4, 2, 16, max_rows=2, device=DEVICE, dtype=torch.float32)
    with pytest.raises(ValueError, match="it has 3 rows; TritonAttention was made for 2"):
        attention.plan(draw([(1, 3)] * 3, (4, 2, 16)).batch)


LONG = [
    [(1, keys) for keys in (1, 2, 63, 64, 65, 500, 8192, 100_000)],
    [(1, 1000 + 7 * row) for row in range(200)],
    [(1, 5000)],
    [(1, 1)] * 130,
    [(1, 16), (300, 300), (1, 8192), (77, 4000), (1, 100_000), (2000, 2000)],
    [(300, 100_000), (1, 50)],
    [(5, 30_000), (1, 50)],
]


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("rows", LONG, ids=lambda rows: f"{len(rows)} rows to {max(keys for _, keys in rows)}")
@pytest.mark.parametrize("shape", [(32, 8, 128), (16, 8, 128), (28, 4, 128), (8, 8, 64)], ids=str)
@pytest.mark.parametrize("options", [{}, {"windows": (4096,)}, {"soft_cap": 30.0}], ids=str)
def test_long_rows_in_bfloat16(
    rows: list[tuple[int, int]], shape: tuple[int, int, int], options: dict[str, Any]
) -> None:
    ordered = sorted(rows, key=lambda row: row[0] == 1)
    check(draw(ordered, shape, dtype=torch.bfloat16, fused_qkv=True), shape, 2e-2, tuning=None, **options)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
def test_a_captured_step_is_right_for_other_lengths() -> None:
    shape = (32, 8, 128)
    case = draw([(1, 3000)] * 5, shape, dtype=torch.bfloat16)
    attention = TritonAttention(*shape, max_rows=5, device=DEVICE, dtype=torch.bfloat16)
    assert case.batch.lengths_R is not None
    attention.attend(case.q_THD, 0, case.pool, attention.plan(case.batch))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out_THD = attention.attend(case.q_THD, 0, case.pool, attention.plan(case.batch))
    for lengths in ([3000, 1, 2999, 64, 700], [5] * 5):
        case.batch.lengths_R.copy_(torch.tensor(lengths, dtype=torch.int32))
        case.q_THD.normal_()
        graph.replay()
        case_now = Case(case.pool, case.batch, case.q_THD, [t[:n] for t, n in zip(case.tables, lengths, strict=True)])
        torch.testing.assert_close(out_THD.double(), wanted(case_now, attention.scale), rtol=0, atol=2e-2)
