"""Every query is attended once, in parts that keep to their bounds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.kernels.attention.groups import CALL_PAIRS, MASK_PAIRS, Piece, cut, group, is_uniform

rows_of_a_step = st.lists(
    st.tuples(st.integers(1, 9000) | st.just(1), st.integers(0, 200_000)).map(lambda pair: (pair[0], sum(pair))),
    min_size=1,
    max_size=20,
)


def pieces_of(rows: list[tuple[int, int]]) -> list[Piece]:
    return cut([queries for queries, _ in rows], [keys for _, keys in rows])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(rows_of_a_step)
def test_pieces_cover_every_query_once_and_see_what_it_sees(rows: list[tuple[int, int]]) -> None:
    pieces = pieces_of(rows)
    for row, (queries, keys) in enumerate(rows):
        next_query = 0
        for piece in (piece for piece in pieces if piece.row == row):
            assert piece.first == next_query
            next_query += piece.queries
            assert piece.keys == keys - queries + next_query
        assert next_query == queries


@settings(max_examples=200, deadline=None, derandomize=True)
@given(rows_of_a_step)
def test_masks_stay_small_however_long_a_row_is(rows: list[tuple[int, int]]) -> None:
    for piece in pieces_of(rows):
        needs_no_mask = piece.queries == piece.keys
        assert needs_no_mask or piece.queries * piece.keys <= max(MASK_PAIRS, 16 * piece.keys)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(rows_of_a_step, st.integers(1, 100_000))
def test_groups_hold_every_piece_once_and_keep_to_their_bounds(rows: list[tuple[int, int]], keys_at_once: int) -> None:
    pieces = pieces_of(rows)
    groups = group(pieces, keys_at_once)
    assert sorted((each.row, each.first) for members in groups for each in members) == sorted(
        (each.row, each.first) for each in pieces
    )
    for members in groups:
        padded = len(members) * max(each.queries for each in members) * max(each.keys for each in members)
        if len(members) > 1:
            assert len(members) * max(each.keys for each in members) <= keys_at_once
            assert padded <= 1.5 * sum(each.queries * each.keys for each in members) + len(members) * CALL_PAIRS


def test_similar_decoding_rows_are_uniform_and_others_are_not() -> None:
    assert is_uniform([1] * 32, list(range(200, 232)), 10_000)
    assert not is_uniform([1] * 31 + [2], [200] * 32, 10_000)
    assert not is_uniform([1] * 32, [10] * 31 + [5000], 1_000_000), "31 rows would be padded to 5000 keys"
    assert not is_uniform([1] * 32, [200] * 32, 6_000), "more keys than are gathered at once"
