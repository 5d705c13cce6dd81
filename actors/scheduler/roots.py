"""Where the tree's namespaces begin: the roots by name, and those of joins by where their lines end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from .node import Node, Root

__all__ = ["Place", "Roots"]

Place = tuple[int, tuple[int, ...], tuple[Node, ...]]
"""Of a join: the position behind it, how many columns each line has of its own, and where the lines end."""

Look = tuple[int, tuple[int, ...], tuple[bytes, ...]]
"""What a join has in common with few others: its position, its lines' columns, and the last token of each."""

_UNNAMED = "of a join, unnamed"


class Roots:
    """Know every root by its name, and that of a join by its place, too, while its lines are all there.

    The name of a join is a digest of all tokens before it, which takes a good part of what a join does.  Its place says
    as much until one of its lines is evicted and computed again.  So a root is named when there is time (`name_all`),
    or when somebody asks for one by a name that is not known; a join does so only if one that looks alike has lost a
    line.
    """

    def __init__(self) -> None:
        self._named: dict[str, Root] = {}
        self._unnamed: dict[Root, Callable[[], str]] = {}
        self._placed: dict[Place, Root] = {}
        self._behind: dict[Node, dict[Root, Place]] = {}  # by where a line ends
        self._lost: dict[Root, Look] = {}  # those that have lost a line, and what they look like
        self._looks: Counter[Look] = Counter()  # how many of these

    def get(self, name: str) -> Root | None:
        """Give the root of a name if there is one."""
        root = self._named.get(name)
        if root is None and self._unnamed:
            self.name_all()
            root = self._named.get(name)
        return root

    def make(self, name: str) -> Root:
        """Give the root of a name."""
        root = self.get(name)
        if root is None:
            root = self._named[name] = Root(name)
        return root

    def all(self) -> list[Root]:
        """Give all of them, also those that have no name yet."""
        return [*self._named.values(), *self._unnamed]

    def name_all(self) -> None:
        """Name those that have no name yet."""
        for root, name in self._unnamed.items():
            root.name = name()
            assert root.name not in self._named, "a join has one root"
            self._named[root.name] = root
        self._unnamed.clear()

    # --- joins -----------------------------------------------------------------------------------------------------

    def at(self, place: Place) -> Root | None:
        """Give the root of a join; None if there is none, or it has lost a line since it had its place."""
        return self._placed.get(place)

    def put(self, place: Place, name: Callable[[], str]) -> Root:
        """Give the root of a join that has no place any more, or a new one, and let it have this place."""
        root = self.get(name()) if self._lost and _look(place) in self._looks else None
        if root is None:
            root = Root(_UNNAMED)
            self._unnamed[root] = name
        else:
            self._leave(root)
        self._placed[place] = root
        for source in place[2]:
            self._behind.setdefault(source, {})[root] = place
        return root

    def lose(self, node: Node) -> None:
        """Know that tokens of a node are about to be evicted."""
        for root, place in self._behind.get(node, {}).items():
            if self._placed.pop(place, None) is not None:
                self._lost[root] = look = _look(place)
                self._looks[look] += 1

    def forget(self, root: Root) -> None:
        """Know a root no more; it may have been where another's line ends."""
        self._leave(root)
        self.lose(root)
        self._unnamed.pop(root, None)
        if self._named.get(root.name) is root:
            del self._named[root.name]

    def _leave(self, root: Root) -> None:
        """Take a root's place from it."""
        if (look := self._lost.pop(root, None)) is not None:
            self._looks[look] -= 1
            if not self._looks[look]:
                del self._looks[look]
        for source in root.sources:
            roots = self._behind.get(source, {})
            if (place := roots.pop(root, None)) is not None:
                self._placed.pop(place, None)
                if not roots:
                    del self._behind[source]


def _look(place: Place) -> Look:
    position, own, sources = place
    return position, own, tuple([source.key[-4:] for source in sources])
