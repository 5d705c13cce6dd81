"""What a row's grammar leaves no choice about: said at once, behind the token that was sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..messages import Extend, Forced
from .batch import Sampled
from .choose import Choice
from .rows import BIAS, LOGPROB, Rows

if TYPE_CHECKING:
    from llguidance import LLMatcher

__all__ = ["FastForward"]

# One forced token costs a step either way: the one on its way, whose token is surplus.
_LEAST = 2


class FastForward:
    """Find forced tokens, and tell which rows are ahead of what they were given.

    A row is ahead from the `collect` that finds its tokens to the Extend that brings them; what it samples meanwhile
    means nothing, and nothing counts it.  Rows that want log-probabilities are never ahead (nobody computes those of
    forced tokens), nor are those with a bias, which may be against the spelling that llguidance would choose.
    """

    def __init__(self, rows: Rows, *, enabled: bool) -> None:
        self._rows = rows
        self.enabled = enabled

    def look(self, row: int, matcher: LLMatcher) -> Forced | None:
        """Let a matcher that has just taken a token take what it is forced to; None if that is too little."""
        rows = self._rows
        extras = rows.live(row)
        if not self.enabled or rows.features[row] & (LOGPROB | BIAS):
            return None
        tokens = matcher.compute_ff_tokens()
        if len(tokens) < _LEAST or not matcher.consume_tokens(tokens):
            return None
        extras.forced = np.array(tokens, np.int32)
        return Forced(row, extras.forced.tobytes())

    def ahead(self, sampled: Sampled, choice: Choice) -> frozenset[int]:
        """Name the indices, among the sampled rows, of those that are ahead."""
        if not self.enabled or not choice.grammar:
            return frozenset()
        rows, listed = self._rows, sampled.listed
        return frozenset(index for index in choice.grammar if rows.live(listed[index]).forced is not None)

    def resume(self, extend: Extend) -> None:
        """Count the forced tokens of a row as generated, now that it is given them."""
        rows, row = self._rows, extend.row
        extras = rows.live(row)
        tokens, extras.forced = extras.forced, None
        if tokens is None:
            return
        rows.generated[row] += len(tokens)
        if rows.penalties.has(row):
            rows.penalties.add(row, tokens)
