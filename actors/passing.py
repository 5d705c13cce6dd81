"""Tokens that have their text wherever they stand: the news of one is the same object for all requests."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from .messages import Delta
from .text_stream import TokenText

__all__ = ["Ordinary", "Passing"]


class Ordinary:
    """The news of every token that has its text wherever it stands.

    news: by token, as far as they are known; else None.
    """

    def __init__(self, text: TokenText) -> None:
        self._text = text
        self.news: npt.NDArray[Any] = np.empty(0, np.object_)
        self._all = Passing(self, frozenset())
        self._some: WeakValueDictionary[frozenset[str], Passing] = WeakValueDictionary()

    def learn(self, token: int) -> Delta | None:
        """Give a token's news, and know them from now on; None if its text depends on where it stands."""
        if token >= len(self.news):
            self.news = _longer(self.news, token)
        delta = self.news[token]
        if delta is None and (text := self._text.alone(token)) is not None:
            delta = self.news[token] = Delta(text=text, tokens=(token,))
        return delta

    def passing(self, characters: frozenset[str]) -> Passing:
        """Tell which tokens pass that have none of these characters; with any, known as long as somebody has it."""
        if not characters:
            return self._all
        if (passing := self._some.get(characters)) is None:
            passing = self._some[characters] = Passing(self, characters)
        return passing


class Passing:
    """Tell which tokens need not be fed while nothing is held back, and their news.

    These are the ordinary ones, but for those that have one of some characters in their text; as far as somebody has
    learned of them: any other is fed.
    """

    def __init__(self, ordinary: Ordinary, characters: frozenset[str]) -> None:
        self._ordinary = ordinary
        self._characters = characters
        self._learned: set[int] = set()
        self._passes = np.zeros(0, np.bool_)

    def look(self, tokens: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[Any]]:
        """Tell of each token whether it passes, and give the news of those that do."""
        try:
            return self._passes[tokens], self._ordinary.news[tokens]
        except IndexError:
            self.learn(int(tokens.max()))
            return self.look(tokens)

    def learn(self, token: int) -> None:
        """Know from now on whether a token passes."""
        if token not in self._learned:
            self._learned.add(token)
            delta = self._ordinary.learn(token)
            if token >= len(self._passes):
                self._passes = _longer(self._passes, token)
            self._passes[token] = delta is not None and self._characters.isdisjoint(delta.text)


def _longer(table: npt.NDArray[Any], token: int) -> npt.NDArray[Any]:
    """Let a table hold a token, and as many again."""
    longer = np.zeros(2 * (token + 1), np.bool_) if table.dtype == np.bool_ else np.empty(2 * (token + 1), np.object_)
    longer[: len(table)] = table
    return longer
