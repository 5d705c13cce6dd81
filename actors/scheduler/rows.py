"""The running requests, a row each: arrays over all rows, so that a step costs no loop over them.

    [0, shared)        the tree's slots, locked by this row's node; `duplicates` of them are the row's own all the same,
                       all of these behind `agreed`
    [shared, length)   the row's own slots
    [length, limit)    still to come; `expected` of them are reserved

A row is taken from admission until its last step in flight is done.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from .radix_tree import Node
from .request import Request
from .slot_pool import Slots

__all__ = ["Beginning", "Rows", "span"]

_NONE = np.empty(0, np.int32)


class Beginning(msgspec.Struct, gc=False):
    """What a row begins with: a request, of which the cache has `known` tokens, which end at `node`.

    expected: the length that was reserved for it.
    """

    row: int
    request: Request
    node: Node
    known: int
    expected: int

    def counts(self) -> tuple[int, ...]:
        """Give what the arrays over all rows say of it."""
        request, known = self.request, self.known
        return (
            known, known, known, request.prompt_tokens, request.length,
            request.most_slots, self.expected, request.outputs, request.max_new_tokens,
        )  # fmt: skip


class Rows:
    """Struct of arrays over rows 0 to max_rows - 1.

    length: tokens whose KV is written or being written.  prompt: prompt tokens.  target: tokens to compute before the
    first sample (the prompt and what earlier lives wrote).  tokens: those behind what the cache held, and the output.
    outputs: output tokens known.  limit: the most it may come
    to hold.  last_step: the last step the row takes part in.  decoding: takes part in the next step.
    bound: has a grammar; bound_rows: how many have.  surplus: the last step whose token of it nobody wants.
    stretches: how often tokens were forced on it.
    ended: its terminal event is out (or nobody wants it).  leaving: ended or to be retracted, but still in flight.
    """

    def __init__(self, max_rows: int) -> None:
        def zeros() -> npt.NDArray[np.int32]:
            return np.zeros(max_rows, np.int32)

        self.max_rows = max_rows
        self.number = np.zeros(max_rows, np.int64)
        self.arrival = np.zeros(max_rows, np.int64)
        self.last_step = np.full(max_rows, -1, np.int64)
        self._counts = np.zeros((9, max_rows), np.int32)  # what a row begins with (`Beginning.counts`)
        self.length, self.shared, self.agreed, self.prompt, self.target, *others = self._counts
        self.limit, self.expected, self.outputs, self.max_new = others
        self.duplicates, self.stretches = zeros(), zeros()
        self.surplus = np.full(max_rows, -1, np.int64)
        self._flags = np.zeros((6, max_rows), np.bool_)
        self.decoding, self.bound, self.ended, self.leaving, self.taken, self.logprobs = self._flags
        self.bound_rows = 0
        self.tokens = np.zeros((max_rows, 256), np.int32)  # zeros, not empty: pages nobody writes are never paid for
        self.slots = np.zeros((max_rows, 256), np.int32)
        self.request: list[Request | None] = [None] * max_rows
        self.node: list[Node | None] = [None] * max_rows
        self.spare: list[Slots] = [_NONE] * max_rows  # the duplicates
        self._ends: set[int] = set()  # the stop tokens of all that have had a row
        self._ending = np.zeros(1, np.bool_)  # the same, by token
        self._free = list(range(max_rows))  # a heap: low rows keep the worker's batches dense

    @property
    def free(self) -> int:
        """How many rows are free."""
        return len(self._free)

    def take(self, request: Request, node: Node) -> int:
        """Give a request a row; `begin` puts into it what it begins with."""
        row = heapq.heappop(self._free)
        self.request[row] = request
        self.node[row] = node
        request.row = row
        return row

    def begin(self, begins: Sequence[Beginning]) -> None:
        """Put into rows that were taken what they begin with, but for the slots of what is known."""
        if not begins:
            return
        where = span([begin.row for begin in begins])
        requests = [begin.request for begin in begins]
        self._widen(max([max(request.most_slots, request.length) for request in requests]) + 1)
        self.taken[where] = True
        self.number[where] = [request.number for request in requests]
        self.arrival[where] = [request.arrival for request in requests]
        self._counts[:, where] = np.array([begin.counts() for begin in begins], np.int32).T
        for begin in begins:
            row, request, sampling = begin.row, begin.request, begin.request.sampling
            if sampling.constraint is not None:
                self.bound[row] = True
                self.bound_rows += 1
            if sampling.return_logprob or sampling.top_logprobs_num:
                self.logprobs[row] = True
            if not self._ends.issuperset(request.stops):
                self._learn_ends(request.stops)
            first = min(begin.known, request.prompt_tokens)  # of those before it nobody asks the row
            self.tokens[row, first : request.length] = np.frombuffer(request.tokens, np.int32, offset=4 * first)

    def give(self, row: int) -> None:
        """Free a row, and leave in it what most requests begin with."""
        self.request[row] = self.node[row] = None
        self.spare[row] = _NONE
        self.bound_rows -= bool(self.bound[row])
        self._flags[:, row] = False
        self._counts[:, row] = 0
        self.duplicates[row] = self.stretches[row] = 0
        self.last_step[row] = self.surplus[row] = -1
        heapq.heappush(self._free, row)

    def own(self, row: int) -> Slots:
        """Collect the slots a row owns: those behind its shared part, and its duplicates."""
        return np.concatenate((self.slots[row, self.shared[row] : self.length[row]], self.spare[row]))

    def private(self) -> int:
        """Count the slots all rows own."""
        return int((self.length - self.shared + self.duplicates).sum())

    def output(self, row: int) -> bytes:
        """Copy a row's known output tokens."""
        start = int(self.prompt[row])
        return self.tokens[row, start : start + int(self.outputs[row])].tobytes()

    def may_end(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Tell of each of `tokens` whether it is a stop token of any request so far; few are."""
        return self._ending.take(tokens, mode="clip")

    def _learn_ends(self, tokens: tuple[int, ...]) -> None:
        self._ends.update(tokens)
        self._ending = np.zeros(max(self._ends) + 2, np.bool_)  # the last is that of any token behind it
        self._ending[list(self._ends)] = True

    def _widen(self, tokens: int) -> None:
        """Let the tables hold sequences of so many tokens; what free rows had is forgotten."""
        if tokens > self.tokens.shape[1]:
            width = 1 << (tokens - 1).bit_length()
            self.tokens, self.slots = self._wider(self.tokens, width), self._wider(self.slots, width)

    def _wider(self, table: npt.NDArray[np.int32], width: int) -> npt.NDArray[np.int32]:
        taken = self.taken.nonzero()[0]
        wide = np.zeros((self.max_rows, width), np.int32)
        wide[taken, : table.shape[1]] = table[taken]
        return wide


def span(rows: list[int]) -> slice | list[int]:
    """Give the same rows to index an array by: as a slice, which is faster, if they are neighbours in order.

    Those that begin together mostly are, and one by itself is.
    """
    first, count = rows[0] if rows else 0, len(rows)
    return slice(first, first + count) if rows == list(range(first, first + count)) else rows
