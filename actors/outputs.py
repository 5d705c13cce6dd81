"""What live requests have said, for whoever has to go on with them elsewhere."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence

from .messages import Delta

__all__ = ["Outputs"]

_STEPS = 16
"""How many steps are sorted at once: what each costs is paid by so many tokens of a request together."""


class Outputs:
    """Write down what each step tells, and sort it by request once a few steps are there, or somebody asks."""

    def __init__(self) -> None:
        self._sorted: dict[int, array[int]] = {}
        self._steps: list[tuple[Sequence[int], list[tuple[int, ...]]]] = []

    def open(self, request: int) -> None:
        """Keep from now on what a request says."""
        self._sorted[request] = array("i")

    def close(self, request: int) -> None:
        """Forget a request."""
        del self._sorted[request]

    def add(self, requests: Sequence[int], deltas: Sequence[Delta]) -> None:
        """Take one step's news, by request; that of requests which are not open goes nowhere."""
        self._steps.append((requests, [delta.tokens for delta in deltas]))  # log-probabilities are large
        if len(self._steps) >= _STEPS:
            self._sort()

    def packed(self, request: int) -> bytes:
        """Give the tokens an open request has told so far, int32."""
        self._sort()
        return self._sorted[request].tobytes()

    def _sort(self) -> None:
        said: defaultdict[int, list[int]] = defaultdict(list)
        for requests, told in self._steps:
            for request, tokens in zip(requests, told, strict=True):
                said[request].extend(tokens)
        self._steps.clear()
        for request, tokens in said.items():
            if (output := self._sorted.get(request)) is not None:
                output.extend(tokens)
