"""How much of its allowed output a request is expected to write."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from .options import SchedulerOptions

__all__ = ["OutputEstimate"]

_WEIGHT = 1 / 32  # of the latest request in the running share
_RAISE = 0.25  # added by a retraction: the share was too low


class OutputEstimate:
    """A running share of max_new_tokens.  It starts cautious, follows what requests use, and jumps at a retraction."""

    def __init__(self, options: SchedulerOptions) -> None:
        self.share = 0.5
        self._all = options.reserve_all
        self._least = options.reserve_least

    def expect(self, max_new_tokens: int) -> int:
        """Tell how many output slots to reserve for a request that begins."""
        if max_new_tokens <= self._all:
            return max_new_tokens
        return min(max_new_tokens, max(self._all, math.ceil(self.share * max_new_tokens)))

    def promised(
        self, expected: npt.NDArray[np.int32], limit: npt.NDArray[np.int32], length: npt.NDArray[np.int32]
    ) -> int:
        """Sum what running rows are still to be given: up to their expected length, but always a few tokens more.

        expected, limit, length: a row's length in slots as expected when it began, at most, and now.
        """
        return int(np.minimum(limit - length, np.maximum(expected - length, self._least)).sum())

    def promise(self, expected: int, limit: int, length: int) -> int:
        """Tell the same of one row."""
        return min(limit - length, max(expected - length, self._least))

    def finished(self, tokens: int, max_new_tokens: int) -> None:
        """Learn from a request that ended by itself."""
        if max_new_tokens > self._all:
            self.share += _WEIGHT * (tokens / max_new_tokens - self.share)

    def retracted(self) -> None:
        """Learn that too many were admitted."""
        self.share = min(1.0, self.share + _RAISE)
