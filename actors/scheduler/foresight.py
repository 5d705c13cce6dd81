"""What is computed while there is nothing else to do: what programs that wait on the outside world will need."""

from __future__ import annotations

from ..messages import Generate
from ..sampling import SamplingParams
from .draft import Draft
from .request import Request
from .state import State

__all__ = ["Foresight"]

_FILL = SamplingParams(max_new_tokens=0)


class Foresight:
    """Compute a little of it a step, if no request is live and no step on its way.

    Whoever comes meanwhile waits for that little and no more: each chunk is a row's whole life, and between two nothing
    is held.  It takes free slots, and those of what nobody leases; if there are none, no more is computed.
    """

    def __init__(self, state: State, draft: Draft) -> None:
        self._state = state
        self._draft = draft

    def compute(self) -> None:
        """Let the step at hand, in which nothing is yet, compute a chunk."""
        state, draft = self._state, self._draft
        if state.live or state.flights:
            return
        memory, eager = state.memory, state.eager
        while not draft.extends and (ahead := eager.first()) is not None:
            program, tokens, namespace = ahead
            node, start = memory.tree.match(tokens, namespace=namespace)
            memory.tree.lock(node)  # its beginning makes no room for its end
            size = memory.spare(min((len(tokens) >> 2) - start, state.options.eager_tokens))
            if not size or program not in state.leases:
                memory.tree.unlock(node)
                eager.withdraw(program)
                continue
            chunk = tokens[: 4 * (start + size)]
            message = Generate(-program, chunk, _FILL, lease=program, namespace=namespace)
            request = Request(message, -1, 0)
            request.expected = request.length  # what nobody else wanted to have computed is charged to nobody
            row = state.rows.take(request, node, memory.tree.slots(node), 0)
            state.rows.ended[row] = True
            state.prefilling.append(row)
            draft.extend(row, size)
            draft.computing.clear()  # it is published as an answer is, for it has left
            eager.reached(program, start, start + size)
