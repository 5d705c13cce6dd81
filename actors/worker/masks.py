"""Grammar masks of a step's rows, made on the host while the forward pass runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...kernels.masks import apply_bitmask
from .beside import Beside, Job
from .to_device import to_device

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

__all__ = ["MaskFiller", "Masks", "RowMasks"]

# Words of masks from which on other threads are asked to help: 8 rows of a vocabulary of 32k.  Eight small masks take
# 10 us here; on a busy machine, waiting for another thread to get a core takes milliseconds.
_WORTH_SHARING = 8192
# Words of masks from which on a thread beside the model's fills them: 4 rows of a vocabulary of 4k.  To hand them over
# costs 40 us, as much as to fill so many.
_WORTH_HANDING_OVER = 512


@dataclass(frozen=True, slots=True)
class Masks:
    """What grammars allow some of N sampled rows: a line of words_RW, int32, for each of `indices` among the N.

    lines_N: the line of each of the N, int32, -1 for those that are free.
    """

    indices: list[int]
    lines: list[int]
    lines_N: npt.NDArray[np.int32]
    words_RW: npt.NDArray[np.int32]

    @classmethod
    def of(cls, indices: list[int], lines: list[int], count: int, words_RW: npt.NDArray[np.int32]) -> Masks:
        """Tell that of `count` rows these have these lines."""
        lines_N = np.full(count, -1, np.int32)
        lines_N[indices] = lines
        return cls(indices, lines, lines_N, words_RW)

    def apply(self, logits_NV: Tensor) -> None:
        """Keep what is not allowed out of the logits, in place."""
        masks_MW = to_device(self.words_RW[self.lines], logits_NV.device)
        if self.indices == list(range(len(logits_NV))):
            apply_bitmask(logits_NV, masks_MW)
            return
        index_M = to_device(self.indices, logits_NV.device)
        masked_MV = logits_NV[index_M]
        apply_bitmask(masked_MV, masks_MW)
        logits_NV.index_copy_(0, index_M, masked_MV)


class MaskFiller:
    """Fill masks, on several cores if there are several; llguidance lets go of Python's lock."""

    def __init__(self) -> None:
        self._executor: LLExecutor | None = None

    def fill(self, matchers: list[LLMatcher], words: int) -> Tensor:
        """Give one mask a matcher, int32 [matchers, words], on the host."""
        masks_NW = torch.zeros((len(matchers), words), dtype=torch.int32)
        self.fill_lines([(matcher, index) for index, matcher in enumerate(matchers)], masks_NW.numpy())
        return masks_NW

    def fill_lines(self, numbered: list[tuple[LLMatcher, int]], masks_RW: npt.NDArray[np.int32]) -> None:
        """Write each matcher's mask into its line.

        A matcher that fails is in its error state afterwards, and its mask means nothing.
        """
        start, width = masks_RW.ctypes.data, masks_RW.shape[1] * masks_RW.itemsize
        if len(numbered) * masks_RW.shape[1] < _WORTH_SHARING:
            for matcher, line in numbered:
                matcher.unsafe_compute_mask_ptr(start + line * width, width)
            return
        if self._executor is None:
            from llguidance import LLExecutor

            self._executor = LLExecutor()
        self._executor.unsafe_compute_mask_ptr(numbered, start, width, len(masks_RW))


class RowMasks:
    """Keep a mask a row, and make it while the forward pass behind its row's token runs.

    beside: whether a thread beside the model's does so, and gives matchers their tokens too.  A model on a CPU computes
    outside Python's lock for milliseconds, and a core that it does not use, or waits with at its barriers, hides what
    tokens and masks cost.  Beside a GPU there is no need: its passes are only launched, so what samples may do it.

    A matcher is the thread's from `begin` or `advance` to `take`.

    words_RW: a line a row, which is its mask from `take` on until it is begun or advanced again.
    """

    def __init__(self, rows: int, words: int, *, beside: bool) -> None:
        self.words_RW = np.zeros((rows, words), np.int32)
        self._stopped_R = np.zeros(rows, np.bool_)
        self._filler = MaskFiller()
        self._beside = Beside("callboard-masks") if beside else None
        self._filled: list[Job | None] = [None] * rows  # by whom; None if nobody was asked since the matcher changed
        self._latest: tuple[list[tuple[LLMatcher, int]], Job] | None = None

    def end(self) -> None:
        """Let go of the thread, when it has done what it was given."""
        if self._beside is not None:
            self._beside.end()

    def hands_over(self, count: int) -> bool:
        """Tell whether so many rows' tokens and masks are worth another thread's while."""
        return self._beside is not None and count * self.words_RW.shape[1] >= _WORTH_HANDING_OVER

    def begin(self, numbered: list[tuple[LLMatcher, int]]) -> None:
        """Have masks filled of rows whose matchers have changed, each given with its row."""
        self._hand_over(numbered, [])

    def advance(self, numbered: list[tuple[LLMatcher, int]], tokens: list[int]) -> None:
        """Have each row's matcher take its token, and its mask filled.

        A matcher that does not take its token is in its error state when its row is taken, and counts as stopped.
        """
        self._hand_over(numbered, tokens)

    def start(self) -> None:
        """Start what was begun: nobody needs Python's lock for a while.

        Earlier, the thread would contend for it: whoever waits is woken more slowly than the next mask asks again.
        """
        if self._beside is not None:
            self._beside.start()

    def take(self, numbered: list[tuple[LLMatcher, int]]) -> None:
        """Wait until these rows' lines are filled."""
        self.start()
        if self._latest is not None and self._latest[0] is numbered:  # all of them at once, step after step
            self._latest[1].wait()
            return
        missing = [one for one in numbered if not self._wait(one[1])]
        if missing:
            self._fill(missing)

    def stopped(self, rows_G: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Tell which of the rows that were taken can only end, or have failed."""
        return self._stopped_R[rows_G]

    def _hand_over(self, numbered: list[tuple[LLMatcher, int]], tokens: list[int]) -> None:
        if self._beside is None or not self.hands_over(len(numbered)):
            self.start()
            self._latest = None
            for _, row in numbered:
                self._wait(row)
                self._filled[row] = None
            _consume(numbered, tokens)
            return
        job = self._beside.begin(lambda: self._advance(numbered, tokens))
        self._latest = numbered, job
        for _, row in numbered:
            self._filled[row] = job

    def _advance(self, numbered: list[tuple[LLMatcher, int]], tokens: list[int]) -> None:
        _consume(numbered, tokens)
        self._fill(numbered)

    def _fill(self, numbered: list[tuple[LLMatcher, int]]) -> None:
        self._filler.fill_lines(numbered, self.words_RW)
        for matcher, row in numbered:
            self._stopped_R[row] = matcher.is_stopped()

    def _wait(self, row: int) -> bool:
        """Wait until nothing is being done for a row; tells whether its line is filled."""
        job = self._filled[row]
        if job is not None:
            job.wait()
        return job is not None


def _consume(numbered: list[tuple[LLMatcher, int]], tokens: list[int]) -> None:
    """Give matchers their tokens, if there are any."""
    for (matcher, _), token in zip(numbered, tokens, strict=False):
        matcher.consume_token(token)
