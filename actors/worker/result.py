"""What a pass leaves on the device for the host, and its one transfer."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..messages import RowFailure
from .choose import Choice

__all__ = ["Packed", "Result"]

_NOTHING = np.zeros(0, np.int32)


class Packed:
    """Pack tokens, log-probabilities and top tokens into one int32 tensor, so that one transfer brings all of it.

    tokens: int64 [n].  logprobs: float32 [l].  top_tokens: int64 [l, k].  top_logprobs: float32 [l, k].
    """

    def __init__(
        self,
        tokens: Tensor,
        logprobs: Tensor | None = None,
        top_tokens: Tensor | None = None,
        top_logprobs: Tensor | None = None,
    ) -> None:
        parts = (tokens, logprobs, top_tokens, top_logprobs)
        words = [_words(part) for part in parts if part is not None]
        self._packed = words[0] if len(words) == 1 else torch.cat(words)
        self._tokens = tokens.shape[0]
        self._logprobs = 0 if logprobs is None else logprobs.shape[0]
        self._width = 0 if top_tokens is None else top_tokens.shape[1]

    def read(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Wait for the device; give tokens int32 [n], logprobs float32 [l], top_tokens and top_logprobs [l, k]."""
        host = self._packed.cpu().numpy()
        wide = self._logprobs * self._width
        ends = np.cumsum((self._tokens, self._logprobs, wide))
        tokens, logprobs, top_tokens, top_logprobs = np.split(host, ends)
        shape = (self._logprobs, self._width)
        return (
            tokens,
            logprobs.view(np.float32),
            top_tokens.reshape(shape),
            top_logprobs.view(np.float32).reshape(shape),
        )


def _words(part: Tensor) -> Tensor:
    return (part.view(torch.int32) if part.dtype == torch.float32 else part.to(torch.int32)).flatten()


@dataclass(slots=True)
class Result:
    """A pass's result on the host, a line for each sampled row; lines of rows without log-probabilities are filled."""

    tokens: np.ndarray = field(default_factory=lambda: _NOTHING)
    logprobs: np.ndarray = field(default_factory=lambda: _NOTHING)
    top_tokens: np.ndarray = field(default_factory=lambda: _NOTHING)
    top_logprobs: np.ndarray = field(default_factory=lambda: _NOTHING)
    failures: list[RowFailure] = field(default_factory=list[RowFailure])

    @classmethod
    def read(cls, packed: Packed, choice: Choice) -> Result:
        """Wait for the device, and spread log-probabilities from the rows that asked over all sampled rows."""
        tokens, logprobs, top_tokens, top_logprobs = packed.read()
        count, asked = len(tokens), choice.logprobs
        if not asked:
            return cls(tokens.copy())
        width = top_tokens.shape[1]
        return cls(
            tokens.copy(),
            _spread(np.zeros(count, np.float32), asked, logprobs),
            _spread(np.full((count, width), -1, np.int32), asked, top_tokens),
            _spread(np.zeros((count, width), np.float32), asked, top_logprobs),
        )

    def reason(self, index: int) -> str:
        """Say what a code that is no token means."""
        if self.tokens[index] == -2:
            return "no token is allowed: regex, min_new_tokens and logit_bias together leave none"
        return "the model gave logits that are not numbers"

    def fail(self, index: int, row: int, message: str) -> None:
        """Record a row's failure, once; a later one says more than an earlier."""
        self.tokens[index] = -1
        self.failures = [failure for failure in self.failures if failure.row != row]
        self.failures.append(RowFailure(row, message))


def _spread(into: np.ndarray, at: list[int], values: np.ndarray) -> np.ndarray:
    into[at] = values
    return into
