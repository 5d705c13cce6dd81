"""What goes into the next step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..messages import Step
from .admission import Admission
from .draft import Draft
from .foresight import Foresight
from .shortage import Shortage
from .slot_pool import Slots
from .state import Flight, State

__all__ = ["Planner"]

# Rows with a grammar are not sent ahead while they are forced once in so many tokens, or more often.  A JSON document
# is at every seventh; a pause costs about a tenth of a small model's step.
_OFTEN = 16

_NONE = np.empty(0, np.int32)


class Planner:
    """Compose steps: decode every row that can, then go on with prompts, then admit.

    Decode rows cost one token each of `chunk_tokens`, prompts share the rest (at least a quarter of it), older ones
    first, in chunks if they are longer.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._draft = Draft(state)
        self._admission = Admission(state, self._draft)
        self._foresight = Foresight(state, self._draft)
        self._shortage = Shortage(state)

    def plan(self) -> Step | None:
        """Decide one step and count it as in flight, or give None if nothing can run now."""
        while True:
            step = self._compose()
            if step is not None or self._state.flights or not self._shortage.unlock():
                return step

    def _compose(self) -> Step | None:
        state, draft, chunk = self._state, self._draft, self._state.options.chunk_tokens
        decode_rows, decode_slots = self._decode()
        draft.open(max(chunk - len(decode_rows), chunk // 4, 1))
        for row in tuple(state.prefilling):
            draft.extend(row)
        self._admission.admit()
        self._admission.join()
        state.queue.lease()  # whoever still waits has what it will read on lease
        draft.settle()
        if not (draft.extends or len(decode_rows)):
            self._foresight.compute()
        if not (draft.extends or len(decode_rows)):
            return None
        self._shortage.over()
        draft.publish()
        return self._send(decode_rows, decode_slots)

    def _send(self, decode_rows: npt.NDArray[np.int64], decode_slots: Slots) -> Step:
        """Count the step as in flight."""
        state, extends, begun = self._state, self._draft.extends, self._draft.begun
        number = state.next_step
        state.next_step += 1
        state.counters.steps += 1
        decoding = decode_rows.astype(np.int32).tobytes()
        groups = self._group(decoding, decode_rows)
        writes = not extends and self._only_write(decode_rows)
        beginning = np.array(begun, np.int32).tobytes() if begun else b""
        sampled = np.concatenate((begun, decode_rows), dtype=np.int64) if begun else decode_rows
        packed = beginning + decoding
        if writes:
            sampled, packed = decode_rows[:0], b""
        state.flights.append(Flight(number, sampled, packed, begun, self._draft.filled))
        retired, state.retired = state.retired, []
        return Step(
            number,
            tuple(extends),
            decoding,
            decode_slots.tobytes(),
            np.array(retired, np.int32).tobytes() if retired else b"",
            groups,
            state.groups.describe_extends(extends) if len(extends) > 1 else b"",
            writes,
        )

    def _only_write(self, chosen: npt.NDArray[np.int64]) -> bool:
        """Tell whether rows decode for a join's sake alone: each writes the last token that it may say."""
        rows = self._state.rows
        if np.count_nonzero(rows.decoding[chosen]) or np.count_nonzero(rows.bound[chosen]):
            return False
        said = rows.length[chosen] >= rows.prompt[chosen] + rows.max_new[chosen]
        return bool(np.count_nonzero(said) == len(chosen))

    def _group(self, decoding: bytes, decode_rows: npt.NDArray[np.int64]) -> bytes:
        """Describe which of the rows that decode attend together, and count what that saves."""
        state = self._state
        counters, groups = state.counters, state.groups
        packed = groups.describe(decoding, decode_rows)
        counters.decode_kv_tokens += groups.attended
        if packed:
            counters.saved_kv_tokens += groups.saved
            counters.grouped_steps += 1
            counters.groups += groups.count
            counters.group_members += groups.members
            counters.largest_group = max(counters.largest_group, groups.largest)
        return packed

    # --- decode ----------------------------------------------------------------------------------------------------

    def _decode(self) -> tuple[npt.NDArray[np.int64], Slots]:
        """Give a slot to every row that decodes; if there are too few, to the oldest, and retract the youngest."""
        state = self._state
        rows, memory = state.rows, state.memory
        chosen = self._ready()
        if len(chosen) > memory.pool.free and len(chosen) > memory.room:
            self._shortage.retract()
            chosen = self._ready()
            if len(chosen) > memory.room:
                chosen = np.sort(chosen[np.argsort(rows.arrival[chosen])][: memory.room])
        if not len(chosen):
            return chosen, _NONE
        slots = memory.take(len(chosen))
        length = rows.length[chosen]
        rows.slots[chosen, length] = slots
        length += 1
        rows.length[chosen] = length
        rows.last_step[chosen] = state.next_step
        rows.decoding[chosen] = length < rows.limit[chosen]
        return chosen, slots

    def _ready(self) -> npt.NDArray[np.int64]:
        """Name the rows that decode in this step."""
        state = self._state
        chosen = state.rows.decoding.nonzero()[0]
        return self._hold_back(chosen) if state.flights and state.rows.bound_rows else chosen

    def _hold_back(self, chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Leave out, of rows that decode, some with a grammar that a step in flight may send on another way.

        One that has two steps in flight: what is forced behind the first one's token could find a later one written in
        its place.  And all of them, if they are often forced and a step would have nothing but them: it would be
        surplus too often to be worth more than the pause without it.
        """
        state = self._state
        rows = state.rows
        bound = rows.bound[chosen]
        waits = state.prefilling or (len(state.queue) and rows.free)
        if bound.all() and not waits:
            stretches, outputs = int(rows.stretches[chosen].sum()), int(rows.outputs[chosen].sum())
            if stretches * _OFTEN >= outputs:
                return chosen[:0]
        return chosen[~bound | (rows.length[chosen] <= rows.prompt[chosen] + rows.outputs[chosen])]
