"""What live requests have said, for whoever has to go on with them elsewhere."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

__all__ = ["Outputs"]

_STEPS = 16
"""How many steps are sorted at once: what each costs is paid by so many tokens of a request together."""


class Outputs:
    """Write down what each step tells, and sort it by request once a few steps are there, or somebody asks."""

    def __init__(self) -> None:
        self._sorted: dict[int, bytearray] = {}
        self._steps: list[tuple[bytes, bytes]] = []

    def open(self, request: int) -> None:
        """Keep from now on what a request says."""
        self._sorted[request] = bytearray()

    def close(self, request: int) -> None:
        """Forget a request."""
        del self._sorted[request]

    def add(self, requests: bytes, tokens: bytes) -> None:
        """Take one step's tokens, int32, and whose each is, int64; those of requests not open go nowhere."""
        self._steps.append((requests, tokens))
        if len(self._steps) >= _STEPS:
            self._sort()

    def packed(self, request: int) -> bytes:
        """Give the tokens an open request has told so far, int32."""
        self._sort()
        return bytes(self._sorted[request])

    def _sort(self) -> None:
        whose = np.frombuffer(b"".join([requests for requests, _ in self._steps]), np.int64)
        said = np.frombuffer(b"".join([tokens for _, tokens in self._steps]), np.int32)
        self._steps.clear()
        order = whose.argsort(kind="stable")
        whose, packed = whose[order], said[order].tobytes()
        starts = np.flatnonzero(np.diff(whose, prepend=whose[:1] - 1)).tolist()
        for request, (start, end) in zip(whose[starts].tolist(), pairwise([*starts, len(whose)]), strict=True):
            if (output := self._sorted.get(request)) is not None:
                output += packed[4 * start : 4 * end]
