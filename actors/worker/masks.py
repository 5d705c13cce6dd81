"""Grammar masks of a step's rows, computed on the host while the device runs the forward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

__all__ = ["MaskFiller"]

# Words of masks from which on other threads are asked to help: 8 rows of a vocabulary of 32k.  Eight small masks take
# 10 us here; on a busy machine, waiting for another thread to get a core takes milliseconds.
_WORTH_SHARING = 8192


class MaskFiller:
    """Fill masks, on several cores if there are several; llguidance lets go of Python's lock.

    It runs in the worker's own thread: a forward pass on a GPU is only launched there, and on a CPU a helper's thread
    would take its core from the model (and 50 us of hand-over for 10 us of work).
    """

    def __init__(self) -> None:
        self._executor: LLExecutor | None = None

    def fill(self, matchers: list[LLMatcher], words: int) -> Tensor:
        """Give one mask a matcher, int32 [matchers, words], on the host.

        A matcher that fails is in its error state afterwards, and its mask means nothing.
        """
        masks_NW = torch.zeros((len(matchers), words), dtype=torch.int32)
        width = words * masks_NW.element_size()
        if len(matchers) * words < _WORTH_SHARING:
            for index, matcher in enumerate(matchers):
                matcher.unsafe_compute_mask_ptr(masks_NW.data_ptr() + index * width, width)
            return masks_NW
        if self._executor is None:
            from llguidance import LLExecutor

            self._executor = LLExecutor()
        numbered = [(matcher, index) for index, matcher in enumerate(matchers)]
        self._executor.unsafe_compute_mask_ptr(numbered, masks_NW.data_ptr(), width, len(matchers))
        return masks_NW
