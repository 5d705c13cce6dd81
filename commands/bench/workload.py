"""What a bench asks for: requests of given lengths, random tokens, every output as long as told."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

import numpy as np

__all__ = ["Request", "Thoughts", "Workload", "parse_workload"]

_PATTERN = re.compile(r"(\d+)x(?:(\d+)\*(\d+)\+)?(\d+)(?:-(\d+))?/(\d+)(?:-(\d+))?")
_TREE = re.compile(r"(\d{1,4})\^(\d{1,2})\*(\d+)/(\d+)")
_MOST_LEAVES = 4096  # what an engine queues if nobody says otherwise


@dataclass(frozen=True, slots=True)
class Request:
    """One request: its prompt, int32 tokens, and how many tokens it is to give.

    Its first `shared` tokens are those of all requests of its group.  parent: the number of a request whose prompt and
    output, `before` tokens, stand before its prompt, and which it therefore waits for.
    """

    prompt: bytes
    outputs: int
    group: int = 0
    shared: int = 0
    parent: int | None = None
    before: int = 0

    @property
    def inputs(self) -> int:
        return self.before + len(self.prompt) // 4

    @property
    def own(self) -> int:
        """The tokens of its prompt that are no other request's."""
        return self.inputs - self.before - self.shared


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that arrive at once.  inputs, outputs: the least and the most tokens, a shared prefix not counted.

    groups: among how many prefixes of `shared` tokens the requests are dealt; 0 if each stands alone.
    """

    count: int
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    groups: int = 0
    shared: int = 0

    @property
    def longest(self) -> int:
        """The tokens of its longest request, its output included."""
        return self.shared + self.inputs[1] + self.outputs[1]

    def __str__(self) -> str:
        prefix = f"{self.groups}*{self.shared}+" if self.groups else ""
        return f"{self.count}x{prefix}{_range(self.inputs)}/{_range(self.outputs)}"

    def requests(self, vocabulary: int, seed: int = 0) -> list[Request]:
        """Draw them; no two prompts share a beginning worth caching, beyond their group's prefix."""
        lengths = Random(seed)  # noqa: S311  (lengths, not secrets)
        draws = np.random.default_rng(seed)

        def draw(tokens: int) -> bytes:
            return draws.integers(0, min(vocabulary, 10_000), tokens, dtype=np.int32).tobytes()

        prefixes = [draw(self.shared) for _ in range(self.groups)] or [b""]
        return [
            Request(
                prefixes[number % len(prefixes)] + draw(lengths.randint(*self.inputs)),
                lengths.randint(*self.outputs),
                number % len(prefixes),
                self.shared,
            )
            for number in range(self.count)
        ]


@dataclass(frozen=True, slots=True)
class Thoughts:
    """A tree of requests: behind a root prompt `branches` of them, behind each as many again, `depth` levels of them.

    root: tokens of the prompt.  node: tokens of a request, of which the first is given and tells it from its siblings,
    and the others are its output.  A request is sent when the one above it has its end.
    """

    branches: int
    depth: int
    root: int
    node: int

    @property
    def longest(self) -> int:
        """The tokens of its longest request, its output included."""
        return self.root + self.depth * self.node

    def __str__(self) -> str:
        return f"{self.branches}^{self.depth}*{self.root}/{self.node}"

    def requests(self, vocabulary: int, seed: int = 0) -> list[Request]:
        """Draw them, level by level."""
        draws = np.random.default_rng(seed)
        root = draws.integers(0, min(vocabulary, 10_000), self.root, dtype=np.int32).tobytes()
        drawn: list[Request] = []
        above: list[int | None] = [None]
        for _ in range(self.depth):
            begun = len(drawn)
            for parent in above:
                for branch in range(self.branches):
                    own = np.int32(branch).tobytes()
                    if parent is None:
                        drawn.append(Request(root + own, self.node - 1, shared=self.root))
                    else:
                        before = drawn[parent].inputs + drawn[parent].outputs
                        drawn.append(Request(own, self.node - 1, parent=parent, before=before))
            above = list(range(begun, len(drawn)))
        return drawn


def parse_workload(text: str) -> Workload | Thoughts:
    """Read REQUESTSxINPUT/OUTPUT, where a length may be a range: 256x100-1024/100-1024.

    256x4*8192+32/256 are 256 requests of 32 tokens each behind one of 4 prefixes of 8,192.  5^4*1024/128 is a tree
    below a prompt of 1,024: 5 requests, behind each of these 5, and so on, 4 levels, each of 128 tokens.

    Raises ValueError that says how it is written.
    """
    if (tree := _TREE.fullmatch(text)) is not None:
        branches, depth, root, node = map(int, tree.groups())
        if min(branches, depth, root) < 1 or node < 2 or branches**depth > _MOST_LEAVES:
            raise ValueError(
                f"workload is {text!r}; a tree has 1 branch or more, 1 level or more, at most {_MOST_LEAVES:,} leaves, "
                "a root of 1 token or more, nodes of 2 or more"
            )
        return Thoughts(branches, depth, root, node)
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(
            f"workload is {text!r}; write REQUESTSxINPUT/OUTPUT, as 64x1024/256 or 256x100-1024/100-1024, "
            "REQUESTSxGROUPS*PREFIX+INPUT/OUTPUT, as 256x4*8192+32/256, "
            "or for a tree BRANCHES^LEVELS*ROOT/NODE, as 5^4*1024/128"
        )
    numbers = (None if found is None else int(found) for found in match.groups())
    count, groups, shared, least_in, most_in, least_out, most_out = numbers
    assert count is not None
    assert least_in is not None
    assert least_out is not None
    inputs, outputs = (least_in, most_in or least_in), (least_out, most_out or least_out)
    if count < 1 or not 1 <= inputs[0] <= inputs[1] or not 1 <= outputs[0] <= outputs[1]:
        raise ValueError(f"workload is {text!r}; counts and lengths must be at least 1, and a range must not fall")
    if groups is not None and (not 1 <= groups <= count or not shared):
        raise ValueError(f"workload is {text!r}; it has {count} requests, so 1 to {count} groups, of at least 1 token")
    return Workload(count, inputs, outputs, groups or 0, shared or 0)


def _range(bounds: tuple[int, int]) -> str:
    return str(bounds[0]) if bounds[0] == bounds[1] else f"{bounds[0]}-{bounds[1]}"
