"""What the parts of an expression ask of one character: Python's own answers, at a bounded cost."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .errors import InvalidRequest

__all__ = ["FOLDED", "CharacterTest", "CharacterTests"]

FOLDED = 1 << 16
"""How many characters the ranges of one expression may have where case is ignored: `re` looks at each of them."""

CharacterTest = Callable[[str], object]
"""True, or anything like it, for a character that is meant."""

_Items = tuple[tuple[Any, Any], ...]


class CharacterTests:
    """The tests of one parsed expression, each made once, however often the expression repeats it."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._known: dict[tuple[bool, _Items, int], CharacterTest] = {}
        self._folded = 0

    def of(self, name: str, value: Any, flags: int) -> CharacterTest:
        """Give the test of a part; `name` is LITERAL, NOT_LITERAL, IN or ANY.  Raises InvalidRequest beyond FOLDED."""
        if name == "ANY":
            return re.compile(".", flags & re.DOTALL).match
        parts = tuple(value) if name == "IN" else ((name.removeprefix("NOT_"), value),)
        negated = name == "NOT_LITERAL" or str(parts[0][0]) == "NEGATE"
        key = negated, parts, flags & (re.IGNORECASE | re.ASCII)
        if (known := self._known.get(key)) is None:
            known = self._known[key] = self._test(*key)
        return known

    def _test(self, negated: bool, parts: _Items, flags: int) -> CharacterTest:
        items = [(str(kind), item) for kind, item in parts if str(kind) != "NEGATE"]
        if not flags & re.IGNORECASE:
            return _plain(items, flags, negated=negated)
        self._folded += sum(item[1] - item[0] for kind, item in items if kind == "RANGE")
        if self._folded > FOLDED:
            raise InvalidRequest(
                "stop_regex", f"{self._pattern!r:.80} ignores the case of ranges of more than {FOLDED} characters"
            )
        return re.compile(f"[{'^' if negated else ''}{''.join(map(_spelt, items))}]", flags).match


def _plain(items: list[tuple[str, Any]], flags: int, *, negated: bool) -> CharacterTest:
    """Look a character up, without an expression: one takes `re` longer to compile than a text's characters to test."""
    single = frozenset(chr(item) for kind, item in items if kind == "LITERAL")
    ranges = [(chr(item[0]), chr(item[1])) for kind, item in items if kind == "RANGE"]
    classes = [re.compile(_CATEGORIES[str(item)], flags).match for kind, item in items if kind == "CATEGORY"]

    def test(character: str) -> bool:
        found = (
            character in single
            or any(low <= character <= high for low, high in ranges)
            or any(meant(character) for meant in classes)
        )
        return found is not negated

    return test


def _spelt(item: tuple[str, Any]) -> str:
    match item:
        case "LITERAL", point:
            return _escaped(point)
        case "RANGE", (low, high):
            return f"{_escaped(low)}-{_escaped(high)}"
        case _, category:
            return _CATEGORIES[str(category)]


def _escaped(point: int) -> str:
    return f"\\U{point:08x}"


_CATEGORIES = {
    "CATEGORY_DIGIT": r"\d", "CATEGORY_NOT_DIGIT": r"\D", "CATEGORY_SPACE": r"\s", "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w", "CATEGORY_NOT_WORD": r"\W",
}  # fmt: skip
