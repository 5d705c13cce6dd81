"""Whose turn it is: every tenant has a queue of its own, and the one that was given least is next."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from itertools import islice

from .options import SchedulerOptions
from .queue import WaitingQueue
from .radix_tree import RadixTree
from .request import Request

__all__ = ["FairShare"]


class _Tenant:
    """given: tokens computed for it and expected of what runs, over its weight.

    live: its requests, those that run too; waiting: those that do not.
    """

    __slots__ = ("given", "live", "name", "queue", "waiting", "weight")

    def __init__(self, name: str, weight: float, queue: WaitingQueue) -> None:
        self.name = name
        self.weight = weight
        self.queue = queue
        self.given = 0.0
        self.live = 0
        self.waiting = 0


class FairShare:
    """Let tenants take turns: of those that wait, the one that was given the fewest tokens is next.

    An admission is charged what it computes of its prompt and is expected to write, put right when its row is free
    again.  Who comes back from having nothing here starts level with whoever was served last: nobody saves up, and who
    has a thousand requests waiting delays another's first one by one admission.  Weights divide what is charged.  A
    step looks at no more tenants than at requests of one.
    """

    def __init__(self, options: SchedulerOptions, tree: RadixTree) -> None:
        self._options = options
        self._tree = tree
        self._tenants: dict[str, _Tenant] = {}
        self._idle: dict[str, _Tenant] = {}  # those with nothing here, since longest first
        self._waiting: list[tuple[float, str]] = []  # given, name: of those with a request that waits, in order
        self._level = 0.0  # what whoever was served last had been given before
        self._length = 0
        self._unsure: dict[str, _Tenant] = {}  # whose requests may have something to be put on lease

    def __len__(self) -> int:
        return self._length

    def __contains__(self, request: Request) -> bool:
        tenant = self._tenants.get(request.tenant)
        return tenant is not None and request in tenant.queue

    def append(self, request: Request) -> None:
        """Let a new request wait.

        Mostly it begins in the next step: what the tree knows of it is put on lease when there is reason to (`lease`).
        """
        tenant = self._tenants.get(request.tenant) or self._welcome(request.tenant)
        if not tenant.live:
            tenant.given = max(tenant.given, self._level)
        tenant.live += 1
        self._idle.pop(tenant.name, None)
        tenant.queue.append(request)
        self._unsure[tenant.name] = tenant
        self._count(tenant)

    def look_up(self) -> None:
        """Learn what the tree knows of those that came."""
        for tenant in self._unsure.values():
            tenant.queue.look_up()

    def lease(self) -> None:
        """Put on lease what those that wait will read: they did not begin, or something is to be evicted."""
        for tenant in self._unsure.values():
            tenant.queue.lease()
        self._unsure.clear()

    def put_back(self, request: Request) -> None:
        """Let a retracted request wait, ahead of all that never ran."""
        tenant = self._tenants[request.tenant]
        tenant.queue.put_back(request)
        self._unsure[tenant.name] = tenant
        self._count(tenant)

    def advance(self, request: Request) -> None:
        """Let a waiting request go ahead of all that never ran."""
        self._tenants[request.tenant].queue.advance(request)

    def remove(self, request: Request) -> None:
        """Take a request out that ended before it was admitted."""
        tenant = self._tenants[request.tenant]
        tenant.queue.remove(request)
        self._count(tenant)

    def admitted(self, request: Request, tokens: int) -> None:
        """Take an admitted request out; its tenant is charged the tokens it is expected to take."""
        tenant = self._tenants[request.tenant]
        tenant.queue.admitted(request)
        self._count(tenant)
        self.charge(request, tokens)

    def charge(self, request: Request, tokens: int) -> None:
        """Charge what is begun for a request that is here without having waited itself."""
        tenant = self._tenants[request.tenant]
        self._level = max(self._level, tenant.given)
        self._charge(tenant, tokens)

    def correct(self, request: Request, tokens: int) -> None:
        """Charge what an admitted request took beyond that, or, below 0, has left."""
        if (tenant := self._tenants.get(request.tenant)) is not None:
            self._charge(tenant, tokens)

    def ended(self, request: Request) -> None:
        """Know that a request that came here is over; it waits no more."""
        tenant = self._tenants[request.tenant]
        tenant.queue.ended(request)
        tenant.live -= 1
        if not tenant.live:
            self._idle[tenant.name] = tenant

    def release(self, programs: Iterable[int]) -> None:
        """Know that programs will ask for nothing more."""
        for tenant in self._tenants.values() if programs else ():
            for program in programs:
                tenant.queue.release(program)

    def given(self, tenant: str) -> float:
        """Tell how many tokens a tenant was given, over its weight; 0 for one that is not known."""
        known = self._tenants.get(tenant)
        return 0.0 if known is None else known.given

    def candidates(self, step: int) -> Iterable[Request]:
        """Name the next requests to admit, the best first; whoever is admitted on the way changes what comes next."""
        if len(self._waiting) == 1:
            return self._candidates(self._waiting[0][1], step)
        return self._by_turns(step)

    def _candidates(self, name: str, step: int) -> list[Request]:
        tenant = self._unsure[name] = self._tenants[name]  # it looks again at what it knows
        return tenant.queue.candidates(step)

    def _by_turns(self, step: int) -> Iterator[Request]:
        turns = list(islice(self._waiting, self._options.window))
        heapify(turns)
        lines: dict[str, Iterator[Request]] = {}
        while turns:
            given, name = turns[0]
            tenant = self._tenants[name]
            if name not in lines:
                lines[name] = iter(self._candidates(name, step))
            if tenant.given > given:
                heapreplace(turns, (tenant.given, name))
            elif (request := next(lines[name], None)) is None:
                heappop(turns)
            else:
                yield request

    # --- who waits -------------------------------------------------------------------------------------------------

    def _welcome(self, name: str) -> _Tenant:
        """Know a tenant, and forget those that have nothing here and would start level anyhow."""
        while self._idle and (longest := next(iter(self._idle.values()))).given <= self._level:
            del self._idle[longest.name], self._tenants[longest.name]
        weight = self._options.weights.get(name, 1.0)
        tenant = self._tenants[name] = _Tenant(name, weight, WaitingQueue(self._options, self._tree))
        return tenant

    def _count(self, tenant: _Tenant) -> None:
        """Learn how many of a tenant's requests wait by now."""
        before, tenant.waiting = tenant.waiting, len(tenant.queue)
        self._length += tenant.waiting - before
        if tenant.waiting and not before:
            insort(self._waiting, (tenant.given, tenant.name))
        elif before and not tenant.waiting:
            del self._waiting[bisect_left(self._waiting, (tenant.given, tenant.name))]

    def _charge(self, tenant: _Tenant, tokens: int) -> None:
        if tenant.waiting:
            del self._waiting[bisect_left(self._waiting, (tenant.given, tenant.name))]
        tenant.given += tokens / tenant.weight
        if tenant.waiting:
            insort(self._waiting, (tenant.given, tenant.name))
