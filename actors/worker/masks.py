"""Grammar masks of a step's rows, computed on the host while the forward pass runs."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

__all__ = ["MaskFiller"]


class MaskFiller:
    """Fill masks in a thread beside the worker's; llguidance lets go of Python's lock, so both run.

    The thread starts with the first grammar and ends with `close`.
    """

    def __init__(self) -> None:
        self._helper: ThreadPoolExecutor | None = None
        self._executor: LLExecutor | None = None

    def start(self, matchers: list[LLMatcher], words: int) -> Future[Tensor]:
        """Begin to fill one mask a matcher; the result is int32 [matchers, words], on the host.

        Until it is there, nobody else may touch the matchers.  A matcher that fails is in its error state afterwards.
        """
        if self._helper is None:
            self._helper = ThreadPoolExecutor(1, "callboard-masks")
        return self._helper.submit(self._fill, matchers, words)

    def _fill(self, matchers: list[LLMatcher], words: int) -> Tensor:
        masks_NW = torch.zeros((len(matchers), words), dtype=torch.int32)
        width = words * masks_NW.element_size()
        if len(matchers) == 1:
            matchers[0].unsafe_compute_mask_ptr(masks_NW.data_ptr(), width)
            return masks_NW
        if self._executor is None:
            from llguidance import LLExecutor

            self._executor = LLExecutor()
        numbered = [(matcher, index) for index, matcher in enumerate(matchers)]
        self._executor.unsafe_compute_mask_ptr(numbered, masks_NW.data_ptr(), width, len(matchers))
        return masks_NW

    def close(self) -> None:
        if self._helper is not None:
            self._helper.shutdown()
            self._helper = None
