"""Prompts that are more than one line of tokens: branches joined side by side, and positions that jump.

    columns     [0, 4) stem   [4, 7) first   [7, 9) second   [9, ...) behind the join
    positions   [0, 4)        [4, 7)         [4, 6)          [7, ...)
    sees        itself        stem, itself   stem, itself    everything

A token's column is its place in the prompt, its position is what its keys are rotated by, and it sees what its own line
has before it.  What stands in a line depends on nothing else, so its KV is the same wherever the line is joined.

Words (int32) tell where the lines are, in the order of their columns, a fork's before those inside of its branches:

    start, count, (length, offset) * count    `count` branches of so many tokens, side by side from column `start` on;
                                              each begins `offset` positions behind the stem's end
    start, 0, offset                          from column `start` on, positions are so much higher
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import cached_property
from hashlib import sha256

import numpy as np

__all__ = ["Line", "Origin", "pack_joins", "read_line", "whole_line"]

_DEEPEST = 64
"""How many forks may stand inside each other."""

Fork = tuple[int, ...]

Runs = tuple[tuple[int, int], ...]
"""Columns [start, end) of a prompt, one run behind the other."""


class Line:
    """Tokens one behind the other, from an origin on; without one, from the beginning.

    prompt: int32.  Its own tokens are those of `above`, a line of the same origin, if it goes on from one, and behind
    them those at the prompt's columns [start, end).  size: how many these are.  columns: how many it has, the origin's
    included.  position: that of the token behind it.
    """

    __slots__ = ("__dict__", "above", "columns", "end", "origin", "position", "prompt", "size", "start")

    def __init__(
        self, origin: Origin | None, prompt: bytes, above: Line | None = None, start: int = 0, end: int = 0
    ) -> None:
        self.origin, self.prompt, self.above, self.start, self.end = origin, prompt, above, start, end
        self.size = size = end - start if above is None else above.size + end - start
        if origin is None:
            self.columns = self.position = size
        else:
            self.columns, self.position = origin.columns + size, origin.position + size

    def said(self, start: int, end: int) -> Line:
        """Go on with what stands at the columns [start, end) of the prompt."""
        if start == end:
            return self
        if not self.size:
            return Line(self.origin, self.prompt, None, start, end)
        if start == self.end:  # so that `above` is no deeper than forks are
            return Line(self.origin, self.prompt, self.above, self.start, end)
        return Line(self.origin, self.prompt, self, start, end)

    @property
    def base(self) -> int:
        """How many columns stand before its own tokens."""
        return 0 if self.origin is None else self.origin.columns

    @property
    def namespace(self) -> str:
        """Where its tokens' KV is known: what stands before them is a part of the name."""
        return "" if self.origin is None else self.origin.namespace

    @cached_property
    def tokens(self) -> bytes:
        """Its own tokens, int32; put together when somebody asks for the first time."""
        return _gather(self.prompt, self.runs)

    @property
    def runs(self) -> Runs:
        """Where its own tokens stand in the prompt."""
        return _behind(() if self.above is None else self.above.runs, (self.start, self.end))

    @property
    def all_runs(self) -> Runs:
        """Where the tokens of all its columns stand."""
        return self.runs if self.origin is None else _behind(self.origin.runs, *self.runs)

    @property
    def flat(self) -> bytes:
        """The tokens of all columns."""
        return self.tokens if self.origin is None else _gather(self.prompt, self.all_runs)

    def lines(self) -> tuple[Line, ...]:
        """Name all lines that are before it, each behind those it needs."""
        found: dict[Line, None] = {}
        stack = [(line, False) for line in ([] if self.origin is None else self.origin.lines[::-1])]
        while stack:
            line, ready = stack.pop()
            if ready or line.origin is None:
                found.setdefault(line)
            elif line not in found:
                stack.append((line, True))
                stack += [(above, False) for above in line.origin.lines[::-1]]
        return tuple(found)


class Origin:
    """What stands before a line: other lines side by side, with a stem in common; one of them where positions jump.

    stem: the columns that the lines have in common.  runs: where the tokens of all its columns stand in the prompt.
    position: of the next token.
    """

    def __init__(self, stem: Line, lines: tuple[Line, ...], runs: Runs, columns: int, position: int) -> None:
        self.stem, self.lines, self.runs = stem.columns, lines, runs
        self.columns, self.position = columns, position
        self._own = stem

    @property
    def shift(self) -> int:
        """How far the position of what follows is ahead of its column."""
        return self.position - self.columns

    @property
    def jumps(self) -> bool:
        """Whether it is one line, behind which positions jump."""
        return len(self.lines) == 1

    @cached_property
    def namespace(self) -> str:
        """Name it by all that is before it: a digest of 128 bits, of where its lines begin and of all its tokens."""
        own = self._own
        names = [line.namespace if line.origin is not own.origin else "" for line in self.lines]
        digest = sha256(f"{own.namespace} {own.columns} {self.position} {' '.join(names)} ".encode())
        digest.update(array("q", [line.size for line in self.lines]).tobytes())
        prompt = memoryview(own.prompt)
        for start, end in self.runs:
            digest.update(prompt[4 * start : 4 * end])
        return digest.digest()[:16].hex()


def _behind(runs: Runs, *more: tuple[int, int]) -> Runs:
    """Put runs behind others; what goes on where these end is one with them."""
    found = list(runs)
    for start, end in more:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], end)
        elif start < end:
            found.append((start, end))
    return tuple(found)


def _gather(prompt: bytes, runs: Runs) -> bytes:
    if len(runs) == 1:
        start, end = runs[0]
        return prompt[4 * start : 4 * end]
    return b"".join([prompt[4 * start : 4 * end] for start, end in runs])


def pack_joins(forks: Iterable[Fork]) -> bytes:
    """Pack forks, each as its words."""
    return np.array([word for fork in forks for word in fork], np.int32).tobytes()


def whole_line(tokens: bytes) -> Line:
    """Give the line of a prompt that is one."""
    return Line(None, tokens, None, 0, len(tokens) // 4)


def read_line(tokens: bytes, joins: bytes = b"") -> Line:
    """Read a prompt.  Raises ValueError for words that tell of no prompt that could be."""
    line = _Reader(tokens, joins).read()
    if line.origin is not None and not line.size and not line.origin.jumps:
        raise ValueError("nothing stands behind the last join; at least one token must, for it sees all before it")
    return line


class _Reader:
    def __init__(self, tokens: bytes, joins: bytes) -> None:
        if len(tokens) % 4 or len(joins) % 4:
            raise ValueError(f"{len(tokens)} bytes of tokens and {len(joins)} of joins are not both int32")
        self._tokens = tokens
        self._words: list[int] = np.frombuffer(joins, np.int32).tolist()
        self._at = 0

    def read(self) -> Line:
        end = len(self._tokens) // 4
        line = self._run(Line(None, self._tokens), 0, end, 0)
        if self._at < len(self._words):
            raise ValueError(f"word {self._at} tells of column {self._words[self._at]}; {end} tokens are given")
        return line

    def _run(self, line: Line, start: int, end: int, depth: int) -> Line:
        """Go on from `line` with what stands at the columns [start, end)."""
        if depth > _DEEPEST:
            raise ValueError(f"more than {_DEEPEST} forks stand inside each other")
        while (found := self._next(end)) is not None:
            at, count = found
            if not start <= at <= end:
                raise ValueError(f"a fork at column {at}, behind one that reaches to {start}, before {end}")
            line = line.said(start, at)
            if count:
                line, start = self._fork(line, at, end, self._branches(count), depth)
            else:
                line, start = self._jump(line, self._take(1)[0]), at
        return line.said(start, end)

    def _next(self, end: int) -> tuple[int, int] | None:
        """Take the start and the count of the next fork that begins before `end`; a jump may stand at the very end."""
        if self._at + 2 > len(self._words):
            return None
        at, count = self._words[self._at : self._at + 2]
        last = count == 0 and at == end and 4 * end == len(self._tokens)
        if at >= end and not last:
            return None
        self._at += 2
        return at, count

    def _take(self, count: int) -> list[int]:
        """Take lengths and offsets."""
        words = self._words[self._at : self._at + count]
        if len(words) < count:
            raise ValueError("the words end inside of a fork")
        if min(words) < 0:
            raise ValueError(f"{min(words)} is no length or offset; they are at least 0")
        self._at += count
        return words

    def _branches(self, count: int) -> list[tuple[int, int]]:
        if count < 0:
            raise ValueError(f"{count} is no number of branches")
        words = self._take(2 * count)
        return list(zip(words[::2], words[1::2], strict=True))

    @staticmethod
    def _jump(line: Line, offset: int) -> Line:
        if not offset:
            return line
        position = line.position + offset
        while not line.size and line.origin is not None and line.origin.jumps:
            line = line.origin.lines[0]  # jumps one behind the other are one
        return Line(Origin(line, (line,), line.all_runs, line.columns, position), line.prompt)

    def _fork(self, stem: Line, start: int, end: int, branches: list[tuple[int, int]], depth: int) -> tuple[Line, int]:
        """Read branches from column `start` on; give the line behind them, and its column."""
        lines: list[Line] = []
        first = start
        for length, offset in branches:
            if not length:  # it said nothing: nothing of it is seen
                continue
            stop = start + length
            if stop > end:
                raise ValueError(f"a branch of {length} tokens from column {start} on reaches beyond column {end}")
            line = self._jump(stem, offset) if offset else stem
            line = self._run(line, start, stop, depth + 1) if self._at < len(self._words) else line.said(start, stop)
            lines.append(line)
            start = stop
        if len(lines) < 2:  # one branch is a line that goes on
            return (lines[0] if lines else stem), start
        runs = _behind(stem.all_runs, (first, start))
        columns, position = stem.columns + start - first, max([line.position for line in lines])
        return Line(Origin(stem, tuple(lines), runs, columns, position), stem.prompt), start
