"""However many come and go together, a sorted list is what a plain one would be, sorted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.scheduler.sorted_list import SortedList

MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(st.binary(max_size=3), max_size=40)),
        st.tuples(st.just("drop"), st.lists(st.integers(0, 200), max_size=60)),
        st.tuples(st.just("move"), st.integers(0, 200)),
        st.tuples(st.just("look"), st.none()),
    ),
    max_size=30,
)


@given(moves=MOVES)
def test_it_is_what_was_put_and_not_dropped_in_order(moves: list[tuple[str, object]]) -> None:
    kept, there, number = SortedList[tuple[bytes, int]](), dict[int, tuple[bytes, int]](), 0
    for what, how in moves:
        if what == "put":
            assert isinstance(how, list)
            new = [(key, number + place) for place, key in enumerate(how)]
            number += len(new)
            kept.put(*new)
            there |= {item[-1]: item for item in new}
        elif what == "drop":
            assert isinstance(how, list)
            for place in how:
                if place in there:
                    kept.drop(there.pop(place))
        elif what == "move" and how in there:  # one comes again, elsewhere, at once
            assert isinstance(how, int)
            kept.drop(there[how])
            there[how] = (b"m", how)
            kept.put(there[how])
        elif what == "look":
            assert kept.items() == sorted(there.values())
        assert len(kept) == len(there)
    assert kept.items() == sorted(there.values())
