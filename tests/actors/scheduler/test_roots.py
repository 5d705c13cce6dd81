"""Roots of joins: known by where their lines end, and by name as soon as that is not enough."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from callboard.actors.scheduler.invariants import check_tree
from callboard.actors.scheduler.node import Node, Root
from callboard.actors.scheduler.radix_tree import RadixTree
from callboard.actors.scheduler.roots import Place

from ...support.schedule_driver import pack

STEM, LINES, TAIL = [1, 2, 3], ([4, 5], [6, 7, 8]), [9, 10]


class Joined:
    """A tree with a stem and two lines behind it; `asked` counts how often somebody wanted a join's name."""

    def __init__(self) -> None:
        self.tree = RadixTree()
        self.asked: list[str] = []
        self._slots = 0
        for line in LINES:
            self.insert(STEM + line)

    def insert(self, tokens: list[int], below: Node | None = None) -> Node:
        first, self._slots = self._slots, self._slots + len(tokens)
        return self.tree.insert(pack(tokens), np.arange(first, self._slots, dtype=np.int32), below)[0]

    def place(self, lines: tuple[list[int], ...] = LINES) -> Place:
        ends = tuple([self.tree.match(pack(STEM + line))[0] for line in lines])
        return len(STEM) + max(map(len, lines)), tuple(map(len, lines)), ends

    def join(self, name: str = "of both", place: Place | None = None) -> Root:
        return self.tree.join(self.place() if place is None else place, self.named(name))

    def named(self, name: str) -> Callable[[], str]:
        def give() -> str:
            self.asked.append(name)
            return name

        return give


@pytest.fixture
def joined() -> Joined:
    return Joined()


def used(joined: Joined, root: Root) -> Root:
    """Let something stand behind a join, and nobody hold it."""
    joined.tree.lock(root)
    joined.insert(TAIL, root)
    joined.tree.unlock(root)
    check_tree(joined.tree)
    return root


def evict_line(joined: Joined, root: Root, count: int = 1) -> None:
    """Let so many tokens at the end of the second line of a join be the only ones to go."""
    tail = joined.tree.match(pack(TAIL), below=root)[0]
    joined.tree.touch(tail, root.sources[0])
    last = root.sources[1].slots.tolist()[-count:]
    assert joined.tree.evict(count).tolist() == last


def behind(joined: Joined, root: Root) -> int:
    return joined.tree.known(pack(TAIL), below=root)


def test_a_join_begins_before_it_has_a_name_and_is_found_by_it_when_it_is_asked_for(joined: Joined) -> None:
    root = used(joined, joined.join())
    assert joined.asked == []
    joined.tree.name_roots()
    assert joined.asked == ["of both"]
    assert joined.tree.known_root("of both") is root
    joined.tree.name_roots()
    assert joined.asked == ["of both"], "once"


def test_whoever_asks_for_a_root_by_name_finds_those_that_had_none(joined: Joined) -> None:
    root = used(joined, joined.join())
    assert joined.tree.root("of both") is root
    assert joined.tree.roots() == [joined.tree.root(), root]


def test_the_same_lines_are_the_same_join_without_a_look_at_their_tokens(joined: Joined) -> None:
    root = used(joined, joined.join())
    assert joined.join() is root
    assert joined.asked == []
    assert behind(joined, root) == len(TAIL)


def test_other_lines_other_columns_and_other_positions_are_other_joins(joined: Joined) -> None:
    position, own, ends = joined.place()
    turned, one = (own[::-1], ends[::-1]), (own[:1], ends[:1])
    places = [(position, own, ends), (position + 1, own, ends), (position, *turned), (position, *one)]
    roots = [used(joined, joined.join(f"join {number}", place)) for number, place in enumerate(places)]
    assert len(set(roots)) == len(places)
    joined.tree.name_roots()
    assert [joined.tree.known_root(f"join {number}") for number in range(len(places))] == roots


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_line_that_was_evicted_and_is_there_again_has_behind_it_what_it_had(
    joined: Joined, lost: int, named: bool
) -> None:
    root = used(joined, joined.join())
    if named:
        joined.tree.name_roots()
    evict_line(joined, root, lost)
    joined.insert(STEM + LINES[1])
    assert joined.join() is root
    assert set(joined.asked) == {"of both"}
    assert behind(joined, root) == len(TAIL)
    assert root.slots.tolist()[len(STEM) + len(LINES[0]) :] == joined.tree.slots(root.sources[1]).tolist()[len(STEM) :]
    check_tree(joined.tree)


def test_only_a_join_that_looks_like_one_that_lost_a_line_asks_for_its_name(joined: Joined) -> None:
    root = used(joined, joined.join())
    evict_line(joined, root)
    joined.insert([*STEM, 6, 7, 4])
    joined.join("of others", joined.place((LINES[0], [6, 7, 4])))
    assert joined.asked == []
    joined.insert([*STEM, 5, 5, 8])
    joined.join("that looks alike", joined.place((LINES[0], [5, 5, 8])))
    assert joined.asked == ["that looks alike", "of both", "of others"]


def test_a_join_that_is_forgotten_has_no_place_and_needs_no_name(joined: Joined) -> None:
    root = joined.join()
    joined.tree.lock(root)
    joined.tree.unlock(root)
    assert joined.tree.roots() == [joined.tree.root()]
    assert joined.join() is not root
    joined.tree.name_roots()
    assert joined.asked == ["of both"]


def test_what_stands_behind_a_join_that_was_forgotten_is_found_by_name(joined: Joined) -> None:
    inner = joined.join("inner")
    place = (9, (0, 3), (inner, joined.place()[2][1]))
    joined.tree.lock(inner)
    outer = used(joined, joined.join("outer", place))
    joined.tree.unlock(inner)
    assert joined.tree.known_root("inner") is None
    again = joined.join("inner")
    assert again is not inner
    joined.tree.lock(again)
    assert joined.join("outer", (9, (0, 3), (again, joined.place()[2][1]))) is outer
    assert behind(joined, outer) == len(TAIL)
    joined.tree.unlock(again)


def test_a_join_that_somebody_holds_and_whose_line_is_gone_fails_the_check(joined: Joined) -> None:
    root = joined.join()
    joined.tree.lock(root)
    check_tree(joined.tree)
    line = root.sources[1]
    assert line.parent is not None
    del line.parent.children[line.key[:4]]
    line.parent, line.locks = None, 0
    with pytest.raises(AssertionError, match="a source of a join is not locked"):
        check_tree(joined.tree)


def test_an_emptied_tree_knows_no_join(joined: Joined) -> None:
    for number in range(3):
        position, own, ends = joined.place()
        used(joined, joined.join(f"join {number}", (position + number, own, ends)))
    joined.tree.evict(joined.tree.evictable)
    assert joined.tree.roots() == [joined.tree.root()]
    joined.tree.name_roots()
    assert joined.asked == []
