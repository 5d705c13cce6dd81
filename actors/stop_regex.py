"""Regular expressions that end a text: found as the text comes, in time linear in it whatever the expression."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

from .character_tests import CharacterTest, CharacterTests
from .errors import InvalidRequest

__all__ = ["LOOK_BACK", "STATES", "StopMatch", "StopRegex", "StopSearch", "stop_regex"]

LOOK_BACK = 256
"""How many characters may be held back because they may belong to a match."""

STATES = 256
"""How many states the automaton of one expression may have; a counted repeat has them once a repetition."""

_WORK = 4096  # parts visited while an expression is built, empty ones too
_REMEMBERED = 16_384  # nodes in the transitions remembered for one expression
_ACCEPT = -1
_FRESH = -1
_FIRST, _NEW_LINE, _INSIDE = range(3)  # where a position is: at the very start, behind a line break, elsewhere

_Transition = tuple[tuple[int, ...], tuple[int, ...], int | None]


class StopRegex:
    r"""One expression as an automaton without backtracking.

    # a node is    a test of one character and the node behind it
    #       or     the nodes reached without one (a branch, a loop)
    #       or     the same, only where a text or a line begins (^, \A)

    A state is the nodes that are alive, the one whose match began first in front: so the state behind a character
    depends on nothing but the state and the character, and can be remembered.
    """

    def __init__(self, pattern: str) -> None:
        """Raise InvalidRequest for what is no expression, matches the empty text, or cannot be found in linear time."""
        self.pattern = pattern
        self._tests: list[CharacterTest | None] = []
        self._nexts: list[tuple[int, ...]] = []
        self._where: dict[int, frozenset[int]] = {}
        self._work = 0
        self._characters = CharacterTests(pattern)
        parsed = _parse(pattern)
        try:
            self._begin = self._sequence(parsed, _ACCEPT, parsed.state.flags)
        except RecursionError:
            raise InvalidRequest("stop_regex", f"{pattern!r:.80} is nested too deeply") from None
        for where in (_FIRST, _NEW_LINE, _INSIDE):
            if _ACCEPT in self._reach(self._begin, where, set()):
                raise InvalidRequest("stop_regex", f"{pattern!r:.80} matches the empty text; it would end every text")
        self._transitions: dict[tuple[tuple[int, ...], str], _Transition] = {}
        self._size = 0
        self.first = tuple(self._reach(self._begin, _FIRST, set()))

    def step(self, nodes: tuple[int, ...], character: str) -> _Transition:
        """Give the nodes behind a character, for each the place of the node it came from (or -1: it begins here).

        The last is the place of the earliest node that has come to its end, or None.
        """
        key = (nodes, character)
        known = self._transitions.get(key)
        if known is None:
            known = self._transition(nodes, character)
            self._size += len(nodes) + len(known[0]) + 1
            if self._size > _REMEMBERED:
                self._transitions.clear()
                self._size = 0
            self._transitions[key] = known
        return known

    def _transition(self, nodes: tuple[int, ...], character: str) -> _Transition:
        where = _NEW_LINE if character == "\n" else _INSIDE
        seen: set[int] = set()
        behind: list[int] = []
        sources: list[int] = []
        ended: int | None = None
        for place, node in enumerate(nodes):
            test = self._tests[node]
            if test is None or not test(character):
                continue
            for reached in self._reach(self._nexts[node][0], where, seen):
                if reached == _ACCEPT:
                    ended = place
                else:
                    behind.append(reached)
                    sources.append(place)
        fresh = self._reach(self._begin, where, seen)
        return (*behind, *fresh), (*sources, *(_FRESH for _ in fresh)), ended

    def _reach(self, node: int, where: int, seen: set[int]) -> list[int]:
        """Give the nodes with a test, and the end, that are reached without a character and were not seen."""
        reached: list[int] = []
        waiting = [node]
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            if node == _ACCEPT or self._tests[node] is not None:
                reached.append(node)
            elif where in self._where.get(node, _ANYWHERE):
                waiting.extend(self._nexts[node])
        return reached

    # --- from the parsed expression, from its end to its beginning ---------------------------------------------------

    def _add(self, test: CharacterTest | None, *nexts: int) -> int:
        if len(self._tests) >= STATES:
            raise InvalidRequest("stop_regex", f"{self.pattern!r:.80} is too large: more than {STATES} states")
        self._tests.append(test)
        self._nexts.append(nexts)
        return len(self._tests) - 1

    def _sequence(self, items: Any, behind: int, flags: int) -> int:
        for name, value in reversed(list(items)):
            self._work += 1
            if self._work > _WORK:
                raise InvalidRequest("stop_regex", f"{self.pattern!r:.80} is too large: it repeats too much")
            behind = self._item(str(name), value, behind, flags)
        return behind

    def _item(self, name: str, value: Any, behind: int, flags: int) -> int:
        match name:
            case "LITERAL" | "NOT_LITERAL" | "IN" | "ANY":
                return self._add(self._characters.of(name, value, flags), behind)
            case "SUBPATTERN":
                _, added, removed, items = value
                return self._sequence(items, behind, (flags | added) & ~removed)
            case "BRANCH":
                return self._add(None, *(self._sequence(items, behind, flags) for items in value[1]))
            case "MAX_REPEAT" | "MIN_REPEAT":
                return self._repeat(*value, behind=behind, flags=flags)
            case "AT" if str(value) in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
                node = self._add(None, behind)
                lines = str(value) == "AT_BEGINNING" and flags & re.MULTILINE
                self._where[node] = frozenset({_FIRST, _NEW_LINE} if lines else {_FIRST})
                return node
            case _:
                what = _WORDS.get(name, name.lower())
                raise InvalidRequest(
                    "stop_regex", f"{self.pattern!r:.80} has {what}, which cannot be told while a text comes"
                )

    def _repeat(self, least: int, most: int, items: Any, *, behind: int, flags: int) -> int:
        unbounded = most >= _UNBOUNDED
        if max(least, 0 if unbounded else most) > STATES:
            raise InvalidRequest("stop_regex", f"{self.pattern!r:.80} counts to more than {STATES}")
        if unbounded:
            loop = self._add(None)
            self._nexts[loop] = (self._sequence(items, loop, flags), behind)
            node = loop
        else:
            node = behind
            for _ in range(most - least):
                node = self._add(None, self._sequence(items, node, flags), behind)
        for _ in range(least):
            node = self._sequence(items, node, flags)
        return node


class StopMatch:
    """Where a text is over: the characters [start, end) match, counted from its beginning."""

    __slots__ = ("end", "pattern", "start")

    def __init__(self, start: int, end: int, pattern: str) -> None:
        self.start = start
        self.end = end
        self.pattern = pattern


class StopSearch:
    """Look for several expressions in one text as it comes.

    The match that ends first counts, and of those the one that begins first: it depends on the text alone, and not on
    the pieces it comes in.  A match longer than LOOK_BACK is found too, but counts as if it began LOOK_BACK before its
    end: what stands before that was let go.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._threads = [_Threads(stop_regex(pattern)) for pattern in patterns]

    def feed(self, text: str) -> StopMatch | None:
        """Take the next piece of the text; behind a match, no more may come."""
        found = [match for threads in self._threads if (match := threads.feed(text)) is not None]
        return min(found, key=lambda match: (match.end, match.start), default=None)

    @property
    def held(self) -> int:
        """How many characters at the end of the text may belong to a match."""
        return max((threads.held for threads in self._threads), default=0)


class _Threads:
    """The nodes of one expression that are alive, and where the match of each began, in ascending order."""

    __slots__ = ("_at", "_nodes", "_regex", "_starts")

    def __init__(self, regex: StopRegex) -> None:
        self._regex = regex
        self._at = 0
        self._nodes = regex.first
        self._starts = [0] * len(self._nodes)

    @property
    def held(self) -> int:
        return self._at - self._starts[0] if self._starts else 0

    def feed(self, text: str) -> StopMatch | None:
        step, nodes, starts, at = self._regex.step, self._nodes, self._starts, self._at
        for character in text:
            nodes, sources, ended = step(nodes, character)
            at += 1
            if ended is not None:
                return StopMatch(max(starts[ended], at - LOOK_BACK), at, self._regex.pattern)
            oldest = at - LOOK_BACK
            starts = [at if source == _FRESH else max(starts[source], oldest) for source in sources]
        self._nodes, self._starts, self._at = nodes, starts, at
        return None


@lru_cache(maxsize=64)
def stop_regex(pattern: str) -> StopRegex:
    r"""Give the automaton of an expression in Python's syntax; it holds nothing of any text.

    Raises InvalidRequest for what looks ahead, behind or back ($, \b, (?=), \1), for the empty match, and for sizes
    beyond STATES.
    """
    return StopRegex(pattern)


# --- Python's syntax ------------------------------------------------------------------------------------------------

_ANYWHERE = frozenset({_FIRST, _NEW_LINE, _INSIDE})
_UNBOUNDED = (1 << 31) - 1  # re's MAXREPEAT is at least this
_WORDS = {
    "AT": "an end or a word boundary",
    "ASSERT": "a look-around",
    "ASSERT_NOT": "a look-around",
    "GROUPREF": "a reference to a group",
    "GROUPREF_EXISTS": "a condition on a group",
    "POSSESSIVE_REPEAT": "a possessive repeat",
    "ATOMIC_GROUP": "an atomic group",
}


def _parse(pattern: str) -> Any:
    """Read an expression as Python's `re` does: its parser is not public, but the only one that agrees with it."""
    parse: Any = import_module("re._parser").parse
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "possible nested set": it means what it means today
            return parse(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidRequest("stop_regex", f"{pattern!r:.80} is no regular expression: {error}") from None
