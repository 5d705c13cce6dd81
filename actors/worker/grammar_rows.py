"""The rows with a constraint: their matchers begin with them, give masks before sampling, and take what was sampled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..errors import InvalidRequest
from ..grammar import GrammarCache
from ..messages import Begin, Forced
from .batch import Sampled
from .choose import Choice
from .forced import FastForward
from .masks import Masks, RowMasks
from .result import Result
from .rows import Extras, Rows

if TYPE_CHECKING:
    from llguidance import LLMatcher

__all__ = ["GrammarRows"]


@dataclass(frozen=True, slots=True)
class _Bound:
    """The sampled rows that their matchers bind.

    indices: among the sampled.  numbered: matchers, each with its row.  limits_G: tokens after which each ends, int64.
    masks: theirs, None if there are no such rows.
    """

    indices: list[int]
    numbered: list[tuple[LLMatcher, int]]
    indices_G: npt.NDArray[np.int64]
    rows_G: npt.NDArray[np.int64]
    limits_G: npt.NDArray[np.int64]
    masks: Masks | None


class GrammarRows:
    """Bind rows to what their constraints allow.  grammars: None refuses every row that has a constraint.

    Where masks are filled by a thread beside the model's, it gives matchers their tokens too: 10 us a token that the
    model's thread has not.  Those that the step's result depends on it gives itself: what a text may end with, and what
    forces further tokens.
    """

    def __init__(self, rows: Rows, grammars: GrammarCache | None, forced: FastForward) -> None:
        self._rows = rows
        self._grammars = grammars
        self._forced = forced
        self._masks: RowMasks | None = None
        self._bound: tuple[Choice, _Bound] | None = None

    def begin(self, row: int, begin: Begin, extras: Extras) -> None:
        """Give a row that begins with a constraint its matcher, behind the tokens it has already, or a failure."""
        constraint = begin.sampling.constraint
        if constraint is None:
            return
        if self._grammars is None:
            extras.failure = f"{constraint.kind}: this worker was started without grammars"
            return
        try:
            extras.matcher = self._grammars.matcher(constraint)
        except InvalidRequest as error:
            extras.failure = str(error)
            return
        if not extras.matcher.consume_tokens(np.frombuffer(begin.output, np.int32).tolist()):
            extras.failure = f"{constraint.kind}: the tokens generated so far do not match it"
            return
        if self._masks is None:
            beside = self._rows.device.type == "cpu"
            self._masks = RowMasks(self._rows.max_rows, self._grammars.mask_words, beside=beside)
        self._masks.begin([(extras.matcher, row)])

    def start(self) -> None:
        """Have masks filled from here on: the model's thread lets go of Python's lock now, for a forward pass."""
        if self._masks is not None:
            self._masks.start()

    def masks(self, sampled: Sampled, choice: Choice) -> tuple[Masks | None, set[int]]:
        """Give the masks, and the indices of the rows whose text is complete and can only end."""
        bound = self._find(sampled, choice)
        complete: set[int] = set()
        if bound.masks is None or self._masks is None:
            return None, complete
        self._masks.take(bound.numbered)
        stopped_G = self._masks.stopped(bound.rows_G)
        for place in np.flatnonzero(stopped_G).tolist() if stopped_G.any() else ():
            matcher, row = bound.numbered[place]
            if matcher.is_error():
                self._fail(self._rows.live(row), matcher)
            else:
                complete.add(bound.indices[place])
        return bound.masks, complete

    def settle(
        self, result: Result, sampled: Sampled, choice: Choice, surplus: frozenset[int]
    ) -> tuple[list[int], list[Forced]]:
        """Give the matchers their tokens; tell the rows whose text may end here, and what is forced on which.

        A row whose matcher does not take its token, or that has failed before, fails in `result`: at once, or where
        another thread gives the token, in the next step.
        """
        accepting, forced = list[int](), list[Forced]()
        changed: list[tuple[LLMatcher, int]] = []
        for index in self._hand_over(result, sampled, choice):
            if index in surplus:
                continue
            row = sampled.listed[index]
            extras = self._rows.live(row)
            token = int(result.tokens[index])
            if token >= 0 and not extras.failure and extras.matcher is not None:
                if extras.matcher.consume_token(token):
                    told = self._forced.look(row, extras.matcher)
                    said = 0
                    if told is not None:
                        forced.append(told)
                        said = len(told.tokens) // 4
                    # 30 us for a schema: only where a limit may end the text
                    if self._rows.generated[row] + said >= extras.limit and extras.matcher.is_accepting():
                        accepting.append(row)
                    changed.append((extras.matcher, row))
                    continue
                self._fail(extras, extras.matcher)
            if extras.failure:
                result.fail(index, row, extras.failure)
        if changed and self._masks is not None:
            self._masks.begin(changed)
        return accepting, forced

    def _hand_over(self, result: Result, sampled: Sampled, choice: Choice) -> Iterable[int]:
        """Have another thread give matchers their tokens; tells the indices of the rows that are left to look at."""
        if self._masks is None or self._forced.enabled or not self._masks.hands_over(len(choice.grammar)):
            return choice.grammar
        bound = self._find(sampled, choice)
        if len(bound.indices) < len(choice.grammar):  # some have failed
            return choice.grammar
        tokens_G = result.tokens[bound.indices_G]
        here_G = (tokens_G < 0) | (self._rows.generated[bound.rows_G] >= bound.limits_G)
        if not here_G.any():
            self._masks.advance(bound.numbered, tokens_G.tolist())
            return ()
        beside = np.flatnonzero(~here_G)
        self._masks.advance([bound.numbered[place] for place in beside.tolist()], tokens_G[beside].tolist())
        return bound.indices_G[here_G].tolist()

    def _find(self, sampled: Sampled, choice: Choice) -> _Bound:
        """Tell which rows are bound, or find it again: batches decode many steps between changes."""
        if self._bound is not None and self._bound[0] is choice:
            return self._bound[1]
        indices: list[int] = []
        numbered: list[tuple[LLMatcher, int]] = []
        limits: list[int] = []
        for index in choice.grammar:
            row = sampled.listed[index]
            extras = self._rows.live(row)
            if extras.matcher is not None and extras.forced is None and not extras.failure:
                indices.append(index)
                numbered.append((extras.matcher, row))
                limits.append(extras.limit)
        rows = [row for _, row in numbered]
        masks = None
        if indices and self._masks is not None:
            masks = Masks.of(indices, rows, len(sampled.rows), self._masks.words_RW)
        indices_G, rows_G, limits_G = (np.array(each, np.int64) for each in (indices, rows, limits))
        bound = _Bound(indices, numbered, indices_G, rows_G, limits_G, masks)
        if not self._forced.enabled:  # else rows are ahead now and then
            self._bound = choice, bound
        return bound

    def _fail(self, extras: Extras, matcher: LLMatcher) -> None:
        extras.failure = f"grammar: {_first_line(matcher.get_error())}"
        self._bound = None

    def end(self) -> None:
        """End the thread that fills masks, if there is one."""
        if self._masks is not None:
            self._masks.end()


def _first_line(error: str) -> str:
    return error.split("\n", 1)[0][:300]
