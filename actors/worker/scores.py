"""What a step's prompts are asked for: log-probabilities of their own tokens, and of all tokens behind them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...kernels.sampling import log_probabilities, top
from ...models.model import Model
from ..messages import Extend, InputLogprobs, NextLogprobs, RowFailure
from .result import NO_NUMBERS, Packed
from .returns import Returns
from .rows import Rows
from .to_device import to_device

__all__ = ["Asked", "LogProbabilities", "Scorer", "Scores", "read_asked", "torch_log_probabilities"]

LogProbabilities = Callable[[Tensor, Tensor, int], tuple[Tensor, ...]]
"""Of logits_BV and targets_B: theirs, and if the last argument, k, is not 0, the k likeliest tokens with theirs."""


@dataclass(frozen=True, slots=True)
class Asked:
    """targets: whether an extend has some.  rows, ends: which extends look ahead, and where in the step they end."""

    targets: bool
    rows: tuple[int, ...]
    ends: tuple[int, ...]


def read_asked(extends: tuple[Extend, ...]) -> Asked:
    """Read what a step's extends ask for."""
    targets, rows, ends = False, list[int](), list[int]()
    stop = 0
    for extend in extends:
        stop += len(extend.tokens) // 4
        if extend.targets:
            targets = True
        if extend.next_logprobs:
            rows.append(extend.row)
            ends.append(stop - 1)
    return Asked(targets, tuple(rows), tuple(ends))


@dataclass(frozen=True, slots=True)
class Scores:
    """What a pass has computed of it, on the device until it is read.

    targets: each extend that has some, with what belongs to it.  next_MV: float32, all tokens', of each of next_rows.
    """

    targets: tuple[tuple[Extend, Packed], ...] = ()
    next_rows: tuple[int, ...] = ()
    next_MV: Tensor | None = None

    def send(self, returns: Returns) -> None:
        """Start the targets' transfers to the host."""
        for _, packed in self.targets:
            packed.send(returns)

    def input_logprobs(self) -> tuple[InputLogprobs, ...]:
        """Wait for the device, and tell the targets' log-probabilities."""
        return tuple(_input_logprobs(extend, packed) for extend, packed in self.targets)

    def next_logprobs(self, failures: list[RowFailure]) -> tuple[NextLogprobs, ...]:
        """Wait for the device, and tell those of all tokens; a row that is not numbers joins `failures` instead."""
        if self.next_MV is None:
            return ()
        found: list[NextLogprobs] = []
        for row, logprobs_V in zip(self.next_rows, self.next_MV.cpu().numpy(), strict=True):
            if np.isnan(logprobs_V).any():
                failures.append(RowFailure(row, NO_NUMBERS))
            else:
                found.append(NextLogprobs(row, logprobs_V.tobytes()))
        return tuple(found)


class Scorer:
    """Launch what Scores holds, behind the pass whose hidden states it needs."""

    def __init__(self, model: Model, rows: Rows, log_probabilities: LogProbabilities) -> None:
        self._model = model
        self._rows = rows
        self._log_probabilities = log_probabilities
        # How many logits are computed at once where a prompt's tokens are scored: 64 MiB of float32.
        self.at_once = max(1, (16 << 20) // model.config.vocabulary)

    def targets(self, extends: tuple[Extend, ...], hidden_TC: Tensor) -> tuple[tuple[Extend, Packed], ...]:
        """Compute log-probabilities of the extends' targets, from the hidden states of all their tokens."""
        scored: list[tuple[Extend, Packed]] = []
        offset = 0
        for extend in extends:
            targets = np.frombuffer(extend.targets, np.int32)
            if len(targets):
                first = offset + extend.targets_start - extend.start
                width = self._rows.live(extend.row).top_logprobs
                scored.append((extend, self._pack(hidden_TC[first : first + len(targets)], targets, width)))
            offset += len(extend.tokens) // 4
        return tuple(scored)

    def following(self, hidden_MC: Tensor) -> Tensor:
        """Compute log-probabilities of all tokens behind M hidden states, float32 [M, vocabulary]."""
        return self._model.logits(hidden_MC).float().log_softmax(dim=-1)

    def _pack(self, hidden_MC: Tensor, targets: np.ndarray, width: int) -> Packed:
        targets_M = to_device(targets.astype(np.int64), hidden_MC.device)
        parts: list[tuple[Tensor, ...]] = []
        for hidden_BC, targets_B in zip(hidden_MC.split(self.at_once), targets_M.split(self.at_once), strict=True):
            parts.append(self._log_probabilities(self._model.logits(hidden_BC), targets_B, width))
        columns = [torch.cat(column) for column in zip(*parts, strict=True)]
        nothing = hidden_MC.new_empty(0, dtype=torch.float32)
        return Packed.of(targets_M[:0], nothing, *columns)


def torch_log_probabilities(logits_BV: Tensor, targets_B: Tensor, width: int) -> tuple[Tensor, ...]:
    """Compute LogProbabilities by torch."""
    logprobs_BV, chosen_B = log_probabilities(logits_BV.float(), targets_B)
    return (chosen_B, *top(logprobs_BV, width)) if width else (chosen_B,)


def _input_logprobs(extend: Extend, packed: Packed) -> InputLogprobs:
    read = packed.read()
    return InputLogprobs(
        extend.row,
        extend.targets_start,
        read.logprobs.tobytes(),
        read.top_tokens.tobytes(),
        read.top_logprobs.tobytes(),
    )
