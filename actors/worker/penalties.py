"""Which tokens the rows with penalties have had: kept only for those rows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...kernels.sampling import penalize, subtracted
from ..sampling import SamplingParams
from .to_device import to_device

__all__ = ["Penalties"]


class Penalties:
    """Keep counts and what follows from them on the device, a line of the vocabulary's width for each row in need.

    Lines are given and taken back; there are as many as rows ever needed one at once, rounded up to a power of two.
    What a count takes off a logit is computed anew for each token counted, never added up, so that a replayed row has
    the same bits.
    """

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        self._vocabulary = vocabulary
        self._device = device
        self._lines: dict[int, int] = {}
        self._repeating: set[int] = set()
        self._free: list[int] = []
        self._counts = torch.zeros((0, vocabulary), dtype=torch.int32, device=device)
        self._subtracted = torch.zeros((0, vocabulary), dtype=torch.float32, device=device)
        self._divisors = torch.ones((0, vocabulary), dtype=torch.float32, device=device)
        self._strengths = torch.zeros((0, 3), dtype=torch.float32, device=device)

    def begin(self, row: int, sampling: SamplingParams, output: np.ndarray, context: np.ndarray) -> None:
        """Give a row its line and put the tokens it has had on it; ids outside the vocabulary do not count."""
        line = self._lines[row] = self._take()
        strengths = (sampling.frequency_penalty, sampling.presence_penalty, sampling.repetition_penalty)
        self._strengths[line] = to_device(np.array(strengths, np.float32), self._device)
        frequency, presence, repetition = self._strengths[line].unbind()
        counts = self._counts[line] = self._bincount(output)
        self._subtracted[line] = subtracted(counts, frequency, presence)
        self._divisors[line] = 1.0
        if sampling.repetition_penalty != 1.0:
            self._repeating.add(row)
            seen = (counts > 0) | (self._bincount(context) > 0)
            self._divisors[line] = torch.where(seen, repetition, 1.0)

    def retire(self, row: int) -> None:
        self._free.append(self._lines.pop(row))
        self._repeating.discard(row)

    def has(self, row: int) -> bool:
        """Whether a row has a line."""
        return row in self._lines

    def apply(self, logits_NV: Tensor, indices: list[int], rows: list[int]) -> None:
        """Penalize logits[indices[i]] with what rows[i] has had, in place."""
        lines = self._index([self._lines[row] for row in rows])
        divisors = self._divisors[lines] if self._repeating.intersection(rows) else None
        if len(indices) == len(logits_NV):
            penalize(logits_NV, self._subtracted[lines], divisors)
            return
        at = self._index(indices)
        some_NV = logits_NV[at]
        penalize(some_NV, self._subtracted[lines], divisors)
        logits_NV.index_copy_(0, at, some_NV)

    def count(self, rows: list[int], tokens_B: Tensor) -> None:
        """Put one new token of each row on its line."""
        lines = self._index([self._lines[row] for row in rows])
        counts_B = self._counts[lines, tokens_B] + 1
        frequency_B, presence_B, repetition_B = self._strengths[lines].unbind(1)
        self._counts[lines, tokens_B] = counts_B
        self._subtracted[lines, tokens_B] = subtracted(counts_B, frequency_B, presence_B)
        self._divisors[lines, tokens_B] = repetition_B

    def add(self, row: int, tokens: np.ndarray) -> None:
        """Put several new tokens of a row on its line."""
        for token in self._index(tokens.tolist()).split(1):
            self.count([row], token)

    def _bincount(self, tokens: np.ndarray) -> Tensor:
        inside = tokens[tokens < self._vocabulary]
        return to_device(np.bincount(inside, minlength=self._vocabulary).astype(np.int32), self._device)

    def _index(self, values: list[int]) -> Tensor:
        return to_device(values, self._device)

    def _take(self) -> int:
        if not self._free:
            old = len(self._counts)
            more = max(old, 1)
            self._counts = torch.cat([self._counts, self._counts.new_zeros((more, self._vocabulary))])
            self._subtracted = torch.cat([self._subtracted, self._subtracted.new_zeros((more, self._vocabulary))])
            self._divisors = torch.cat([self._divisors, self._divisors.new_ones((more, self._vocabulary))])
            self._strengths = torch.cat([self._strengths, self._strengths.new_zeros((more, 3))])
            self._free.extend(range(old + more - 1, old - 1, -1))
        return self._free.pop()
