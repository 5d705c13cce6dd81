"""Which rows attend to which slots together: the radix tree's levels, as far as they pay.

Rows that decode have groups, and rows that extend by a few tokens have theirs.

From the root down, the levels of a row tile the beginning of it; what lies behind is its own:

    [0, 300)     a system prompt, rows 0 1 2 3 4
    [300, 900)   a document behind it, rows 0 1 2
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from ..messages import Extend
from .radix_tree import Node, RadixTree, Root
from .rows import Rows

__all__ = ["GroupOptions", "Groups"]

_FEW = 64  # rows: looking at each of their paths costs less than looking for groups


class GroupOptions(msgspec.Struct, frozen=True, kw_only=True):
    """When attending together pays; all in tokens whose keys and values need not be read once more.

    least_tokens: a group's prefix is at least so long (a tile of the kernel that reads it).  item_tokens: one group
    saves at least so many, for it costs the kernel one item and each of its rows one part to merge.  step_tokens: all
    groups of a step save at least so many, for they cost launches that a step without groups does not need.
    extend_tokens: rows that extend by more are in no group, for they fill the kernel's tiles by themselves.
    """

    least_tokens: int = 64
    item_tokens: int = 256
    step_tokens: int = 4096
    extend_tokens: int = 64

    def verify(self) -> None:
        """Raise ValueError naming the first option that is out of range."""
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"groups.{field}: {value!r} given, an integer of at least 1 needed")


class _Level:
    """A run [start, end) of slots that `count` rows share, from place `first` of the order on.

    readers: how many times it is read if it is no group: once by every group below it, once by each row in none.
    """

    __slots__ = ("above", "count", "end", "first", "readers", "start")

    def __init__(self, above: _Level | None, start: int, end: int, first: int, count: int) -> None:
        self.above, self.start, self.end, self.first, self.count = above, start, end, first, count
        self.readers = count


class _Found(NamedTuple):
    """Groups, as in Step; how many, the rows in them and in the largest, and the tokens that are not read again."""

    packed: bytes = b""
    groups: int = 0
    members: int = 0
    largest: int = 0
    saved: int = 0


class Groups:
    """Describe a step's groups, anew only when other rows decode than before.

    The answer depends on nothing else: a row's path in the tree is fixed once it decodes, splits of nodes leave slots
    as they are, and before another request decodes in a row there is a step in which that row does not.

    options: None describes nothing.  packed: the groups, as in Step.  count, members: how many groups, and the rows in
    them; largest: rows in the largest.  attended: tokens that the rows attend to, each for itself.  saved: how many of
    these are not read again.
    """

    def __init__(self, options: GroupOptions | None, tree: RadixTree, rows: Rows) -> None:
        self._options, self._tree, self._rows = options or GroupOptions(), tree, rows
        self._wanted = options is not None
        self._described = b""
        self.attended = 0
        self.packed, self.count, self.members, self.largest, self.saved = _Found()

    def describe(self, decoding: bytes, chosen: npt.NDArray[np.int64]) -> bytes:
        """Give the groups of the rows `chosen` (their lengths count the step's token); decoding: the same, int32."""
        if decoding == self._described:
            self.attended += len(chosen)
            return self.packed
        self._described = decoding
        self.attended = int(self._rows.length[chosen].sum())
        found = _Found()
        if self._wanted and len(chosen) > 1 and self._could_pay():
            found = self._find(chosen, self._rows.agreed[chosen])
        self.packed, self.count, self.members, self.largest, self.saved = found
        return self.packed

    def describe_extends(self, extends: Sequence[Extend]) -> bytes:
        """Give the groups of the rows that extend by few tokens, as far as each had read before."""
        most = 4 * self._options.extend_tokens
        few = [(extend.row, extend.start) for extend in extends if extend.start and len(extend.tokens) <= most]
        if not self._wanted or len(few) < 2 or not self._could_pay():
            return b""
        chosen, starts = np.array(few, np.int64).T
        if len(few) <= _FEW and not self._could_pay_for(chosen.tolist()):
            return b""
        return self._find(chosen, np.minimum(self._rows.agreed[chosen], starts)).packed

    def _could_pay(self) -> bool:
        """Tell, in a moment, that it cannot pay: too little is held by two rows or more."""
        at_most = sum((node.locks - 1) * len(node.slots) for node in self._tree.crowded)
        return at_most >= self._options.step_tokens

    def _could_pay_for(self, chosen: list[int]) -> bool:
        """Tell the same of these rows alone, who may hold far less together than is held by two."""
        seen = set[Node]()
        again = 0
        for row in chosen:
            node = self._rows.node[row]
            while node is not None:
                if node in seen:
                    again += node.first if isinstance(node, Root) else len(node.slots)
                seen.add(node)
                node = _above(node)
        return again >= self._options.step_tokens

    def _find(self, chosen: npt.NDArray[np.int64], agreed: npt.NDArray[np.integer]) -> _Found:
        """Find groups of rows; agreed: as far as each one's own slots are the tree's."""
        order, levels = self._levels(chosen, agreed)
        parts: list[int] = []
        count = members = largest = saved = 0
        for level, start in self._worthwhile(levels):
            rows = order[level.first : level.first + level.count]
            parts += (rows[0], start, level.end, level.count)
            parts += rows
            count += 1
            members += level.count
            largest = max(largest, level.count)
            saved += (level.count - 1) * (level.end - start)
        if saved < self._options.step_tokens:
            return _Found()
        return _Found(np.array(parts, np.int32).tobytes(), count, members, largest, saved)

    # --- the levels there are --------------------------------------------------------------------------------------

    def _levels(self, chosen: npt.NDArray[np.int64], agreed: npt.NDArray[np.integer]) -> tuple[list[int], list[_Level]]:
        """Name the runs that two rows or more share, each behind the one above it, and the rows in their order."""
        nodes, ends, above = self._crowd()
        if not nodes or max(ends) < self._options.least_tokens:
            return [], []
        buckets = self._sort(chosen, agreed, nodes)
        counts = [len(bucket) for bucket in buckets]
        for place in range(len(nodes) - 1, -1, -1):  # children stand behind their parents
            if above[place] >= 0:
                counts[above[place]] += counts[place]
        order: list[int] = []
        levels: list[_Level] = []
        found: list[_Level | None] = []
        for place, bucket in enumerate(buckets):
            parent = found[above[place]] if above[place] >= 0 else None
            level: _Level | None = None
            if parent is not None and parent.count == counts[place]:  # the same rows: the run goes on
                level = parent
                level.end = ends[place]
            elif counts[place] > 1:
                level = _Level(parent, parent.end if parent else 0, ends[place], len(order), counts[place])
                levels.append(level)
            found.append(level)
            order += bucket
        return order, levels

    def _crowd(self) -> tuple[list[Node], list[int], list[int]]:
        """Name the nodes that several requests hold, depth first: where each ends, and the place of the one above."""
        below: dict[Node | None, list[Node]] = {}
        for node in self._tree.crowded:
            if node.parent is not None:
                below.setdefault(node.parent if node.parent.parent or node.parent.sources else None, []).append(node)
            elif node.sources:  # behind what the first of the lines before it shares with others
                anchor = _above(node)
                while anchor is not None and anchor.locks < 2:
                    anchor = _above(anchor)
                below.setdefault(anchor, []).append(node)
        stack = [(top, 0, -1) for top in below.get(None, ())]
        nodes: list[Node] = []
        ends: list[int] = []
        above: list[int] = []
        while stack:
            node, start, parent = stack.pop()
            end = len(node.slots) if node.parent is None else start + len(node.slots)
            stack += [(child, end, len(nodes)) for child in below.get(node, ())]
            nodes.append(node)
            ends.append(end)
            above.append(parent)
        return nodes, ends, above

    def _sort(
        self, chosen: npt.NDArray[np.int64], agreed: npt.NDArray[np.integer], nodes: list[Node]
    ) -> list[list[int]]:
        """Put each row to the last node on its path that others hold too and whose slots it reads."""
        rows = self._rows
        buckets: dict[Node, list[int]] = {node: [] for node in nodes}
        shared = rows.shared[chosen].tolist()
        for row, end, same in zip(chosen.tolist(), shared, agreed.tolist(), strict=True):
            node = rows.node[row]
            assert node is not None, "a row that decodes holds a node"
            while node is not None and (node.locks < 2 or end > same or not len(node.slots)):
                end = node.first if isinstance(node, Root) else end - len(node.slots)
                node = _above(node)
            if node is not None:
                buckets[node].append(row)
        return list(buckets.values())

    # --- those that pay --------------------------------------------------------------------------------------------

    def _worthwhile(self, levels: list[_Level]) -> list[tuple[_Level, int]]:
        """Choose groups and say where each begins: a level that does not pay is read by the groups below it."""
        for level in reversed(levels):
            if level.above is not None:
                once = self._pays(level.readers, level.end - level.start)
                level.above.readers += (1 if once else level.readers) - level.count
        chosen: list[tuple[_Level, int]] = []
        begins: dict[_Level, int] = {}  # where what is behind a level is still unread
        for level in levels:
            start = 0 if level.above is None else begins[level.above]
            pays = self._pays(level.readers, level.end - start)
            begins[level] = level.end if pays else start
            if pays:
                chosen.append((level, start))
        return chosen

    def _pays(self, readers: int, tokens: int) -> bool:
        return tokens >= self._options.least_tokens and (readers - 1) * tokens >= self._options.item_tokens


def _above(node: Node) -> Node | None:
    """Name what the columns just before a node's belong to; of a join, the end of the first of its lines."""
    if node.parent is None:
        return node.sources[0] if node.sources else None
    return node.parent if node.parent.parent is not None or node.parent.sources else None
