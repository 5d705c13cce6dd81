"""The waiting requests, and who is next."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from .options import SchedulerOptions
from .radix_tree import RadixTree
from .request import Request

__all__ = ["WaitingQueue"]


class WaitingQueue:
    """Order waiting requests by policy, at a cost bounded by the window, however many wait.

    Retracted requests come first, oldest first.  Then those that have waited `patience` steps, oldest first: nothing
    that came later overtakes them any more, so no request waits for ever.  Then, by policy,

    first-come       the oldest;
    longest-prefix   of the `window` oldest, and the `window` nearest in alphabetical order to the prompt admitted
                     last, those whose prompt the tree knows longest.  Alphabetical neighbours share the longest
                     prefixes, so a walk along them visits a tree of prompts depth first.
    """

    def __init__(self, options: SchedulerOptions, tree: RadixTree) -> None:
        self._options = options
        self._tree = tree
        self._retracted: list[Request] = []  # by arrival
        self._waiting: OrderedDict[int, Request] = OrderedDict()  # by arrival
        self._sorted: list[tuple[bytes, int]] | None = [] if options.policy == "longest-prefix" else None
        self._last = b""  # the prompt admitted last

    def __len__(self) -> int:
        return len(self._waiting) + len(self._retracted)

    def __contains__(self, request: Request) -> bool:
        return request.number in self._waiting or request in self._retracted

    def append(self, request: Request) -> None:
        """Let a new request wait."""
        self._waiting[request.number] = request
        if self._sorted is not None:
            insort(self._sorted, (request.tokens, request.number))

    def put_back(self, request: Request) -> None:
        """Let a retracted request wait, ahead of all that never ran."""
        insort(self._retracted, request, key=lambda request: request.arrival)

    def remove(self, request: Request) -> None:
        """Take a request out: it is admitted or ended."""
        if self._waiting.pop(request.number, None) is None:
            self._retracted.remove(request)
        elif self._sorted is not None:
            del self._sorted[bisect_left(self._sorted, (request.tokens, request.number))]

    def admitted(self, request: Request) -> None:
        """Take an admitted request out, and look around its prompt from now on."""
        self.remove(request)
        self._last = request.tokens

    def candidates(self, step: int) -> list[Request]:
        """Name the next requests to admit, the best first; at most a few windows of them."""
        window = self._options.window
        chosen = self._retracted[:window]
        oldest = list(islice(self._waiting.values(), window))
        overdue = step - self._options.patience
        patient = 0
        while patient < len(oldest) and oldest[patient].since <= overdue:
            patient += 1
        chosen += oldest[:patient]
        if self._sorted is None:
            return chosen + oldest[patient:]
        rest = {request.number: request for request in oldest[patient:]}
        at = bisect_left(self._sorted, (self._last, -1))
        for _, number in self._sorted[max(0, at - window // 2) : at + window - window // 2]:
            rest[number] = self._waiting[number]
        for request in oldest[:patient]:
            rest.pop(request.number, None)
        return chosen + sorted(rest.values(), key=self._preference())

    def _preference(self) -> Callable[[Request], tuple[int, int]]:
        tree, version = self._tree, self._tree.version

        def preference(request: Request) -> tuple[int, int]:
            if request.matched_version != version:
                request.matched = tree.known(request.tokens, request.match_limit)
                request.matched_version = version
            return -request.matched, request.arrival

        return preference
