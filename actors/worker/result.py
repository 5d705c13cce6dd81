"""What a pass leaves on the device for the host, and its one transfer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...kernels.sampling import log_probabilities, top
from ..messages import RowFailure
from .choose import Choice
from .returns import Arrival, Returns

__all__ = ["NO_NUMBERS", "Packed", "Result", "pack"]

_NOTHING = np.zeros(0, np.int32)
_NOTHING_LEFT = "no token is allowed: constraint, min_new_tokens and logit_bias together leave none"
NO_NUMBERS = "the model gave logits that are not numbers"


class Packed:
    """Pack a pass's outcome into one int32 tensor, so that one transfer brings all of it.

    tokens: int64 [n].  best: float32 [n], each row's greatest logit, which shows whether the token means anything.
    logprobs: float32 [l].  top_tokens: int64 [l, k].  top_logprobs: float32 [l, k].
    """

    def __init__(self, words: Tensor, tokens: int, *, room: int = 0, logprobs: int = 0, width: int = 0) -> None:
        """Take words that are packed already.  room: for how many tokens there is place, if for more than `tokens`."""
        self._words = words
        self._tokens = tokens
        self._room = room or tokens
        self._logprobs = logprobs
        self._width = width
        self._arrival: Arrival | None = None

    @classmethod
    def of(
        cls,
        tokens: Tensor,
        best: Tensor,
        logprobs: Tensor | None = None,
        top_tokens: Tensor | None = None,
        top_logprobs: Tensor | None = None,
    ) -> Packed:
        """Pack tensors."""
        parts = (tokens, best, logprobs, top_tokens, top_logprobs)
        return cls(
            torch.cat([_words(part) for part in parts if part is not None]),
            tokens.shape[0],
            logprobs=0 if logprobs is None else logprobs.shape[0],
            width=0 if top_tokens is None else top_tokens.shape[1],
        )

    def send(self, returns: Returns) -> torch.cuda.Event | None:
        """Start the transfer to the host, which `read` waits for; give when it has ended."""
        self._arrival = returns.bring(self._words)
        return self._arrival.landed

    def read(self) -> Unpacked:
        """Wait for the device."""
        host = self._words.cpu().numpy() if self._arrival is None else self._arrival.wait()
        tokens, room, logprobs, width = self._tokens, self._room, self._logprobs, self._width
        first, second = 2 * room + logprobs, 2 * room + logprobs * (1 + width)
        return Unpacked(
            host[:tokens],
            host[room : room + tokens].view(np.float32),
            host[2 * room : first].view(np.float32),
            host[first:second].reshape(logprobs, width),
            host[second:].view(np.float32).reshape(logprobs, width),
        )


def pack(tokens_N: Tensor, best_N: Tensor, raw_LV: Tensor | None, choice: Choice) -> Packed:
    """Pack what N rows drew, and for the rows that want them the log-probabilities of raw_LV, their raw logits."""
    if raw_LV is None:
        return Packed.of(tokens_N, best_N)
    logprobs_LV, chosen_L = log_probabilities(raw_LV, tokens_N[choice.logprobs_L].long())
    if not choice.top_logprobs:
        return Packed.of(tokens_N, best_N, chosen_L)
    return Packed.of(tokens_N, best_N, chosen_L, *top(logprobs_LV, choice.top_logprobs))


class Unpacked(NamedTuple):
    """What Packed packed, on the host."""

    tokens: np.ndarray
    best: np.ndarray
    logprobs: np.ndarray
    top_tokens: np.ndarray
    top_logprobs: np.ndarray


def _words(part: Tensor) -> Tensor:
    return (part.view(torch.int32) if part.dtype == torch.float32 else part.to(torch.int32)).flatten()


@dataclass(slots=True)
class Result:
    """A pass's result on the host, a line for each sampled row; lines of rows without log-probabilities are filled."""

    tokens: np.ndarray = field(default_factory=lambda: _NOTHING)
    best: np.ndarray = field(default_factory=lambda: _NOTHING)
    logprobs: np.ndarray = field(default_factory=lambda: _NOTHING)
    top_tokens: np.ndarray = field(default_factory=lambda: _NOTHING)
    top_logprobs: np.ndarray = field(default_factory=lambda: _NOTHING)
    failures: list[RowFailure] = field(default_factory=list[RowFailure])

    @classmethod
    def read(cls, packed: Packed, choice: Choice) -> Result:
        """Wait for the device, and spread log-probabilities from the rows that asked over all sampled rows."""
        read = packed.read()
        tokens, asked = read.tokens.copy(), choice.logprobs
        if not asked:
            return cls(tokens, read.best)
        count, width = len(tokens), read.top_tokens.shape[1]
        return cls(
            tokens,
            read.best,
            _spread(np.zeros(count, np.float32), asked, read.logprobs),
            _spread(np.full((count, width), -1, np.int32), asked, read.top_tokens),
            _spread(np.zeros((count, width), np.float32), asked, read.top_logprobs),
        )

    def meaningless(self) -> list[tuple[int, str]]:
        """Give the indices of the rows that could not be sampled, and why."""
        finite = np.isfinite(self.best)
        bad = [] if finite.all() else np.flatnonzero(~finite).tolist()
        return [(index, _NOTHING_LEFT if self.best[index] == -np.inf else NO_NUMBERS) for index in bad]

    def fail(self, index: int, row: int, message: str) -> None:
        """Record a row's failure, once; a later one says more than an earlier."""
        self.tokens[index] = -1
        self.failures = [failure for failure in self.failures if failure.row != row]
        self.failures.append(RowFailure(row, message))


def _spread(into: np.ndarray, at: list[int], values: np.ndarray) -> np.ndarray:
    into[at] = values
    return into
