"""The radix tree: which token prefixes have their KV in which slots.

A node holds a run of tokens and their slots; the path from the root to it spells a prefix.  Tokens are int32 bytes, so
that a node is compared by one memcmp.  The tree owns the slots in it.  A locked node stays, and so does its whole path;
a leased one stays while there is another to evict.

A namespace may begin behind lines of others, side by side (`join`): its paths have these columns before their own, and
what locks or leases one of them locks or leases these lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from .eviction import PLAIN, EvictionOrder
from .node import Node, Root
from .roots import Place, Roots
from .slot_pool import Slots

__all__ = ["Node", "RadixTree", "Root"]

_NONE = np.empty(0, np.int32)


class RadixTree:
    """Prefixes to slots, one root a namespace.

    tokens: how many lie in the tree; locked, leased: how many of them are; evicted: how many were ever let go.
    version grows whenever tokens come or go, so that a match can be remembered.  crowded: the nodes, and the named
    roots, that are locked twice or more, in no order that means anything.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.locked = 0
        self.leased = 0
        self.evicted = 0
        self.version = 0
        self.crowded: dict[Node, None] = {}  # a dict: its order, unlike a set's, is the same in every run
        self._roots = Roots()
        self._order = EvictionOrder()
        self._clock = 0

    def root(self, namespace: str = "") -> Root:
        """Give the root of a namespace; prefixes of different namespaces never meet."""
        return self._roots.make(namespace)

    def known_root(self, namespace: str) -> Root | None:
        """Give the root of a namespace if there is one."""
        return self._roots.get(namespace)

    def join(self, place: Place, name: Callable[[], str]) -> Root:
        """Let a namespace begin behind lines, side by side behind the columns they share; name: what names it.

        Whoever does so locks a path of the namespace at once, and then does without locks of its own on the lines.
        """
        _, own, sources = place
        root = self._roots.at(place) or self._roots.put(place, name)
        if root.locks:
            assert root.sources == sources, "a locked source stays where it is"
            return root
        if root.leases and root.sources != sources:  # some were evicted, and are there again
            paused = root.paused == root.leases
            for source in root.sources:
                self.end_lease(source, paused=paused)
            for source in sources:
                self.lease(source, paused=paused)
        parts: list[Slots] = []
        for source, count in zip(sources[:0:-1], own[:0:-1], strict=True):
            _collect_last(source, count, parts)
        parts.reverse()
        first = self.slots(sources[0])
        root.sources, root.first, root.slots = sources, len(first), np.concatenate((first, *parts))
        return root

    def _tidy(self, node: Node) -> None:
        """Forget a root that nothing is known of any more."""
        if isinstance(node, Root) and node.is_idle:
            self._roots.forget(node)

    def name_roots(self) -> None:
        """Name the roots of joins that are new, if there is time; else it is done when it has to be."""
        self._roots.name_all()

    # --- reading ---------------------------------------------------------------------------------------------------

    def match(
        self, tokens: bytes, limit: int | None = None, namespace: str = "", below: Node | None = None
    ) -> tuple[Node, int]:
        """Find the longest known prefix, of at most `limit` tokens, from the root or below a node; it is used now.

        Returns the node it ends at (split if it ended inside one) and its length in tokens.
        """
        node, at = self.walk(self.root(namespace) if below is None else below, tokens, _end(tokens, limit))
        self.touch(node)
        return node, at >> 2

    def find(self, tokens: bytes, limit: int | None = None, namespace: str = "") -> tuple[Node | None, int]:
        """Find what `match` would, but do not count it as used; None where nothing is known.

        The node ends there as long as `version` stays the same.
        """
        root = self._roots.get(namespace)
        node, at = (root, 0) if root is None else self.walk(root, tokens, _end(tokens, limit))
        return (node if at else None), at >> 2

    def walk(self, node: Node, tokens: bytes, end: int, at: int = 0) -> tuple[Node, int]:
        """Follow tokens[at:end] below `node`, splitting where they part; give the last node and the byte reached."""
        while at < end:
            child = node.children.get(tokens[at : at + 4])
            if child is None:
                break
            size = len(child.key)
            if at + size > end or not tokens.startswith(child.key, at):
                same = _common(child.key, tokens, at, end)
                return self._split(child, same), at + same
            at += size
            node = child
        return node, at

    def touch(self, *nodes: Node) -> None:
        """Count the paths to `nodes` as used now."""
        self._clock = now = self._clock + 1
        for node in nodes:
            while node.parent is not None and node.last_used != now:
                node.last_used = now
                node = node.parent

    def known(self, tokens: bytes, limit: int | None = None, below: Node | None = None, namespace: str = "") -> int:
        """Count the tokens `match` would find, from the root or below a node, and change nothing."""
        node, at, end = self._roots.get(namespace) if below is None else below, 0, _end(tokens, limit)
        while at < end and node is not None:
            child = node.children.get(tokens[at : at + 4])
            if child is None:
                break
            size = len(child.key)
            if at + size > end or not tokens.startswith(child.key, at):
                at += _common(child.key, tokens, at, end)
                break
            at += size
            node = child
        return at >> 2

    def slots(self, node: Node) -> Slots:
        """Collect the slots from the root to `node`, in order."""
        parts = self._parts(node)
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else _NONE

    @staticmethod
    def _parts(node: Node) -> list[Slots]:
        """Collect them node by node."""
        parts: list[Slots] = []
        while node.parent is not None:
            parts.append(node.slots)
            node = node.parent
        if node.sources:
            parts.append(node.slots)
        parts.reverse()
        return parts

    # --- growing ---------------------------------------------------------------------------------------------------

    def insert(self, tokens: bytes, slots: Slots, below: Node | None = None, namespace: str = "") -> tuple[Node, Slots]:
        """Put tokens and their slots into the tree, below `below` or the namespace's root.

        Returns the node they end at, and those of the given slots that the tree did not take because it knows their
        tokens by other slots; they stay the caller's.  The other slots are the tree's from now on.
        """
        assert len(tokens) == 4 * len(slots), f"{len(tokens)} bytes of tokens for {len(slots)} slots"
        self._clock = now = self._clock + 1
        start = self.root(namespace) if below is None else below
        node, at = self.walk(start, tokens, len(tokens))
        known = at >> 2
        duplicates = _NONE
        if known:
            held = self._between(start, node, now)
            duplicates = slots[:known][held != slots[:known]]
        if at < len(tokens):
            leaf = Node(node, tokens[at:], slots[known:].copy(), now)
            node.children[tokens[at : at + 4]] = leaf
            self.tokens += len(leaf.slots)
            self.version += 1
            self._order.offer(leaf)
            node = leaf
        return node, duplicates

    @staticmethod
    def _between(above: Node, node: Node, now: int) -> Slots:
        """Collect the slots from `above` to `node`, and count what they belong to as used now."""
        parts: list[Slots] = []
        while node is not above:
            parts.append(node.slots)
            node.last_used = now
            assert node.parent is not None, "`above` lies on the path of every node below it"
            node = node.parent
        return parts[0] if len(parts) == 1 else np.concatenate(parts[::-1])

    def _split(self, node: Node, size: int) -> Node:
        """Cut a node behind `size` bytes.  The old object stays the lower part, where its locks point."""
        parent = node.parent
        assert parent is not None, "a root has no tokens to split"
        upper = Node(parent, node.key[:size], node.slots[: size >> 2], node.last_used)
        upper.locks, upper.leases, upper.paused = node.locks, node.leases, node.paused
        if node.locks > 1:
            self.crowded[upper] = None
        parent.children[upper.key[:4]] = upper
        node.key = node.key[size:]
        node.slots = node.slots[size >> 2 :]
        node.parent = upper
        upper.children[node.key[:4]] = node
        return upper

    # --- locks -----------------------------------------------------------------------------------------------------

    def lock(self, node: Node, instead: Node | None = None, *, adopt: bool = False) -> None:
        """Keep the path to `node` from eviction until it is unlocked as often.

        instead: a node on the path, one of whose locks this one takes over.  adopt: likewise one lock of each of its
        root's sources, if nothing below that root is locked yet.
        """
        while node is not instead and node.parent is not None:
            if node.locks == 0:
                self.locked += len(node.slots)
            elif node.locks == 1:
                self.crowded[node] = None
            node.locks += 1
            node = node.parent
        if node.name and node is not instead:
            if not node.locks:
                for source in () if adopt else node.sources:
                    self.lock(source)
            elif node.locks == 1:
                self.crowded[node] = None
            node.locks += 1

    def unlock(self, node: Node) -> None:
        """Undo one lock."""
        while node.parent is not None:
            assert node.locks > 0, "a node was unlocked more often than locked"
            node.locks -= 1
            if node.locks == 0:
                self.locked -= len(node.slots)
                if not node.children:
                    self._order.offer(node)
            elif node.locks == 1:
                del self.crowded[node]
            node = node.parent
        if node.name:
            assert node.locks > 0, "a root was unlocked more often than locked"
            node.locks -= 1
            if node.locks == 0:
                for source in node.sources:
                    self.unlock(source)
                self._tidy(node)
            elif node.locks == 1:
                del self.crowded[node]

    # --- leases ----------------------------------------------------------------------------------------------------

    def lease(self, node: Node, *, paused: bool = False) -> None:
        """Ask that the path to `node` is evicted behind all that nobody leases, until its lease is ended as often.

        paused: before all that others lease.
        """
        while node.heir is not None:
            node = node.heir
        while node.parent is not None:
            if node.leases == 0:
                self.leased += len(node.slots)
            node.leases += 1
            node.paused += paused
            node = node.parent
        if node.name:
            self._lease_sources(node, node.leases + 1, node.paused + paused)

    def end_lease(self, node: Node, *, paused: bool = False) -> None:
        """Undo one lease, or what eviction has left of it."""
        while node.heir is not None:
            node = node.heir
        while node.parent is not None:
            assert node.leases > 0, "more leases ended than began"
            node.leases -= 1
            node.paused -= paused
            if node.leases == 0:
                self.leased -= len(node.slots)
            if node.queued > PLAIN:
                self._order.lowered(node)
            node = node.parent
        if node.name:
            assert node.leases > 0, "more leases of a root ended than began"
            self._lease_sources(node, node.leases - 1, node.paused - paused)
            self._tidy(node)

    def pause_lease(self, node: Node, *, back: bool = False) -> None:
        """Let one lease count for less than those that are not paused; back: for as much again."""
        while node.heir is not None:
            node = node.heir
        while node.parent is not None:
            node.paused += -1 if back else 1
            assert 0 <= node.paused <= node.leases, "more leases are paused than there are"
            self._order.lowered(node)
            node = node.parent
        if node.name:
            self._lease_sources(node, node.leases, node.paused + (-1 if back else 1))

    def _lease_sources(self, root: Node, leases: int, paused: int) -> None:
        """Let a root have so many leases, so many of them paused, and one on each of its sources if it has any."""
        had, idle = root.leases > 0, root.paused == root.leases
        root.leases, root.paused = leases, paused
        for source in root.sources:
            if not leases:
                self.end_lease(source, paused=idle)
            elif not had:
                self.lease(source, paused=paused == leases)
            elif idle != (paused == leases):
                self.pause_lease(source, back=idle)

    # --- shrinking -------------------------------------------------------------------------------------------------

    @property
    def evictable(self) -> int:
        """How many tokens `evict` could free."""
        return self.tokens - self.locked

    def evict(self, wanted: int, *, plain: bool = False) -> Slots:
        """Let go of `wanted` tokens (fewer if locks leave fewer), in the order of `EvictionOrder`, ends first.

        plain: of none that anybody leases.
        Returns their slots, which are the caller's from now on.  O(log n) a leaf.
        """
        parts: list[Slots] = []
        freed = 0
        while freed < wanted and (node := self._order.next(plain=plain)) is not None:
            part = self._cut(node, wanted - freed)
            parts.append(part)
            freed += len(part)
        if not parts:
            return _NONE
        self.tokens -= freed
        self.evicted += freed
        self.version += 1
        return np.concatenate(parts)

    def prune(self, node: Node) -> Slots:
        """Let go of a node that nobody holds, and of those above it that then hold nothing else; give their slots."""
        parts: list[Slots] = []
        while (above := node.parent) is not None and not node.locks and not node.children:
            parts.append(self._cut(node, len(node.slots)))
            node = above
        if not parts:
            return _NONE
        freed = np.concatenate(parts)
        self.tokens -= len(freed)
        self.evicted += len(freed)
        self.version += 1
        return freed

    def _cut(self, leaf: Node, wanted: int) -> Slots:
        """Take up to `wanted` slots off the end of a leaf, and the leaf itself if none are left."""
        keep = len(leaf.slots) - wanted
        self._roots.lose(leaf)
        if keep > 0:
            part = leaf.slots[keep:]
            leaf.slots = leaf.slots[:keep]
            leaf.key = leaf.key[: 4 * keep]
            self.leased -= wanted if leaf.leases else 0
            self._order.offer(leaf)
            return part
        parent = leaf.parent
        assert parent is not None, "roots are never offered"
        del parent.children[leaf.key[:4]]
        leaf.parent, leaf.heir = None, parent
        self.leased -= len(leaf.slots) if leaf.leases else 0
        self._order.offer(parent)
        self._tidy(parent)
        return leaf.slots

    # --- what there is -----------------------------------------------------------------------------------------------

    def roots(self) -> list[Root]:
        """Name the roots, of which all that are joins know something or are locked or leased."""
        return self._roots.all()

    def tops(self) -> list[Node]:
        """Name the nodes right below the roots."""
        return [child for root in self._roots.all() for child in root.children.values()]

    def nodes(self) -> Iterator[Node]:
        """Go through all nodes but the roots."""
        stack = self.tops()
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())


def _end(tokens: bytes, limit: int | None) -> int:
    return len(tokens) if limit is None else max(0, min(len(tokens), 4 * limit))


def _collect_last(node: Node, count: int, parts: list[Slots]) -> None:
    """Append the last `count` slots of the path to a node, which has as many, to `parts`, backwards."""
    while True:
        slots = node.slots
        if (count := count - len(slots)) < 0:
            slots = slots[-count:]
        parts.append(slots)
        if count <= 0:
            return
        assert node.parent is not None, "the path is as long as its line"
        node = node.parent


def _common(key: bytes, tokens: bytes, at: int, end: int) -> int:
    """Count the bytes, in whole tokens, that `key` and tokens[at:end] begin with."""
    items = min(len(key), end - at) >> 2
    differ = np.frombuffer(key, np.int32, items) != np.frombuffer(tokens, np.int32, items, at)
    first = int(differ.argmax())
    return 4 * (first if differ[first] else items)
