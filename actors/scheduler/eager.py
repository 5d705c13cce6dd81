"""What programs that wait on the outside world have said, and nobody has computed yet."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

__all__ = ["Ahead", "Eager"]

_BOUND = 1024  # programs; of more, those that paused first are forgotten


class Ahead(NamedTuple):
    """All the tokens of a program, where in the cache it will look for them, and where branches are joined in them."""

    program: int
    tokens: bytes
    namespace: str = ""
    joins: bytes = b""


class Eager:
    """Know what to compute while nothing else is to do, the first that paused first; count what it was good for.

    computed: tokens.  used: how many of these a request of their program found in the cache.
    """

    def __init__(self) -> None:
        self.computed = 0
        self.used = 0
        self._pending: OrderedDict[int, Ahead] = OrderedDict()
        self._done: OrderedDict[int, tuple[int, int]] = OrderedDict()  # by program: from where to where it was computed

    def __len__(self) -> int:
        return len(self._pending)

    def foresee(self, ahead: Ahead) -> None:
        """Note what a program will need instead of what was noted."""
        self.withdraw(ahead.program)
        if ahead.tokens:
            self._pending[ahead.program] = ahead
            if len(self._pending) > _BOUND:
                self._pending.popitem(last=False)

    def withdraw(self, program: int) -> None:
        """Compute no more for a program."""
        self._pending.pop(program, None)

    def release(self, program: int) -> None:
        """Forget a program."""
        self.withdraw(program)
        self._done.pop(program, None)

    def clear(self) -> None:
        """Forget all of them."""
        self._pending.clear()
        self._done.clear()

    def first(self) -> Ahead | None:
        """Tell what to compute next, if anything."""
        return next(iter(self._pending.values()), None)

    def reached(self, program: int, start: int, end: int) -> None:
        """Note that a program's tokens at [start, end) were computed."""
        self.computed += end - start
        before = self._done.pop(program, (start, start))
        self._done[program] = (before[0] if before[1] == start else start, end)
        if len(self._done) > _BOUND:
            self._done.popitem(last=False)

    def began(self, program: int, cached: int) -> None:
        """Note that a program's request began, with so many tokens in the cache."""
        start, end = self._done.pop(program, (0, 0))
        self.used += max(0, min(end, cached) - start)
