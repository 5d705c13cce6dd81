"""Grammar masks of a step's rows, computed on the host while the forward pass runs."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...kernels.masks import apply_bitmask
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
    """What grammars allow some of N sampled rows: a line of words_RW, int32, for each of `indices` among the N."""

    indices: list[int]
    lines: list[int]
    words_RW: npt.NDArray[np.int32]

    def lines_of(self, count: int) -> npt.NDArray[np.int32]:
        """Name the line of each of `count` rows, int32, -1 for those that are free."""
        lines_N = np.full(count, -1, np.int32)
        lines_N[self.indices] = self.lines
        return lines_N

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
    """Keep a mask a row, and fill it as soon as its matcher has taken a token, while the next forward pass runs.

    beside: whether a thread beside the model's does so.  A model on a CPU computes outside Python's lock for
    milliseconds, and a core that it does not use, or waits with at its barriers, hides what masks cost.  Beside a GPU
    there is no need: its passes are only launched, so what samples may fill them itself.

    A matcher is the thread's from `begin` to `take`.
    """

    def __init__(self, rows: int, words: int, *, beside: bool) -> None:
        self._masks_RW = np.zeros((rows, words), np.int32)
        self._filler = MaskFiller()
        # One thread: a row that is retired and begun again is filled in that order.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="callboard-masks") if beside else None
        self._due: dict[int, Future[None]] = {}

    def end(self) -> None:
        """Let go of the thread, when it has filled what it was given."""
        if self._thread is not None:
            self._thread.shutdown()

    def begin(self, numbered: list[tuple[LLMatcher, int]]) -> None:
        """Begin to fill the masks of rows whose matchers have changed, each given with its row."""
        if self._thread is None or len(numbered) * self._masks_RW.shape[1] < _WORTH_HANDING_OVER:
            for _, row in numbered:
                self._settle(row)
            return
        filled = self._thread.submit(self._filler.fill_lines, numbered, self._masks_RW)
        for _, row in numbered:
            self._due[row] = filled

    def take(self, numbered: list[tuple[LLMatcher, int]]) -> npt.NDArray[np.int32]:
        """Give all lines once those of these rows are filled; they hold until the next `begin` or `take` of a row."""
        missing: list[tuple[LLMatcher, int]] = []
        for matcher, row in numbered:
            if not self._settle(row):
                missing.append((matcher, row))
        if missing:
            self._filler.fill_lines(missing, self._masks_RW)
        return self._masks_RW

    def _settle(self, row: int) -> bool:
        """Wait until nothing is being written to a row's line; tells whether it was."""
        due = self._due.pop(row, None)
        if due is None:
            return False
        due.result()
        return True
