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
from .sorted_list import SortedList

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
    for the sake of what nobody asks for.  Who comes is looked up when somebody is next, together with all that came,
    and has its lease if it does not begin then, or before anything is evicted (`lease`).

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
        self._new: dict[int, Request] = {}  # those of these that nobody has looked at
        self._found: dict[Request, tuple[Node, ...]] = {}  # what is still to be put on lease for whom
        self._path: tuple[int, str, bytes, Node | None] = (-1, "", b"", None)  # where one looked at last has led
        self._sorted = SortedList[tuple[bytes, int]]()  # prompt, number
        self._known = SortedList[tuple[int, int, int, int]]()  # rank, -matched, arrival, number
        self._last = b""  # the prompt admitted last
        self._preferred = 0  # how many were admitted since one was that had waited long enough
        self._coldest = False  # whether the next of these is the coldest, not the oldest

    def __len__(self) -> int:
        return len(self._waiting) + len(self._retracted)

    def __contains__(self, request: Request) -> bool:
        return request.number in self._waiting or request in self._retracted

    def append(self, request: Request) -> None:
        """Let a new request wait."""
        self._waiting[request.number] = request
        request.rank = self._programs.came(request) if self._by_prefix else 0
        if self._by_prefix:
            self._new[request.number] = request

    def look_up(self) -> None:
        """Learn what the tree knows of those that came, and where that puts them.

        Many come together, and nobody is compared with them before they are next; what begins at once needs no lease.
        """
        if not self._new:
            return
        new = list(self._new.values())
        self._new.clear()
        for request in new:
            self._look_up(request)
        self._sorted.put(*[(request.tokens, request.number) for request in new])
        self._known.put(*[_standing(request) for request in new])

    def lease(self) -> None:
        """Let all that wait have on lease what the tree knows of them; before anything is let go."""
        self.look_up()
        for request, nodes in self._found.items():
            self._lease(request, nodes)
        self._found.clear()

    def put_back(self, request: Request) -> None:
        """Let a retracted request wait, ahead of all that never ran."""
        insort(self._retracted, request, key=_arrival)
        if not request.held:  # what stands before it is locked, or has a lease by its parts
            self._look_up(request)

    def advance(self, request: Request) -> None:
        """Let a waiting request stand where one that is put back would; it keeps its lease."""
        self.look_up()
        if self._waiting.pop(request.number, None) is not None:
            self._withdraw(request)
            insort(self._retracted, request, key=_arrival)

    def remove(self, request: Request) -> None:
        """Take a request out: it is admitted or ended."""
        self._found.pop(request, None)
        if request.leased:
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
        if not self._by_prefix or len(self._new) == len(self) == 1:  # who is alone is compared with nobody
            return chosen + oldest
        self.look_up()
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
        for *_, number in self._known.items()[:window]:
            found[number] = self._waiting[number]
        prompts = self._sorted.items()
        at = bisect_left(prompts, (self._last, -1))
        for _, number in prompts[max(0, at - window // 2) : at + window - window // 2]:
            found[number] = self._waiting[number]
        for request in found.values():
            request.patient = False
            self._look_again(request)
        return sorted(found.values(), key=lambda request: (request.rank, -request.matched, request.arrival))

    def _least_known(self, count: int) -> list[Request]:
        """Name those that the tree knew least when they were last looked at, of equals the oldest."""
        known, end = self._known.items(), len(self._known)
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

    def _withdraw(self, request: Request) -> None:
        """Forget where a request stood that is no longer among those that never ran."""
        if not self._by_prefix:
            return
        self._programs.left(request)
        if self._new.pop(request.number, None) is None:
            self._sorted.drop((request.tokens, request.number))
            self._known.drop(_standing(request))

    def _rank(self, request: Request, rank: int) -> None:
        if request.number in self._new:
            request.rank = rank
            return
        self._known.drop(_standing(request))
        request.rank = rank
        self._known.put(_standing(request))

    def _look_up(self, request: Request) -> None:
        before = request.matched
        if request.joined:
            request.matched, nodes = known_lines(self._tree, request)
        else:
            request.end, request.matched = self._find(request)
            nodes = () if request.end is None else (request.end,)
        request.matched_version = self._tree.version
        if request.joined:
            changed = nodes != request.leased
        else:
            changed = request.matched != before or not request.leased
        if changed:
            self._found[request] = nodes

    def _find(self, request: Request) -> tuple[Node | None, int]:
        """Find what the tree knows of a request, from where another's path has led if this one begins as that does."""
        tree, tokens, limit = self._tree, request.tokens, request.match_limit
        version, home, path, end = self._path
        fits = (version, home) == (tree.version, request.home) and len(path) <= 4 * limit
        if end is not None and fits and tokens.startswith(path):
            found, at = tree.walk(end, tokens, 4 * limit, len(path))
            known = at >> 2
        else:
            found, known = tree.find(tokens, limit, request.home)
        self._path = tree.version, request.home, tokens[: 4 * known], found
        return found, known

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
        before = _standing(request)
        self._look_up(request)
        if (now := _standing(request)) != before:
            self._known.drop(before)
            self._known.put(now)


def _standing(request: Request) -> tuple[int, int, int, int]:
    """Tell where its rank and what the tree knows of it put a request that never ran."""
    return request.rank, -request.matched, request.arrival, request.number


def _arrival(request: Request) -> int:
    return request.arrival
