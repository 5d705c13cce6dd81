"""What a bench asks for: requests of given lengths, random tokens, every output as long as told."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

import numpy as np

__all__ = ["Request", "Workload", "parse_workload"]

_PATTERN = re.compile(r"(\d+)x(\d+)(?:-(\d+))?/(\d+)(?:-(\d+))?")


@dataclass(frozen=True, slots=True)
class Request:
    """One request: its prompt, int32 tokens, and how many tokens it is to give."""

    prompt: bytes
    outputs: int

    @property
    def inputs(self) -> int:
        return len(self.prompt) // 4


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that arrive at once.  inputs, outputs: the least and the most tokens."""

    count: int
    inputs: tuple[int, int]
    outputs: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.count}x{_range(self.inputs)}/{_range(self.outputs)}"

    def requests(self, vocabulary: int, seed: int = 0) -> list[Request]:
        """Draw them; no two prompts share a beginning worth caching."""
        lengths = Random(seed)  # noqa: S311  (lengths, not secrets)
        draws = np.random.default_rng(seed)
        most = min(vocabulary, 10_000)
        return [
            Request(
                draws.integers(0, most, lengths.randint(*self.inputs), dtype=np.int32).tobytes(),
                lengths.randint(*self.outputs),
            )
            for _ in range(self.count)
        ]


def parse_workload(text: str) -> Workload:
    """Read REQUESTSxINPUT/OUTPUT, where a length may be a range: 256x100-1024/100-1024.

    Raises ValueError that says how it is written.
    """
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(f"workload is {text!r}; write REQUESTSxINPUT/OUTPUT, as 64x1024/256 or 256x100-1024/100-1024")
    count, least_in, most_in, least_out, most_out = (None if group is None else int(group) for group in match.groups())
    assert count is not None
    assert least_in is not None
    assert least_out is not None
    inputs, outputs = (least_in, most_in or least_in), (least_out, most_out or least_out)
    if count < 1 or not 1 <= inputs[0] <= inputs[1] or not 1 <= outputs[0] <= outputs[1]:
        raise ValueError(f"workload is {text!r}; counts and lengths must be at least 1, and a range must not fall")
    return Workload(count, inputs, outputs)


def _range(bounds: tuple[int, int]) -> str:
    return str(bounds[0]) if bounds[0] == bounds[1] else f"{bounds[0]}-{bounds[1]}"
