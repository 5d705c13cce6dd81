"""Words tell where branches are joined: columns stay in order, positions are each line's own."""

from __future__ import annotations

import numpy as np
import pytest

from callboard.actors.joins import Line, pack_joins, read_line


def packed(values: object) -> bytes:
    return np.asarray(values, np.int32).tobytes()


def read(count: int, *forks: tuple[int, ...]) -> Line:
    """Read a prompt of the tokens 0, 1, 2, ..."""
    return read_line(packed(range(count)), pack_joins(forks))


def tokens(data: bytes) -> list[int]:
    return np.frombuffer(data, np.int32).tolist()


def test_a_prompt_without_words_is_one_line() -> None:
    line = read(5)
    assert (line.origin, line.columns, line.position, line.namespace) == (None, 5, 5, "")
    assert line.lines() == ()


def test_branches_stand_side_by_side_and_share_positions() -> None:
    line = read(12, (4, 2, 3, 0, 2, 0))
    origin = line.origin
    assert origin is not None
    assert [tokens(one.flat) for one in origin.lines] == [[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 7, 8]]
    assert [one.position for one in origin.lines] == [7, 6]
    assert (origin.stem, origin.columns, origin.position, origin.shift) == (4, 9, 7, -2)
    assert (tokens(line.tokens), tokens(line.flat)) == ([9, 10, 11], list(range(12)))
    assert (line.columns, line.position) == (12, 10)


def test_an_offset_moves_positions_and_what_stands_behind_begins_behind_the_furthest() -> None:
    line = read(12, (4, 2, 3, 0, 2, 10))
    assert line.origin is not None
    first, second = line.origin.lines
    assert (first.position, second.position, line.origin.position) == (7, 16, 16)
    assert first.namespace == "" != second.namespace, "KV at other positions is other KV"
    assert second.origin is not None
    assert second.origin.jumps
    assert tokens(second.tokens) == [7, 8]
    assert [tokens(one.flat) for one in line.lines()] == [
        [0, 1, 2, 3, 4, 5, 6],
        [0, 1, 2, 3],
        [0, 1, 2, 3, 7, 8],
    ], "each behind those it needs"


def test_a_branch_goes_on_at_its_own_positions() -> None:
    line = read(6, (4, 0, 100))
    assert line.origin is not None
    assert line.origin.jumps
    assert (line.origin.columns, line.origin.shift, line.position) == (4, 100, 106)
    at_once = read(4, (4, 0, 100))
    assert (at_once.tokens, at_once.position) == (b"", 104)
    twice = read(6, (4, 0, 60), (4, 0, 40))
    assert twice.namespace == line.namespace, "jumps one behind the other are one"


def test_joins_stand_inside_of_branches_and_behind_each_other() -> None:
    #        0 1 | 2 3 (4 | 5) 6 | 7 | 8 | (9 | 10) | 11
    line = read(12, (2, 2, 5, 0, 1, 0), (4, 2, 1, 0, 1, 0), (9, 2, 1, 0, 1, 5))
    last = line.origin
    assert last is not None
    assert (last.stem, last.columns) == (9, 11)
    stem = last.lines[0].origin
    assert stem is not None
    assert (stem.stem, stem.columns) == (2, 8)
    inner, plain = stem.lines
    assert tokens(inner.flat) == [0, 1, 2, 3, 4, 5, 6]
    assert tokens(plain.flat) == [0, 1, 7]
    assert inner.position == 6, "two branches of one token take one position"
    assert line.position == 6 + 1 + 5 + 1 + 1
    assert [tokens(one.flat)[-1] for one in line.lines()] == [4, 5, 6, 7, 9, 8, 10]


def test_what_says_nothing_is_left_out_and_one_branch_is_a_line_that_goes_on() -> None:
    assert read(8, (4, 3, 0, 7, 2, 0, 0, 0)).origin is None
    assert read(8, (4, 1, 2, 5)).namespace == read(8, (4, 0, 5)).namespace
    assert read(8, (4, 1, 2, 5)).position == 13


def test_a_line_that_is_interrupted_any_number_of_times_is_one_line() -> None:
    line = read(6000, *((column, 1, 1, 0) if column % 2 else (column, 0, 0) for column in range(1, 6000)))
    assert (line.above, line.size, tokens(line.tokens)) == (None, 6000, list(range(6000)))


def test_branches_go_on_from_one_line_and_what_they_say_stays_in_the_prompt() -> None:
    line = read(12, (4, 2, 3, 0, 2, 0))
    assert line.origin is not None
    first, second = line.origin.lines
    assert (first.start, first.end, first.above) == (0, 7, None), "it goes on where the stem ended"
    assert second.above is not None
    assert (second.start, second.end, tokens(second.above.tokens)) == (7, 9, [0, 1, 2, 3])
    assert second.runs == ((0, 4), (7, 9))
    assert second.prompt is line.prompt


def test_equal_prompts_have_one_name_and_others_another() -> None:
    name = read(12, (4, 2, 3, 0, 2, 0)).namespace
    assert name == read(11, (4, 2, 3, 0, 2, 0)).namespace, "what stands behind is no part of it"
    others = [(4, 2, 2, 0, 3, 0), (5, 2, 2, 0, 2, 0), (4, 2, 3, 0, 2, 1), (4, 3, 3, 0, 1, 0, 1, 0)]
    names = {read(12, other).namespace for other in others}
    assert len(names) == len(others)
    assert name not in names
    swapped = read_line(packed([0, 1, 2, 3, 7, 8, 4, 5, 6, 9]), pack_joins([(4, 2, 2, 0, 3, 0)]))
    assert swapped.namespace != name, "the order of branches is the order of columns"


@pytest.mark.parametrize(
    ("forks", "message"),
    [
        ([(4, 2, 3, 0, 9, 0)], "beyond column"),
        ([(4, 2, 3, 0)], "end inside"),
        ([(4, 2, 3, 0, -1, 0)], "at least 0"),
        ([(4, -1, 3)], "no number of branches"),
        ([(20, 2, 1, 0, 1, 0)], "12 tokens are given"),
        ([(4, 2, 3, 0, 2, 0), (2, 0, 1)], "behind one that reaches"),
        ([(4, 2, 4, 0, 4, 0)], "sees all before it"),
        ([(4,)], "tells of column"),
        ([(0, 1, 12, 0)] * 70, "stand inside each other"),
    ],
)
def test_words_that_tell_of_nothing_are_refused(forks: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(12, *forks)


def test_half_words_are_refused() -> None:
    with pytest.raises(ValueError, match="not both int32"):
        read_line(packed([1, 2]), b"\0\0")
