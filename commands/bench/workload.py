"""What a bench asks for: requests of given lengths, random tokens, every output as long as told."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

import numpy as np

__all__ = ["Request", "Workload", "parse_workload"]

_PATTERN = re.compile(r"(\d+)x(?:(\d+)\*(\d+)\+)?(\d+)(?:-(\d+))?/(\d+)(?:-(\d+))?")


@dataclass(frozen=True, slots=True)
class Request:
    """One request: its prompt, int32 tokens, and how many tokens it is to give.

    Its first `shared` tokens are those of all requests of its group.
    """

    prompt: bytes
    outputs: int
    group: int = 0
    shared: int = 0

    @property
    def inputs(self) -> int:
        return len(self.prompt) // 4


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


def parse_workload(text: str) -> Workload:
    """Read REQUESTSxINPUT/OUTPUT, where a length may be a range: 256x100-1024/100-1024.

    256x4*8192+32/256 are 256 requests of 32 tokens each behind one of 4 prefixes of 8,192.

    Raises ValueError that says how it is written.
    """
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(
            f"workload is {text!r}; write REQUESTSxINPUT/OUTPUT, as 64x1024/256 or 256x100-1024/100-1024, "
            "or REQUESTSxGROUPS*PREFIX+INPUT/OUTPUT, as 256x4*8192+32/256"
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
