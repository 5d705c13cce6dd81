"""Which tokens the rows with penalties have had, on a device; the sampler's kernels read and count them there."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from ...kernels.sampler.adjustments import History
from ..sampling import SamplingParams
from .to_device import to_device

__all__ = ["DevicePenalties"]


class _Begun(NamedTuple):
    """What waits to be written on a line.  words: a bit for each token that was there."""

    words: np.ndarray
    tokens: np.ndarray
    counts: np.ndarray
    strengths: tuple[float, float, float]


def _bit(tokens: np.ndarray) -> np.ndarray:
    return np.uint32(1) << (tokens % 32).astype(np.uint32)


class DevicePenalties:
    """Keep a line of `History` for each row in need.

    Lines are given and taken back; there are as many as rows ever needed one at once, rounded up to a power of two.
    Rows that begin wait on the host until somebody looks, and are then written together.
    """

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        self._vocabulary = vocabulary
        self._device = device
        self._lines: dict[int, int] = {}
        self._free: list[int] = []
        self._history = History.empty(0, vocabulary, device)
        self._begun: dict[int, _Begun] = {}

    def begin(self, row: int, sampling: SamplingParams, output: np.ndarray, context: np.ndarray) -> None:
        """Give a row its line and put the tokens it has had on it; ids outside the vocabulary do not count."""
        line = self._lines[row] = self._take()
        strengths = (sampling.frequency_penalty, sampling.presence_penalty, sampling.repetition_penalty)
        both = np.concatenate((output, context)).astype(np.int64)
        tokens, at = np.unique(both[both < self._vocabulary], return_inverse=True)
        had = int((output < self._vocabulary).sum())  # they come first
        counts = np.bincount(at[:had], minlength=len(tokens))
        words = np.zeros(self._history.seen_LW.shape[1], np.uint32)
        np.bitwise_or.at(words, tokens // 32, _bit(tokens))
        self._begun[line] = _Begun(words.view(np.int32), tokens, counts, strengths)

    def retire(self, row: int) -> None:
        line = self._lines.pop(row)
        self._begun.pop(line, None)
        self._free.append(line)

    def has(self, row: int) -> bool:
        """Whether a row has a line."""
        return row in self._lines

    def lines(self, rows: list[int]) -> list[int]:
        """Name the lines of rows that have one."""
        return [self._lines[row] for row in rows]

    def history(self) -> History:
        """Give all lines, with whatever has begun.  What stands there may be written, never kept: lines may move."""
        history, begun = self._history, self._begun
        if begun:
            self._begun = {}
            lines = np.array(list(begun), np.int64)
            words, tokens, counts, strengths = zip(*begun.values(), strict=True)
            owners = np.repeat(lines * self._vocabulary, [len(found) for found in tokens])
            lines_B = to_device(lines, self._device)
            flat_T = to_device(owners + np.concatenate(tokens), self._device)
            history.seen_LW.index_copy_(0, lines_B, to_device(np.stack(words), self._device))
            history.strengths_L3.index_copy_(0, lines_B, to_device(np.array(strengths, np.float32), self._device))
            counts_T = to_device(np.concatenate(counts).astype(np.int32), self._device)
            history.counts_LV.view(-1).index_copy_(0, flat_T, counts_T)
        return history

    def add(self, row: int, tokens: np.ndarray) -> None:
        """Put several new tokens of a row on its line at once; one sampled token a step is counted by the sampler."""
        history, line = self.history(), self._lines[row]
        found, times = np.unique(tokens[tokens < self._vocabulary].astype(np.int64), return_counts=True)
        words, at = np.unique(found // 32, return_inverse=True)
        bits = np.zeros(len(words), np.uint32)
        np.bitwise_or.at(bits, at, _bit(found))
        seen_W, counts_V = history.seen_LW[line], history.counts_LV[line]
        found_F, words_F = to_device(found, self._device), to_device(words, self._device)
        had_F = ((seen_W[found_F // 32] >> (found_F % 32)) & 1) != 0
        before_F = torch.where(had_F, counts_V[found_F], 0)
        counts_V.index_copy_(0, found_F, (before_F + to_device(times, self._device)).int())
        seen_W.index_copy_(0, words_F, seen_W[words_F] | to_device(bits.view(np.int32), self._device))

    def _take(self) -> int:
        if not self._free:
            old = self._history
            count = len(old.seen_LW)
            more = max(count, 1)
            new = History.empty(more, self._vocabulary, self._device)
            self._history = History(
                torch.cat((old.seen_LW, new.seen_LW)),
                torch.cat((old.counts_LV, new.counts_LV)),
                torch.cat((old.strengths_L3, new.strengths_L3)),
            )
            self._free.extend(range(count + more - 1, count - 1, -1))
        return self._free.pop()
