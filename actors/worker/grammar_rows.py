"""The rows with a constraint: their matchers begin with them, give masks before sampling, and take what was sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

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


class GrammarRows:
    """Bind rows to what their constraints allow.  grammars: None refuses every row that has a constraint."""

    def __init__(self, rows: Rows, grammars: GrammarCache | None, forced: FastForward) -> None:
        self._rows = rows
        self._grammars = grammars
        self._forced = forced
        self._masks: RowMasks | None = None

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

    def masks(self, sampled: Sampled, choice: Choice) -> tuple[Masks | None, set[int]]:
        """Give the masks, and the indices of the rows whose text is complete and can only end."""
        bound: list[tuple[int, Extras, LLMatcher]] = []
        for index in choice.grammar:
            extras = self._rows.live(sampled.listed[index])
            if extras.matcher is not None and extras.forced is None and not extras.failure:
                bound.append((index, extras, extras.matcher))
        if not bound or self._masks is None:
            return None, set()
        indices = [index for index, *_ in bound]
        lines = [sampled.listed[index] for index in indices]
        words_RW = self._masks.take([(matcher, line) for (*_, matcher), line in zip(bound, lines, strict=True)])
        complete: set[int] = set()
        for index, extras, matcher in bound:
            if matcher.is_error():
                extras.failure = f"grammar: {_first_line(matcher.get_error())}"
            elif matcher.is_stopped():
                complete.add(index)
        return Masks(indices, lines, words_RW), complete

    def settle(
        self, result: Result, sampled: Sampled, choice: Choice, surplus: frozenset[int]
    ) -> tuple[list[int], list[Forced]]:
        """Give the matchers their tokens; tell the rows whose text may end here, and what is forced on which.

        A row whose matcher does not take its token, or that has failed before, fails in `result`.
        """
        accepting, forced = list[int](), list[Forced]()
        changed: list[tuple[LLMatcher, int]] = []
        for index in choice.grammar:
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
                extras.failure = f"grammar: {_first_line(extras.matcher.get_error())}"
            if extras.failure:
                result.fail(index, row, extras.failure)
        if changed and self._masks is not None:
            self._masks.begin(changed)
        return accepting, forced

    def end(self) -> None:
        """End the thread that fills masks, if there is one."""
        if self._masks is not None:
            self._masks.end()


def _first_line(error: str) -> str:
    return error.split("\n", 1)[0][:300]
