"""The step at hand: what it computes of prompts so far, and how much more it may."""

from __future__ import annotations

from ..messages import Extend
from .request import Request
from .state import State

__all__ = ["Draft"]

_FEW = 4  # tokens: fewer are not put into the tree by themselves


class Draft:
    """Chunks of rows' tokens, as long as the budget and the slots last.

    budget: tokens it may still compute of prompts.  computing: whose tokens it computes.  heads: how these begin, as
    far as a prompt must begin alike to wait for them.  begun: the rows that sample their first token.  filled: the rows
    that were only to be prefilled, and are with it.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self.open(0)

    def open(self, budget: int) -> None:
        """Begin the next step, with nothing in it."""
        self.budget = budget
        self.extends: list[Extend] = []
        self.computing: list[Request] = []
        self.heads: set[bytes] = set()
        self.begun: list[int] = []
        self.filled: list[int] = []
        self._published = 0  # of those it computes
        self._runs: dict[int, tuple[int, dict[bytes, list[Request]]]] = {}

    def extend(self, row: int, most: int | None = None) -> int:
        """Compute the next chunk of a row's tokens, as far as budget (or `most`) and slots reach; tell its size.

        A row that has ended leaves with its last token.
        """
        state = self._state
        rows, memory = state.rows, state.memory
        request, node = rows.request[row], rows.node[row]
        assert request is not None
        assert node is not None
        start, target = int(rows.length[row]), int(rows.target[row])
        size = min(target - start, self.budget if most is None else most, memory.room)
        if size <= 0:
            return 0
        end = start + size
        slots = memory.take(size)
        first = rows.last_step[row] < 0
        if first and state.recorded.tracks:
            state.recorded.phase(request.number, "prefill")
        complete, ended = end == target, bool(rows.ended[row])
        sample = complete and request.max_new_tokens > 0 and not ended
        targets_start, targets = _targets(request, start, end)
        self.extends.append(
            Extend(
                row,
                start,
                rows.tokens[row, start:end].tobytes(),
                slots.tobytes(),
                sample,
                request.begin() if first else None,
                memory.prefix(node, start)[1] if first else b"",
                targets,
                targets_start,
                complete and request.next_logprobs,
                request.positions(start, end),
            )
        )
        if start < request.base:  # the tree's token before its own line, read once more for its logits
            rows.shared[row], rows.spare[row], rows.duplicates[row] = request.base, slots[:1], 1
        if start < request.length:  # what is forced behind it is the row's own
            self.computing.append(request)
            if state.options.prefix_cache:
                self.heads.add(request.tokens[: 4 * state.options.share_tokens])
        rows.slots[row, start:end] = slots
        rows.length[row] = end
        rows.last_step[row] = state.next_step
        state.counters.computed_tokens += size
        self.budget -= size
        if complete:
            state.prefilling.remove(row)
            if sample:
                rows.decoding[row] = end < rows.limit[row]
                self.begun.append(row)
            elif ended:
                state.leave(row)
            else:
                self.filled.append(row)
        return size

    def computes(self, request: Request, start: int) -> bool:
        """Tell whether it computes tokens that begin as a request's do, up to `share_tokens` behind `start`.

        Branches differ in what is behind `start`, so that is looked up, and what is before it compared only where it is
        the same: else a step of n branches would compare n * n prompts.
        """
        end = start + self._state.options.share_tokens
        seen, runs = self._runs.get(start, (0, {}))
        for other in self.computing[seen:]:
            runs.setdefault(other.tokens[4 * start : 4 * end], []).append(other)
        self._runs[start] = len(self.computing), runs
        head, namespace = request.tokens[: 4 * end], request.namespace
        alike = runs.get(head[4 * start :], ())
        return any(other.tokens.startswith(head) and other.namespace == namespace for other in alike)

    def completes(self, request: Request) -> bool:
        """Tell whether it computes the last of a request's tokens."""
        rows, row = self._state.rows, request.row
        return row >= 0 and rows.length[row] == rows.target[row] and rows.last_step[row] == self._state.next_step

    def publish(self) -> None:
        """Put what it computes into the tree, for those that read it later; a few tokens wait for those behind them.

        Every branch has some of its own, which nobody else looks for, and a node for them costs as much as for many.
        """
        if self._state.options.prefix_cache:
            rows, least = self._state.rows, min(_FEW, self._state.options.share_tokens)
            for request in self.computing[self._published :]:
                row = request.row
                if request.whole is not None or rows.length[row] - rows.shared[row] >= least:
                    self._state.publish(row)
            self._published = len(self.computing)


def _targets(request: Request, start: int, end: int) -> tuple[int, bytes]:
    """Name the tokens whose log-probabilities a chunk [start, end) yields: those behind its positions."""
    first = max(start, request.first_target - 1)
    last = min(end, request.prompt_tokens - 1)
    return (0, b"") if first >= last else (first, request.prompt[4 * (first + 1) : 4 * (last + 1)])
