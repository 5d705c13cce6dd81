"""The log-probabilities of choices: the prompt is computed once, and so is what choices begin with together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from .backend import Prompt, Scores
from .messages import Score
from .together import together

__all__ = ["Branch", "Look", "boundary", "branches", "score_choices"]

Look = Callable[[bytes, int], Awaitable[tuple[Sequence[float], int]]]
"""From tokens (int32) and a position, at least 1, to the log-probabilities of the tokens from there on, and how many
tokens the prefix cache held."""


class Branch(msgspec.Struct, frozen=True):
    """One sequence of a trie: it begins like sequence `source` up to `start`, and that one stands before it.

    The first has no source (-1), and its start is the trie's.
    """

    index: int
    start: int
    source: int = -1


def branches(sequences: Sequence[bytes], start: int) -> list[Branch]:
    """Lay sequences (int32) that are alike before position `start` out as a trie: each token of it is in one branch.

    A sequence that another begins with stands behind that one, and has no token of its own.
    """
    # Sorted as bytes, those that begin alike stand together, and each shares most with its neighbour.
    order = sorted(range(len(sequences)), key=sequences.__getitem__, reverse=True)
    trie = [Branch(order[0], start)]
    for source, index in pairwise(order):
        trie.append(Branch(index, max(start, _common(sequences[source], sequences[index])), source))
    return trie


def boundary(alone: bytes, settled: Sequence[bytes]) -> int:
    """Count the tokens that are the prompt's, whichever choice follows.

    alone: the tokens of the prompt's end.  settled: those of it and a choice, tokenized as one.  At least one token of
    each choice is behind the boundary.
    """
    common = min(_common(alone, other) for other in settled)
    return min(common, min(map(len, settled)) // 4 - 1)


async def score_choices(
    look: Look,
    prompt: Prompt,
    alone: bytes,
    settled: Sequence[bytes],
    continuations: Sequence[str],
    *,
    unconditional: bool,
) -> Scores:
    """Score continuations whose tokens are known, all in one batch; alone and settled as `boundary` has them.

    unconditional: score their tokens by themselves, too.  The very first token of a sequence follows nothing: behind an
    empty prompt it is not scored, and by itself its log-probability counts as 0.
    """
    start = max(1, len(prompt.tokens) // 4 + boundary(alone, settled))
    whole = [prompt.tokens + tokens for tokens in settled]
    apart = [tokens[4 * start :] for tokens in whole]
    tries = [_Trie(whole, start)]
    if unconditional:
        tries.append(_Trie(apart, 1))
    await together([job for trie in tries for job in trie.jobs(look)])
    given = tries[0].rows()
    by_themselves = [(0.0, *row) for row in tries[1].rows()] if unconditional else [()] * len(whole)
    return Scores(
        scores=tuple(
            Score(
                text=text,
                tokens=tuple(np.frombuffer(apart[index], np.int32).tolist()),
                logprobs=tuple(given[index]),
                unconditional=by_themselves[index][: len(given[index])],
            )
            for index, text in enumerate(continuations)
        ),
        settled=tuple(settled),
        prompt_tokens=start,
        cached_tokens=tries[0].cached,
    )


class _Trie:
    """Sequences that share prefixes, and the log-probabilities of their tokens from `start` on."""

    def __init__(self, sequences: Sequence[bytes], start: int) -> None:
        self._sequences = sequences
        self._start = start
        self._branches = branches(sequences, start)
        self._own: dict[int, Sequence[float]] = {}  # by sequence, those of its branch
        self.cached = 0

    def jobs(self, look: Look) -> list[Callable[[], Awaitable[None]]]:
        """Give one job for each branch that has tokens."""

        def job(branch: Branch) -> Callable[[], Awaitable[None]]:
            async def run() -> None:
                self._own[branch.index], cached = await look(self._sequences[branch.index], branch.start)
                self.cached = max(self.cached, cached)

            return run

        return [job(branch) for branch in self._branches if branch.start < len(self._sequences[branch.index]) // 4]

    def rows(self) -> list[list[float]]:
        """Give every sequence's log-probabilities, once all jobs are done."""
        rows: dict[int, list[float]] = {}
        for branch in self._branches:
            shared = rows[branch.source][: branch.start - self._start] if branch.source >= 0 else []
            rows[branch.index] = [*shared, *self._own.get(branch.index, ())]
        return [rows[index] for index in range(len(rows))]


def _common(one: bytes, other: bytes) -> int:
    """Count the int32 items that both begin with."""
    shortest = min(len(one), len(other)) // 4
    differ = np.flatnonzero(np.frombuffer(one, np.int32)[:shortest] != np.frombuffer(other, np.int32)[:shortest])
    return int(differ[0]) if differ.size else shortest
