"""The waiting requests of one tenant, and who is next."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Iterable
from itertools import islice

from .assembly import known_lines
from .node import Node
from .options import SchedulerOptions
from .programs import Programs
from .radix_tree import RadixTree
from .request import Request

__all__ = ["WaitingQueue"]

_PREFERRED = 3  # admissions ahead of a request that has waited long enough


class WaitingQueue:
    """Order waiting requests by policy, at a cost bounded by the window, however many wait.

    Retracted requests come first, oldest first; then, by policy,

    first-come       the oldest;
    longest-prefix   whose program has the fewest requests out (`Programs`), and of those whose prompt the tree knows
                     longest, among three windows: the oldest; those that came first in this order when it last looked;
                     and those nearest in alphabetical order to the prompt admitted last, which share the longest
                     prefixes with it, so that a tree of prompts is visited depth first.

    What the tree knows of a waiting request it has on lease, as far as that was looked up, so that it is not evicted
    for the sake of what nobody asks for.

    No request waits for ever: of those that have waited `patience` steps, every fourth admission takes one, by turns
    the oldest and the one that the tree knows least (of equals, the oldest).  So a request with k older ones begins
    within 8 (k + 1) admissions from then on; and one with j older ones that the tree knows as little within 8 (j + 1),
    however many that it knows better have piled up.
    """

    def __init__(self, options: SchedulerOptions, tree: RadixTree) -> None:
        self._options = options
        self._tree = tree
        self._retracted: list[Request] = []  # by arrival
        self._waiting: OrderedDict[int, Request] = OrderedDict()  # by arrival
        self._by_prefix = options.policy == "longest-prefix"
        self._programs = Programs(options.promotion, self._rank)
        self._sorted: list[tuple[bytes, int]] = []  # prompt, number
        self._known: list[tuple[int, int, int, int]] = []  # rank, -matched, arrival, number
        self._last = b""  # the prompt admitted last
        self._preferred = 0  # how many were admitted since one was that had waited long enough
        self._coldest = False  # whether the next of these is the coldest, not the oldest

    def __len__(self) -> int:
        return len(self._waiting) + len(self._retracted)

    def __contains__(self, request: Request) -> bool:
        return request.number in self._waiting or request in self._retracted

    def append(self, request: Request, *, look: bool = True) -> None:
        """Let a new request wait.  look: else `look` is called for it before it is compared with another."""
        self._waiting[request.number] = request
        request.rank = self._programs.came(request) if self._by_prefix else 0
        if look:
            self.look(request)

    def look(self, request: Request) -> None:
        """Learn for the first time what the tree knows of a waiting request, and where that puts it."""
        if self._by_prefix:
            insort(self._sorted, (request.tokens, request.number))
            self._look(request)
            self._stand(request)

    def put_back(self, request: Request) -> None:
        """Let a retracted request wait, ahead of all that never ran."""
        insort(self._retracted, request, key=_arrival)
        if not request.held:  # what stands before it is locked, or has a lease by its parts
            self._look(request)

    def advance(self, request: Request) -> None:
        """Let a waiting request stand where one that is put back would; it keeps its lease."""
        if self._waiting.pop(request.number, None) is not None:
            self._withdraw(request)
            insort(self._retracted, request, key=_arrival)

    def remove(self, request: Request) -> None:
        """Take a request out: it is admitted or ended."""
        self._lease(request, ())
        if self._waiting.pop(request.number, None) is None:
            self._retracted.remove(request)
        else:
            self._withdraw(request)

    def admitted(self, request: Request) -> None:
        """Take an admitted request out, and look around its prompt from now on."""
        self.remove(request)
        self._last = request.tokens
        if request.patient:
            self._preferred, self._coldest = 0, not self._coldest
        else:
            self._preferred += 1

    def ended(self, request: Request) -> None:
        """Know that a request which came here is over, wherever it was."""
        self._programs.ended(request)

    def release(self, program: int) -> None:
        """Know that a program will ask for nothing more."""
        self._programs.release(program)

    def candidates(self, step: int) -> list[Request]:
        """Name the next requests to admit, the best first; at most four windows of them."""
        window = self._options.window
        chosen = self._retracted[:window]
        oldest = list(islice(self._waiting.values(), window))
        if not self._by_prefix:
            return chosen + oldest
        self._programs.age(step)
        preferred = self._prefer(oldest)
        overdue = step - self._options.patience
        patient = [request for request in oldest if request.since <= overdue]
        if not patient:
            return chosen + preferred
        coldest = [request for request in self._least_known(window) if request.since <= overdue]
        for request in coldest:
            self._look_again(request)
        coldest.sort(key=lambda request: (request.matched, request.arrival))
        return chosen + self._interleave(preferred, patient, coldest)

    def _prefer(self, oldest: list[Request]) -> list[Request]:
        """Put the three windows in order."""
        window = self._options.window
        found = {request.number: request for request in oldest}
        for *_, number in self._known[:window]:
            found[number] = self._waiting[number]
        at = bisect_left(self._sorted, (self._last, -1))
        for _, number in self._sorted[max(0, at - window // 2) : at + window - window // 2]:
            found[number] = self._waiting[number]
        for request in found.values():
            request.patient = False
            self._look_again(request)
        return sorted(found.values(), key=lambda request: (request.rank, -request.matched, request.arrival))

    def _least_known(self, count: int) -> list[Request]:
        """Name those that the tree knew least when they were last looked at, of equals the oldest."""
        known, end = self._known, len(self._known)
        found: list[tuple[int, int, int]] = []  # matched, arrival, number
        while end:  # of each rank, the last first
            rank = known[end - 1][0]
            start, most = bisect_left(known, (rank,), 0, end), len(found) + count
            while end > start and len(found) < most:
                last = known[end - 1][1]
                first = bisect_left(known, (rank, last), start, end)
                equals = known[first : min(end, first + most - len(found))]
                found += [(-last, arrival, number) for _, _, arrival, number in equals]
                end = first
            end = start
        found.sort()
        return [self._waiting[number] for _, _, number in found[:count]]

    def _interleave(
        self, preferred: list[Request], patient: Iterable[Request], coldest: Iterable[Request]
    ) -> list[Request]:
        """Put the next of the patient, the oldest and the coldest by turns, behind every third of the preferred."""
        order: dict[int, Request] = {}
        lines = (deque(patient), deque(coldest))
        since, turn = self._preferred, self._coldest

        def put(request: Request, *, patient: bool) -> None:
            nonlocal since, turn
            order[request.number] = request
            request.patient = patient
            since, turn = (0, not turn) if patient else (since + 1, turn)

        for request in preferred:
            for line in lines:
                while line and line[0].number in order:
                    line.popleft()
            if since >= _PREFERRED and (line := lines[turn] or lines[not turn]):
                put(line.popleft(), patient=True)
            if request.number not in order:
                put(request, patient=False)
        return list(order.values())

    # --- where a request stands ------------------------------------------------------------------------------------

    def _stand(self, request: Request) -> None:
        """Note a request where its rank and what the tree knows of it put it."""
        insort(self._known, (request.rank, -request.matched, request.arrival, request.number))

    def _withdraw(self, request: Request) -> None:
        """Forget where a request stood that is no longer among those that never ran."""
        if self._by_prefix:
            self._programs.left(request)
        if request.matched_version >= 0:  # else nobody has looked at it
            del self._sorted[bisect_left(self._sorted, (request.tokens, request.number))]
            self._step_aside(request)

    def _step_aside(self, request: Request, matched: int | None = None) -> None:
        """Undo that; matched: what the tree knew of it then, if that has changed."""
        matched = request.matched if matched is None else matched
        del self._known[bisect_left(self._known, (request.rank, -matched, request.arrival, request.number))]

    def _rank(self, request: Request, rank: int) -> None:
        if request.matched_version < 0:
            request.rank = rank
            return
        self._step_aside(request)
        request.rank = rank
        self._stand(request)

    def _look(self, request: Request) -> None:
        if request.joined:
            request.matched, nodes = known_lines(self._tree, request)
            if nodes != request.leased:
                self._lease(request, nodes)
        else:
            request.end, known = self._tree.find(request.tokens, request.match_limit, request.home)
            if known != request.matched or not request.leased:
                request.matched = known
                self._lease(request, () if request.end is None else (request.end,))
        request.matched_version = self._tree.version

    def _lease(self, request: Request, nodes: tuple[Node, ...]) -> None:
        """Let a request have the paths to `nodes`, which count as used now, on lease, and no other."""
        self._tree.touch(*nodes)
        for node in nodes:
            self._tree.lease(node)
        for node in request.leased:
            self._tree.end_lease(node)
        request.leased = nodes

    def _look_again(self, request: Request) -> None:
        """Learn what the tree knows of a waiting request by now."""
        if request.matched_version == self._tree.version:
            return
        before = request.matched
        self._look(request)
        if request.matched != before:
            self._step_aside(request, before)
            self._stand(request)


def _arrival(request: Request) -> int:
    return request.arrival
