"""What is computed while there is nothing else to do: what programs that wait on the outside world will need."""

from __future__ import annotations

from ..messages import Generate
from ..sampling import SamplingParams
from .draft import Draft
from .eager import Ahead
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
        while not draft.extends and (ahead := state.eager.first()) is not None:
            if not self._begin(ahead):
                state.eager.withdraw(ahead.program)

    def _begin(self, ahead: Ahead) -> bool:
        """Compute a chunk for a program; tell whether there was one, and room for it."""
        state, memory, assemblies = self._state, self._state.memory, self._state.assemblies
        program = ahead.program
        message = Generate(-program, ahead.tokens, _FILL, lease=program, namespace=ahead.namespace, joins=ahead.joins)
        request = Request(message, -1, 0)
        if program not in state.leases or assemblies.gather(request):  # who joins branches computes what they lack
            assemblies.let_go(request)
            return False
        node, start = assemblies.find(request, request.length)  # locked: its beginning makes no room for its end
        size = memory.spare(min(request.length - start, state.options.eager_tokens))
        if not size:
            memory.tree.unlock(node)
            return False
        request.expected = start + size  # what nobody else wanted to have computed is charged to nobody
        self._draft.begin(request, node, start, 0, size)
        self._draft.settle()
        self._draft.computing.clear()  # it is published as an answer is:
        state.rows.ended[request.row] = True
        state.leave(request.row)
        state.eager.reached(program, start, start + size)
        return True
