"""Where what the tree knows of a request's lines ends: looked up once, as long as the tree stays the same."""

from __future__ import annotations

from ..joins import Line
from .node import Node
from .radix_tree import RadixTree

__all__ = ["Ends"]


class Ends:
    """What `RadixTree.find` has told of lines, until tokens come or go."""

    __slots__ = ("_found", "_version")

    def __init__(self) -> None:
        self._found: dict[Line, tuple[Node | None, int]] = {}
        self._version = -1

    def find(
        self, tree: RadixTree, line: Line, namespace: str, tokens: bytes, limit: int | None = None
    ) -> tuple[Node | None, int]:
        """Give the node at which the known part of a line's `tokens` ends, None if nothing is known, and its length."""
        if self._version != tree.version:
            self.forget()
            self._version = tree.version
        found = self._found.get(line)
        if found is None:
            found = self._found[line] = tree.find(tokens, limit, namespace)
        return found

    def forget(self) -> None:
        """Know nothing: what is looked for has changed."""
        self._found.clear()
