"""What a program would say, as a graph: nodes in the order they are said, one line of them a branch."""

from __future__ import annotations

import html
from typing import TextIO

import msgspec

__all__ = ["Graph", "Node"]

_WIDTH, _HEIGHT, _GAP = 240, 28, 16  # pixels
_COLOURS = {"text": "#eeeeee", "argument": "#fff2cc", "variable": "#fff2cc", "gen": "#d5e8d4", "select": "#d5e8d4"}


class Node(msgspec.Struct, frozen=True):
    """One thing that is said.

    kind: text, argument, variable, gen, select, begin, end, open, close, fork, join or call.  after: the numbers of the
    nodes it follows.  branch: which line it is in; 0 is the program's own.
    """

    number: int
    kind: str
    label: str
    after: tuple[int, ...]
    branch: int

    def __str__(self) -> str:
        return f"{self.kind} {self.label}".rstrip()


class Graph:
    """The nodes of one program, and the text it begins with whatever its arguments are.

    prefix: constant text, as the backend's chat template writes it, before the first thing that is not constant.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[Node] = []
        self.branches = 0
        self.prefix = ""

    def add(self, kind: str, label: str, after: tuple[int, ...], branch: int) -> Node:
        """Add a node behind others."""
        node = Node(len(self.nodes), kind, label, after, branch)
        self.nodes.append(node)
        return node

    def __str__(self) -> str:
        """Give one line a node, depth first, a branch deeper than what it comes from."""
        follow: dict[int, list[Node]] = {node.number: [] for node in self.nodes}
        for node in self.nodes:
            if node.after:
                follow[node.after[0]].append(node)
        lines = [self.name]
        waiting = [(node, 1) for node in reversed(self.nodes) if not node.after]
        while waiting:
            node, depth = waiting.pop()
            lines.append("  " * depth + f"{node.number} {node}")
            waiting += [(other, depth + (other.branch > node.branch)) for other in reversed(follow[node.number])]
        return "\n".join(lines)

    def print_graph_dfs(self, file: TextIO | None = None) -> str:
        """Give it as text, one line a node, depth first; a file is written to, too."""
        if file is not None:
            file.write(f"{self}\n")
        return str(self)

    @property
    def last_node(self) -> Graph:
        """Give the graph itself: the place where SGLang's programs ask for `print_graph_dfs`."""
        return self

    def mermaid(self) -> str:
        """Give it in Mermaid's language, as Markdown pages and notebooks draw it."""
        lines = ["flowchart TD"]
        for node in self.nodes:
            label = "".join(f"#{ord(one)};" if one in '"#&<>`[]{}|\\' else one for one in str(node))
            lines.append(f'    n{node.number}["{label}"]')
            lines += [f"    n{before} --> n{node.number}" for before in node.after]
        return "\n".join(lines) + "\n"

    def svg(self) -> str:
        """Give it as an SVG picture: a column a branch, a row a step."""
        rows: dict[int, int] = {}
        for node in self.nodes:
            rows[node.number] = max((rows[before] + 1 for before in node.after), default=0)
        width = (self.branches + 1) * (_WIDTH + _GAP) + _GAP
        height = (max(rows.values(), default=0) + 1) * (_HEIGHT + _GAP) + _GAP
        place = {
            node.number: (_GAP + node.branch * (_WIDTH + _GAP), _GAP + rows[node.number] * (_HEIGHT + _GAP))
            for node in self.nodes
        }
        size = f'width="{width}" height="{height}"'
        parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" font-size="12">']
        for node in self.nodes:
            x, y = place[node.number]
            for before in node.after:
                other_x, other_y = place[before]
                parts.append(
                    f'<line x1="{other_x + _WIDTH // 2}" y1="{other_y + _HEIGHT}" x2="{x + _WIDTH // 2}" y2="{y}" '
                    'stroke="#666666"/>'
                )
        for node in self.nodes:
            x, y = place[node.number]
            text = str(node)
            shown = html.escape(text if len(text) <= 31 else text[:30] + "…")
            parts.append(
                f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="4" stroke="#666666" '
                f'fill="{_COLOURS.get(node.kind, "#dae8fc")}"><title>{html.escape(text)}</title></rect>'
                f'<text x="{x + 8}" y="{y + 18}">{shown}</text>'
            )
        return "\n".join([*parts, "</svg>\n"])

    def _repr_svg_(self) -> str:
        return self.svg()
