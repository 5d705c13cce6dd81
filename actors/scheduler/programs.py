"""What programs still wait for: those with the fewest requests out go first."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from .request import Request

__all__ = ["Programs"]


class _Program:
    """out: its requests that wait or run.  since: the step it is known from.  rank: of its waiting requests."""

    __slots__ = ("aging", "out", "over", "rank", "since", "waiting")

    def __init__(self, since: int) -> None:
        self.out = 0
        self.since = since
        self.rank = 0
        self.waiting: dict[int, Request] = {}
        self.aging = False  # its next birthday is noted
        self.over = False  # it was released


class Programs:
    """Rank programs by how many of their requests are out: a branch everyone waits for goes first.

    Whoever waits for branches mostly waits for all of them; the fewer are out, the sooner that is over.  A program with
    1 request out has rank 0, with 2 rank 1, with up to 4 rank 2, with up to 8 rank 3; requests of no program, 0.  For
    each `promotion` steps that it has been here its rank is one better, so that larger ones come to stand among those
    of rank 0 and are overtaken no more.

    moved: called with a waiting request and its new rank.
    """

    def __init__(self, promotion: int, moved: Callable[[Request, int], None]) -> None:
        self._promotion = promotion
        self._moved = moved
        self._programs: dict[int, _Program] = {}
        self._birthdays: list[tuple[int, int]] = []  # step, number: a heap
        self._now = 0

    def __len__(self) -> int:
        return len(self._programs)

    def came(self, request: Request) -> int:
        """Count a request that begins to wait, and give its rank; it is told of changes until it waits no more."""
        if not request.program:
            return 0
        program = self._programs.get(request.program)
        if program is None:
            program = self._programs[request.program] = _Program(request.since)
        program.out += 1
        self._rank(request.program, program)
        program.waiting[request.number] = request
        return program.rank

    def left(self, request: Request) -> None:
        """Know that a request waits no more."""
        if request.program:
            self._programs[request.program].waiting.pop(request.number, None)

    def ended(self, request: Request) -> None:
        """Know that a request is over."""
        program = self._programs.get(request.program)
        if program is None:
            return
        program.out -= 1
        if program.out or not program.over:
            self._rank(request.program, program)
        else:
            del self._programs[request.program]

    def release(self, number: int) -> None:
        """Forget a program that will ask for nothing more, once nothing of it is out."""
        if (program := self._programs.get(number)) is None:
            return
        program.over = True
        if not program.out:
            del self._programs[number]

    def age(self, step: int) -> None:
        """Promote those that have been here so long."""
        self._now = max(self._now, step)
        while self._birthdays and self._birthdays[0][0] <= step:
            number = heappop(self._birthdays)[1]
            if (program := self._programs.get(number)) is not None:
                program.aging = False
                self._rank(number, program)

    def _rank(self, number: int, program: _Program) -> None:
        promoted = max(0, self._now - program.since) // self._promotion
        rank = max(0, (program.out - 1).bit_length() - promoted) if program.out else 0
        if rank != program.rank:
            program.rank = rank
            for request in program.waiting.values():
                self._moved(request, rank)
        if rank and not program.aging:
            program.aging = True
            heappush(self._birthdays, (program.since + self._promotion * (promoted + 1), number))
