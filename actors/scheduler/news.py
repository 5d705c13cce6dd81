"""What the detokenizer is to be told next."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..messages import Finished, TokenLogprob, Tokens

__all__ = ["News"]


class News:
    """One step's tokens and terminal events, until they are sent."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.requests: list[npt.NDArray[np.int64]] = []
        self.offsets: list[npt.NDArray[np.int32]] = []
        self.tokens: list[npt.NDArray[np.int32]] = []
        self.logprobs: dict[int, TokenLogprob] = {}
        self.input_logprobs: dict[int, tuple[TokenLogprob, ...]] = {}
        self.cached: dict[int, int] = {}
        self.finished: list[Finished] = []
        self.next_logprobs: dict[int, bytes] = {}

    def take(self, step: int, replica: int = 0) -> Tokens | None:
        """Pack what there is into one message, or give None, and begin anew."""
        if not (self.tokens or self.finished or self.input_logprobs):
            return None
        message = Tokens(
            step,
            b"".join([part.tobytes() for part in self.requests]),
            b"".join([part.tobytes() for part in self.offsets]),
            b"".join([part.tobytes() for part in self.tokens]),
            self.logprobs,
            self.input_logprobs,
            self.cached,
            tuple(self.finished),
            self.next_logprobs,
            replica,
        )
        self._clear()
        return message
