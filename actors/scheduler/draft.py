"""The step at hand: what it computes of prompts so far, and how much more it may."""

from __future__ import annotations

import msgspec

from ..messages import Extend
from .node import Node
from .request import Request
from .rows import Beginning, span
from .slot_pool import Slots
from .state import State

__all__ = ["Draft"]

_FEW = 4  # tokens: fewer are not put into the tree by themselves


class Chunk(msgspec.Struct, gc=False):
    """Tokens [start, end) of a row's request that the step computes.

    first: they are the row's first; complete: its last; ended: it leaves with them.  decodes: a step follows.
    """

    row: int
    request: Request
    start: int
    end: int
    first: bool
    complete: bool
    ended: bool
    decodes: bool


class Draft:
    """Chunks of rows' tokens, as long as the budget and the slots last.

    Chunks are decided one by one, and written down together (`settle`): of hundreds that begin in one step each would
    else take as many calls as one.  Whoever asks the rows has that done first.

    budget: tokens it may still compute of prompts.  computing: whose tokens it computes.  heads: how these begin, as
    far as a prompt must begin alike to wait for them.  extends: the chunks written down.  begun: the rows that sample
    their first token.  filled: the rows that were only to be prefilled, and are with it.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._chunks: list[Chunk] = []
        self._begins: list[Beginning] = []
        self._owed = 0  # slots, to the chunks that are not written down
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

    @property
    def room(self) -> int:
        """How many more slots it could take."""
        return self._state.memory.room - self._owed

    def begin(self, request: Request, node: Node, known: int, expected: int, most: int | None = None) -> int:
        """Give a request a row and compute its first chunk; tell its size.

        node, known: where what the cache has of it ends, which is locked for it, and how many tokens that is.
        expected: the length that is reserved for it.  most: tokens of the chunk; None for as many as the budget has.
        """
        row = self._state.rows.take(request, node)
        self._begins.append(Beginning(row, request, node, known, expected))
        return self._compute(row, request, known, request.length, most, limit=request.most_slots)

    def extend(self, row: int) -> int:
        """Compute the next chunk of a row's tokens, as far as budget and slots reach; tell its size.

        A row that has ended leaves with its last token.
        """
        rows = self._state.rows
        request = rows.request[row]
        assert request is not None
        start, target, limit = int(rows.length[row]), int(rows.target[row]), int(rows.limit[row])
        first, ended = bool(rows.last_step[row] < 0), bool(rows.ended[row])
        return self._compute(row, request, start, target, None, limit=limit, first=first, ended=ended)

    def _compute(
        self, row: int, request: Request, start: int, target: int, most: int | None, *, limit: int,
        first: bool = True, ended: bool = False,
    ) -> int:  # fmt: skip
        """Decide a row's next chunk: up to `target`, of at most `most` tokens or the budget; tell its size."""
        size = min(target - start, self.budget if most is None else most, self.room)
        if size <= 0:
            return 0
        end = start + size
        self._chunks.append(Chunk(row, request, start, end, first, end == target, ended, end < limit))
        self._owed += size
        self.budget -= size
        if start < request.length:  # what is forced behind it is the row's own
            self.computing.append(request)
            if self._state.options.prefix_cache:
                self.heads.add(request.tokens[: 4 * self._state.options.share_tokens])
        return size

    # --- writing it down -------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Write down what was decided: the rows that begin, whose slots are whose, and the step's extends."""
        if not self._begins and not self._chunks:
            return
        state = self._state
        rows, chunks, begins = state.rows, self._chunks, self._begins
        slots = state.memory.take(self._owed)
        self._chunks, self._begins, self._owed = [], [], 0
        rows.begin(begins)
        prefixes = self._prefixes(begins)
        at, packed = 0, slots.tobytes()
        for chunk in chunks:
            past = at + chunk.end - chunk.start
            rows.slots[chunk.row, chunk.start : chunk.end] = slots[at:past]
            self.extends.append(self._extend(chunk, packed[4 * at : 4 * past], prefixes))
            if chunk.start < chunk.request.base:  # the tree's token before its own line, read once more for its logits
                rows.shared[chunk.row], rows.duplicates[chunk.row] = chunk.request.base, 1
                rows.spare[chunk.row] = slots[at : at + 1]
            at = past
        where = span([chunk.row for chunk in chunks])
        rows.length[where] = [chunk.end for chunk in chunks]
        rows.last_step[where] = state.next_step
        state.counters.computed_tokens += at
        self._close([begin.row for begin in begins], chunks)

    def _prefixes(self, begins: list[Beginning]) -> dict[int, bytes]:
        """Put what is known of them into the rows that begin; give the slots, packed, by the row.

        Branches, which come in any order, have the same object: what they share is collected and sent once.
        """
        rows, collected = self._state.rows, dict[tuple[Node, int], tuple[Slots, bytes]]()
        found: dict[int, bytes] = {}
        for begin in begins:
            ends = begin.node, begin.known
            if ends not in collected:
                collected[ends] = self._state.memory.prefix(*ends)
            rows.slots[begin.row, : begin.known], found[begin.row] = collected[ends]
        return found

    def _extend(self, chunk: Chunk, slots: bytes, prefixes: dict[int, bytes]) -> Extend:
        """Tell the worker of a chunk.  prefixes: of the rows that have just begun."""
        state, request, start, end = self._state, chunk.request, chunk.start, chunk.end
        node, prefix = state.rows.node[chunk.row], b""
        assert node is not None
        if chunk.first:
            prefix = prefixes[chunk.row] if chunk.row in prefixes else state.memory.prefix(node, start)[1]
            if state.recorded.tracks:
                state.recorded.phase(request.number, "prefill")
        known = end <= request.length
        targets_start, targets = _targets(request, start, end)
        return Extend(
            chunk.row,
            start,
            request.tokens[4 * start : 4 * end] if known else state.rows.tokens[chunk.row, start:end].tobytes(),
            slots,
            chunk.complete and request.max_new_tokens > 0 and not chunk.ended,
            request.begin() if chunk.first else None,
            prefix,
            targets,
            targets_start,
            chunk.complete and request.next_logprobs,
            request.positions(start, end),
        )

    def _close(self, begun: list[int], chunks: list[Chunk]) -> None:
        """Let rows whose last chunk it is decode, or leave; the others go on in the next step."""
        state = self._state
        done = {chunk.row: chunk for chunk in chunks if chunk.complete}
        state.prefilling = [row for row in (*state.prefilling, *begun) if row not in done]
        sampling = [row for row, chunk in done.items() if chunk.request.max_new_tokens > 0 and not chunk.ended]
        self.begun += sampling
        state.rows.decoding[sampling] = [done[row].decodes for row in sampling]
        for row, chunk in done.items():
            if chunk.ended:
                state.leave(row)
            elif not chunk.request.max_new_tokens:
                self.filled.append(row)

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
        self.settle()
        rows, row = self._state.rows, request.row
        return row >= 0 and rows.length[row] == rows.target[row] and rows.last_step[row] == self._state.next_step

    def publish(self) -> None:
        """Put what it computes into the tree, for those that read it later; a few tokens wait for those behind them.

        Every branch has some of its own, which nobody else looks for, and a node for them costs as much as for many.
        """
        self.settle()
        if self._state.options.prefix_cache:
            rows, least = self._state.rows, min(_FEW, self._state.options.share_tokens)
            requests = self.computing[self._published :]
            where = span([request.row for request in requests])
            own = rows.length[where] - rows.shared[where]
            for request, few in zip(requests, (own < least).tolist(), strict=True):
                if request.whole is not None or not few:
                    self._state.publish(request.row)
            self._published = len(self.computing)


def _targets(request: Request, start: int, end: int) -> tuple[int, bytes]:
    """Name the tokens whose log-probabilities a chunk [start, end) yields: those behind its positions."""
    first = max(start, request.first_target - 1)
    last = min(end, request.prompt_tokens - 1)
    return (0, b"") if first >= last else (first, request.prompt[4 * (first + 1) : 4 * (last + 1)])
