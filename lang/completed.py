"""Branches in the order in which they come to the end of what they were asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from .branch import Branch, Kin
from .crossing import await_in, wait_in
from .tracks import awaiting
from .watch import Watch

if TYPE_CHECKING:
    from .state import ProgramState

__all__ = ["Completed"]


class Completed:
    """Give each branch once it has said everything it was asked for so far; iterate it, async or not.

    A branch that failed is given too if the fork collects errors; otherwise its error is raised.  Leaving early
    cancels nothing.
    """

    def __init__(self, kin: Kin, loop: Any, state_of: Callable[[Branch], ProgramState]) -> None:
        self._kin = kin
        self._loop = loop
        self._state_of = state_of
        self._watch = Watch()
        first = kin.branches[0].track
        self._parent = None if first is None else first.above
        self._waiting: set[int] | None = None  # those that were not given, once somebody asked
        self._ready: deque[Branch] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ProgramState:
        branch = await await_in(self._loop, self.next)
        if branch is None:
            raise StopAsyncIteration
        return self._state_of(branch)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ProgramState:
        branch = wait_in(self._loop, self.next, "async for branch in group.as_completed()")
        if branch is None:
            raise StopIteration
        return self._state_of(branch)

    async def next(self) -> Branch | None:
        """Wait for the next branch, in the stream's loop; None behind the last."""
        if self._waiting is None:
            self._waiting = set(range(len(self._kin.branches)))
            self._look(self._waiting, list(self._waiting))
        while not self._ready:
            if not self._waiting:
                return None
            with awaiting(self._parent, "branch"):
                rung = await self._watch.rung()
            self._look(self._waiting, rung)
        branch = self._ready.popleft()
        if self._kin.on_error != "collect":
            self._kin.check(branch)
        return branch

    def _look(self, waiting: set[int], indexes: list[int]) -> None:
        for index in indexes:
            branch = self._kin.branches[index]
            if branch.dismissed:
                waiting.discard(index)
            elif branch.over or branch.executed == branch.submitted:
                waiting.discard(index)
                self._ready.append(branch)
            else:
                self._watch.add(index, branch.bell)
