"""What joined requests wait for: the lines that stand before them, each an ordinary prefix in the radix tree.

What the tree lacks of a line is computed as a request of its own, a *part*, which goes ahead of all that never ran.  As
soon as every line is there, at the earliest in the step that computes the last token of the last, the joined request
begins behind them, and no slot is copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ..joins import Line
from ..messages import Generate
from ..sampling import SamplingParams
from .node import Node
from .radix_tree import RadixTree, Root
from .request import Request
from .rows import Rows

__all__ = ["Assemblies", "Assembly", "known_lines"]

_FIRST = -(1 << 40)
"""The number of the first part; others count down from there."""

_FILL = SamplingParams(max_new_tokens=0, seed=0, ignore_eos=True)  # nothing is sampled, nothing looked for


class Assembly:
    """One joined request on its way.  parts: what is computed for it.  owed: slots that nobody was given yet."""

    __slots__ = ("owed", "parts", "request")

    def __init__(self, request: Request, owed: int) -> None:
        self.request, self.owed = request, owed
        self.parts: list[Request] = []


class Assemblies:
    """The joined requests whose lines are not all there, by number; the oldest first.

    Each has what is there of them locked (`Request.held`), so that it cannot be taken for what is still missing.
    crowded: one had to let go of that for want of room, and none has begun since.
    """

    def __init__(self, tree: RadixTree, rows: Rows) -> None:
        self._tree = tree
        self._rows = rows
        self._open: dict[int, Assembly] = {}
        self._under_way: dict[tuple[str, bytes], Request] = {}
        self._next = _FIRST
        self.crowded = False

    def __len__(self) -> int:
        return len(self._open)

    # --- what is there ---------------------------------------------------------------------------------------------

    def gather(self, request: Request) -> list[Line]:
        """Lock the lines that the tree has whole; give those that it has not."""
        tree, held = self._tree, request.held
        missing, found = list[Line](), list[Node]()
        for line in request.lines:
            if line in held:
                continue
            end, origin = self._end(request, line), line.origin
            if end is None and line.size:
                missing.append(line)
            elif origin is None or all(source in held for source in origin.lines):
                if (node := end) is None or origin is not None:
                    root = self._join(request, line)
                    node = end or root or tree.root(request.namespace_of(line))
                held[line] = node
                found.append(node)
                tree.lock(node)
        tree.touch(*found)
        return missing

    def _end(self, request: Request, line: Line) -> Node | None:
        """Give the node that a line of a request's ends at, None if the tree has not all of it."""
        rows, part = self._rows, self.part(request, line) if self._under_way else None
        if part is not None and part.row >= 0 and rows.shared[part.row] == part.length:
            return rows.node[part.row]
        node, known = _find(self._tree, request, line)
        return node if known == line.size else None

    def _join(self, request: Request, line: Line) -> Root | None:
        """Let the lines before a line stand before its namespace; give its root, if there are any."""
        if (origin := line.origin) is None:
            return None
        sources = tuple([request.held[source] for source in origin.lines])
        own = tuple([source.columns - origin.stem for source in origin.lines])
        return self._tree.join((origin.position, own, sources), partial(request.namespace_of, line))

    def find(self, request: Request, limit: int) -> tuple[Node, int]:
        """Find, and lock, what the cache has of a request whose lines are all held; it holds these by its own path.

        limit: how many columns may come from the cache.
        """
        root = self._join(request, request.line) if request.joined else None
        first = root is not None and not root.locks
        tokens = request.tokens[4 * request.base :]
        node, known = self._tree.match(tokens, limit - request.base, request.home, below=root)
        self._tree.lock(node, adopt=first)
        if first and (origin := request.line.origin) is not None:
            for line in origin.lines:  # the request's locks on them are the root's now
                del request.held[line]
        self.let_go(request)
        return node, min(request.base, limit) + known

    def let_go(self, request: Request) -> None:
        """Unlock what a request holds."""
        for node in request.held.values():
            self._tree.unlock(node)
        request.held.clear()

    # --- what is computed for it -----------------------------------------------------------------------------------

    def is_open(self, request: Request) -> bool:
        """Whether parts are computed for a request."""
        return request.number in self._open

    def parts(self, request: Request) -> list[Request]:
        """Name the parts that are made for a request and are not over."""
        return [] if (assembly := self._open.get(request.number)) is None else assembly.parts

    def part(self, request: Request, line: Line) -> Request | None:
        """Give the part that computes a line of a request's, for whomever, if there is one."""
        if not self._under_way:  # so tokens are not hashed for nothing
            return None
        return self._under_way.get((request.namespace_of(line), line.tokens))

    def open(self, request: Request, lines: Iterable[Line], owed: int) -> list[Request]:
        """Make a part of each line; owed: slots that all its parts and the request will need."""
        assembly = self._open.setdefault(request.number, Assembly(request, owed))
        assembly.owed = owed
        made: list[Request] = []
        for line in lines:
            key = request.namespace_of(line), line.tokens
            if key not in self._under_way:  # two branches may have said the same
                message = Generate(self._next, line.flat, _FILL, tenant=request.tenant, namespace=request.home)
                part = Request(message, request.arrival, request.since, line=line, whole=request)
                if not part.joined:
                    part.end, part.matched = _find(self._tree, request, line)
                    part.matched_version = self._tree.version
                self._under_way[key] = part
                made.append(part)
                self._next -= 1
        assembly.parts += made
        return made

    def began(self, part: Request, slots: int) -> None:
        """Know that a part has a row, which promises what it needs by itself."""
        assert part.whole is not None
        if (assembly := self._open.get(part.whole.number)) is not None:
            assembly.owed = max(0, assembly.owed - slots)

    def over(self, part: Request) -> None:
        """Know that a part is computed, or will not be."""
        self._under_way.pop((part.namespace_of(part.line), part.line.tokens), None)
        if part.whole is not None and (assembly := self._open.get(part.whole.number)) is not None:
            assembly.parts = [other for other in assembly.parts if other is not part]

    def close(self, request: Request) -> list[Request]:
        """Let go of a request's lines; gives the parts that nobody needs any more."""
        self.let_go(request)
        assembly = self._open.pop(request.number, None)
        return [] if assembly is None else list(assembly.parts)

    def youngest(self) -> Request | None:
        """Give the request that would yield first, if slots run short."""
        return max((one.request for one in self._open.values()), key=lambda one: one.arrival, default=None)

    def promised(self, but: Request) -> int:
        """Sum what the others are still to be given."""
        return sum(assembly.owed for number, assembly in self._open.items() if number != but.number)


def known_lines(tree: RadixTree, request: Request) -> tuple[int, tuple[Node, ...]]:
    """Count the columns the tree has of a joined request, and name where its lines' known parts end."""
    found = [_find(tree, request, line)[0] for line in request.lines]
    own: dict[int, int] = {}  # by where they start in the prompt: a line may be another's beginning
    for line, (_, known) in request.ends.items():
        own[line.start] = max(own.get(line.start, 0), known - (0 if line.above is None else line.above.size))
    columns = sum(own.values())
    return columns, tuple([node for node in found if node is not None])


def _find(tree: RadixTree, request: Request, line: Line) -> tuple[Node | None, int]:
    """Find what the tree knows of a line before a joined request, once as long as the tree stays the same."""
    if request.ends_version != tree.version:
        request.ends.clear()
        request.ends_version = tree.version
    found = request.ends.get(line)
    if found is None:
        if (above := line.above) is None:
            node, known, behind = tree.known_root(request.namespace_of(line)), 0, 0
        else:
            node, known = _find(tree, request, above)
            behind = above.size
        if node is not None and known == behind:
            node, at = tree.walk(node, line.prompt, 4 * line.end, 4 * line.start)
            known += at // 4 - line.start
        found = request.ends[line] = (node if known else None), known
    return found
