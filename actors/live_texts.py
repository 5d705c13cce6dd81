"""The texts of all live requests, so that a step's tokens cost no look at most of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import repeat
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from .messages import Delta, Open
from .passing import Passing
from .text_output import Output

__all__ = ["LiveTexts"]

_FIRST = 64
"""How many places there are at first."""

_LOUD = -1
"""What stands for the tokens seen by an output that lets none pass."""


class _Found(msgspec.Struct, frozen=True):
    """A step's requests, int64, and as numbers; and their places, 0 for those that are unknown.

    passing: what the first of them lets pass, and mostly all of them.  apart: where those stand that let others pass.
    """

    requests: bytes
    numbers: tuple[int, ...]
    places: npt.NDArray[np.int64]
    passing: Passing
    apart: Sequence[tuple[Passing, npt.NDArray[np.int64]]]


class LiveTexts:
    """Hold the outputs, each at a place of its own from when it is made to `close`; place 0 is nobody's.

    An output is made when its request is first spoken of: of many that are opened at once the device waits for none.
    Of each that is quiet, how many tokens it has seen stands in an array over the places; `Output.seen` is right only
    while an output is not quiet, or is fed, between `pass_by` or `close` and `fed`.
    """

    def __init__(self, anything: Passing, make: Callable[[Open], Output]) -> None:
        """anything: what to look at where no request is known.  make: makes an output."""
        self._anything = anything
        self._make = make
        self._coming: dict[int, Open] = {}  # those whose output is not made yet
        self._live: dict[int, Output] = {}
        self._places: dict[int, int] = {}  # of these
        self._seen = np.full(_FIRST, _LOUD, np.int32)
        self._passing = self._nobodys(_FIRST)
        self._free = list(range(_FIRST - 1, 0, -1))
        self._found: dict[int, _Found] = {}  # by replica, of its last step, as long as nobody comes or goes

    def __contains__(self, request: int) -> bool:
        return request in self._live or request in self._coming

    def open(self, opened: Open) -> None:
        """Take in a request, unless it is known."""
        if opened.request not in self:
            self._coming[opened.request] = opened

    def _take_in(self, request: int, output: Output) -> None:
        if not self._free:
            self._grow()
        output.place = self._free.pop()
        self._live[request] = output
        self._places[request] = output.place
        self._passing[output.place] = output.passing
        self._found.clear()
        self.fed(output)

    def get(self, request: int) -> Output | None:
        """Give a request's output, or None if it is unknown."""
        if (opened := self._coming.pop(request, None)) is not None:
            self._take_in(request, self._make(opened))
        return self._live.get(request)

    def close(self, request: int) -> Output | None:
        """Forget a request; give its output, or None if it is unknown."""
        output = self.get(request)
        if output is not None:
            del self._live[request]
            self._look(output)
            self._seen[output.place] = _LOUD
            self._passing[output.place] = self._anything
            self._free.append(self._places.pop(request))
            self._found.clear()
            output.place = 0
        return output

    def pass_by(
        self,
        requests: bytes,
        offsets: npt.NDArray[np.int32],
        tokens: npt.NDArray[np.int32],
        fed: Collection[int],
        replica: int = 0,
    ) -> tuple[tuple[int, ...], list[Delta], list[int]]:
        """Take a step's tokens that need not be fed; give the requests, the news of these, and where the others stand.

        A token passes by if it is the next of its request, which is not among `fed`, and its output lets it.
        replica: whose step it is.
        """
        found = self._find(requests, replica)
        passes, news = found.passing.look(tokens)
        for passing, group in found.apart:
            passes[group], news[group] = passing.look(tokens[group])
        passes &= self._seen[found.places] == offsets
        if fed:
            passes[[index for index, number in enumerate(found.numbers) if number in fed]] = False
        if passes.all():
            self._seen[found.places] = offsets + 1
            return found.numbers, news.tolist(), []
        self._seen[found.places[passes]] = offsets[passes] + 1
        return found.numbers, news.tolist(), (~passes).nonzero()[0].tolist()

    def to_feed(self, request: int) -> Output | None:
        """Give a request's output, to be fed; None if it is unknown."""
        output = self.get(request)
        if output is not None:
            self._look(output)
        return output

    def fed(self, output: Output) -> None:
        """Know what an output that was fed says of itself."""
        self._seen[output.place] = output.seen if output.is_quiet() else _LOUD

    def _look(self, output: Output) -> None:
        seen = int(self._seen[output.place])
        if seen != _LOUD:
            output.seen = seen

    def _find(self, requests: bytes, replica: int) -> _Found:
        """Find the places of a step's requests; mostly they are those of its replica's step before."""
        found = self._found.get(replica)
        if found is None or found.requests != requests:
            numbers = tuple(np.frombuffer(requests, np.int64).tolist())
            for number in numbers if self._coming else ():
                self.get(number)
            places = np.fromiter(map(self._places.get, numbers, repeat(0)), np.int64, len(numbers))
            lets = self._passing[places]
            passing: Passing = lets.item(0) if len(lets) else self._anything
            groups: dict[Passing, list[int]] = {}
            for index in (lets != passing).nonzero()[0].tolist():
                groups.setdefault(lets.item(index), []).append(index)
            apart = [(other, np.array(group, np.int64)) for other, group in groups.items()]
            found = self._found[replica] = _Found(requests, numbers, places, passing, apart)
        return found

    def _nobodys(self, places: int) -> npt.NDArray[Any]:
        """Make a table of what is let pass, for so many places that nobody has."""
        table = np.empty(places, np.object_)
        table.fill(self._anything)
        return table

    def _grow(self) -> None:
        known = len(self._seen)
        self._passing = np.concatenate((self._passing, self._nobodys(known)))
        self._seen = np.concatenate((self._seen, np.full(known, _LOUD, np.int32)))
        self._free = list(range(2 * known - 1, known - 1, -1))
