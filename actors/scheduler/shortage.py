"""What gives way when slots run short: what is written for joins alone, the lines that joined requests wait with, and
then the youngest rows, which are retracted.
"""

from __future__ import annotations

import numpy as np

from .state import State

__all__ = ["Shortage"]


class Shortage:
    """Make room for those that go on; the oldest request always does."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._yields = 0  # joined requests that have yielded since something ran

    def retract(self) -> None:
        """Retract the youngest rows until those that go on find room, now or when the leaving ones are done."""
        state = self._state
        rows, memory = state.rows, state.memory
        self._write_no_more()
        while int(rows.decoding.sum()) > memory.room and (youngest := state.assemblies.youngest()) is not None:
            state.yield_lines(youngest)
        coming = sum(self._frees(row) for row in state.leaving)
        for row in self._victims():
            if int(rows.decoding.sum()) <= memory.room + coming:
                return
            if rows.last_step[row] > state.settled:
                coming += self._frees(row)
            state.retract(row)

    def unlock(self) -> bool:
        """Retract the youngest row when nothing can run and nothing is in flight; tell whether there was one.

        One request alone always fits, so a scheduler that still cannot go on has lost count: RuntimeError.
        """
        state = self._state
        if self._write_no_more():
            return True
        if (youngest := state.assemblies.youngest()) is not None and self._yields < 2 * len(state.live):
            self._yields += 1
            state.yield_lines(youngest)
            return True
        if victims := self._victims():
            state.retract(victims[0])
            return True
        if state.live:
            raise RuntimeError(
                f"nothing can run: {len(state.live)} requests live, {len(state.queue)} waiting, "
                f"{state.memory.room} of {state.memory.total} slots to be had"
            )
        return False

    def over(self) -> None:
        """Know that something runs."""
        self._yields = 0

    def _write_no_more(self) -> bool:
        """Leave it to joins to compute what rows that have said all they will, or soon have, would write for them.

        Tells whether a row ends by that.
        """
        state = self._state
        rows = state.rows
        rows.decoding &= rows.length < rows.prompt + rows.max_new - 1
        ended = [row for row in state.prefilling if rows.ended[row]]
        for row in ended:
            state.leave(row)
        return bool(ended)

    def _victims(self) -> list[int]:
        """Name the rows that could be retracted, the youngest first."""
        rows = self._state.rows
        running = np.flatnonzero(rows.taken & ~rows.leaving)
        by_age = running[np.argsort(rows.arrival[running])][1:]
        prefilling = set(self._state.prefilling)
        return [row for row in by_age[::-1].tolist() if rows.decoding[row] or row in prefilling]

    def _frees(self, row: int) -> int:
        """Estimate the room a leaving row makes: its own slots, and the end of its path if nobody else holds it."""
        rows = self._state.rows
        node = rows.node[row]
        alone = len(node.slots) if node is not None and node.locks == 1 else 0
        return int(rows.length[row] - rows.shared[row] + rows.duplicates[row]) + alone
