"""The waiting requests, and who is next."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from itertools import islice

from .node import Node
from .options import SchedulerOptions
from .radix_tree import RadixTree
from .request import Request

__all__ = ["WaitingQueue"]

_PREFERRED = 3  # admissions ahead of the oldest request once it has waited long enough


class WaitingQueue:
    """Order waiting requests by policy, at a cost bounded by the window, however many wait.

    Retracted requests come first, oldest first; then, by policy,

    first-come       the oldest;
    longest-prefix   whose prompt the tree knows longest, among three windows: the oldest; those that it knew longest
                     when it last looked; and those nearest in alphabetical order to the prompt admitted last, which
                     share the longest prefixes with it, so that a tree of prompts is visited depth first.

    What the tree knows of a waiting request it has on lease, as far as that was looked up, so that it is not evicted
    for the sake of what nobody asks for.

    No request waits for ever: once the oldest has waited `patience` steps, every fourth admission is its.  So at most
    three are preferred to it from then on, and a request with k older ones begins within 4 (k + 1) admissions.
    """

    def __init__(self, options: SchedulerOptions, tree: RadixTree) -> None:
        self._options = options
        self._tree = tree
        self._retracted: list[Request] = []  # by arrival
        self._waiting: OrderedDict[int, Request] = OrderedDict()  # by arrival
        self._by_prefix = options.policy == "longest-prefix"
        self._sorted: list[tuple[bytes, int]] = []  # prompt, number
        self._known: list[tuple[int, int, int]] = []  # -matched, arrival, number
        self._last = b""  # the prompt admitted last
        self._preferred = 0  # how many were admitted since the oldest was

    def __len__(self) -> int:
        return len(self._waiting) + len(self._retracted)

    def __contains__(self, request: Request) -> bool:
        return request.number in self._waiting or request in self._retracted

    def append(self, request: Request) -> None:
        """Let a new request wait."""
        self._waiting[request.number] = request
        if self._by_prefix:
            insort(self._sorted, (request.tokens, request.number))
            self._look(request)
            insort(self._known, (-request.matched, request.arrival, request.number))

    def put_back(self, request: Request) -> None:
        """Let a retracted request wait, ahead of all that never ran."""
        insort(self._retracted, request, key=lambda request: request.arrival)
        self._look(request)

    def remove(self, request: Request) -> None:
        """Take a request out: it is admitted or ended."""
        self._lease(request, None)
        if self._waiting.pop(request.number, None) is None:
            self._retracted.remove(request)
        elif self._by_prefix:
            del self._sorted[bisect_left(self._sorted, (request.tokens, request.number))]
            del self._known[bisect_left(self._known, (-request.matched, request.arrival, request.number))]

    def admitted(self, request: Request) -> None:
        """Take an admitted request out, and look around its prompt from now on."""
        oldest = next(iter(self._waiting.values()), None)
        self._preferred = 0 if request is oldest else self._preferred + 1
        self.remove(request)
        self._last = request.tokens

    def candidates(self, step: int) -> list[Request]:
        """Name the next requests to admit, the best first; at most four windows of them."""
        window = self._options.window
        chosen = self._retracted[:window]
        oldest = list(islice(self._waiting.values(), window))
        if not self._by_prefix:
            return chosen + oldest
        overdue = step - self._options.patience
        patient = [request for request in oldest if request.since <= overdue]
        preferred = self._prefer(oldest)
        return chosen + (self._interleave(preferred, patient) if patient else preferred)

    def _prefer(self, oldest: list[Request]) -> list[Request]:
        """Put the three windows in order."""
        window = self._options.window
        found = {request.number: request for request in oldest}
        for _, _, number in self._known[:window]:
            found[number] = self._waiting[number]
        at = bisect_left(self._sorted, (self._last, -1))
        for _, number in self._sorted[max(0, at - window // 2) : at + window - window // 2]:
            found[number] = self._waiting[number]
        for request in found.values():
            self._look_again(request)
        return sorted(found.values(), key=lambda request: (-request.matched, request.arrival))

    def _interleave(self, preferred: list[Request], patient: list[Request]) -> list[Request]:
        """Put the next of the patient, the oldest first, behind every third of the preferred."""
        order: dict[int, Request] = {}
        waiting, since = deque(patient), self._preferred
        for request in preferred:
            while waiting and waiting[0].number in order:
                waiting.popleft()
            if since >= _PREFERRED and waiting:
                order.setdefault(waiting[0].number, waiting.popleft())
                since = 0
            if request.number not in order:
                since = 0 if waiting and request is waiting[0] else since + 1
                order[request.number] = request
        return list(order.values())

    def _look(self, request: Request) -> None:
        known = self._tree.known(request.tokens, request.match_limit)
        if known != request.matched or request.leased is None:
            request.matched = known
            self._lease(request, self._tree.match(request.tokens, known)[0] if known else None)
        request.matched_version = self._tree.version

    def _lease(self, request: Request, node: Node | None) -> None:
        """Let a request have the path to `node` on lease, and no other."""
        if node is not None:
            self._tree.lease(node)
        if request.leased is not None:
            self._tree.end_lease(request.leased)
        request.leased = node

    def _look_again(self, request: Request) -> None:
        """Learn what the tree knows of a waiting request by now."""
        if request.matched_version == self._tree.version:
            return
        before = request.matched
        self._look(request)
        if request.matched != before:
            del self._known[bisect_left(self._known, (-before, request.arrival, request.number))]
            insort(self._known, (-request.matched, request.arrival, request.number))
