"""Texts that stand for what is not known: they can be put into an f-string, joined and sliced, and are found again."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["Marks"]

_MARK = re.compile("\ue000([0-9]+)\ue001")  # private-use characters: no text has them by chance


class Marks:
    """The marks of one tracing, and what each stands for."""

    def __init__(self) -> None:
        self._kinds: list[tuple[str, str]] = []

    def make(self, kind: str, name: str) -> str:
        """Give a mark for a variable or an argument."""
        self._kinds.append((kind, name))
        return f"\ue000{len(self._kinds) - 1}\ue001"

    def split(self, text: str) -> Iterator[tuple[str, str]]:
        """Give the constant parts of a text and its marks, as (kind, text or name)."""
        for place, part in enumerate(_MARK.split(text)):
            if place % 2:
                yield self._kinds[int(part)]
            elif part:
                yield "text", part
