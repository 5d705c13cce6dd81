"""Drawing tokens on a device: every row's parameters stand there, so only a row that begins sends some."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...kernels.random import key_of
from ...kernels.sampler.adjustments import Adjustments
from ...kernels.sampler.logprobs import log_probabilities
from ...kernels.sampler.parameters import DeviceSampling
from ...kernels.sampler.sampler import Sampler
from ..sampling import SamplingParams
from .rows import GREEDY_BELOW, Rows

__all__ = ["DeviceDraw"]


class DeviceDraw:
    """Sample a worker's rows by our kernels (kernels/sampler), and leave their tokens in `rows.last_tokens`."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        lines = rows.max_rows + 1  # padding's is the last, and greedy
        self._parameters = DeviceSampling.empty(lines, rows.device)
        self._sampler = Sampler(lines, rows.vocabulary, rows.device)
        self.blocks, self.block = self._sampler.blocks, self._sampler.block
        self._begun: list[tuple[int, int, float, int, float, float]] = []

    def begin(self, row: int, sampling: SamplingParams, seed: int) -> None:
        """Take a row's parameters, to be sent with the step that begins it."""
        if sampling.temperature < GREEDY_BELOW or sampling.top_k == 1:
            self._begun.append((key_of(seed), row, 0.0, 0, 1.0, 0.0))
            return
        top_k = sampling.top_k if 1 <= sampling.top_k < self._rows.vocabulary else 0
        self._begun.append((key_of(seed), row, sampling.temperature, top_k, sampling.top_p, sampling.min_p))

    def staged(self) -> list[np.ndarray]:
        """Give what has begun, for a transfer; keys first, two words each, so that they stand at an even place."""
        begun, self._begun = self._begun, []
        keys, rows, temperatures, top_k, top_p, min_p = zip(*begun, strict=True) if begun else ((),) * 6
        return [
            np.array(keys, np.int64).view(np.int32),
            np.array(rows, np.int32),
            np.array(temperatures, np.float32),
            np.array(top_k, np.int32),
            np.array(top_p, np.float32),
            np.array(min_p, np.float32),
        ]

    def write(self, sent: Sequence[Tensor]) -> None:
        """Write what `staged` gave, once it has been sent."""
        keys, rows, temperatures, top_k, top_p, min_p = sent
        if not len(rows):
            return
        at, written = rows.long(), self._parameters
        written.keys_R.index_copy_(0, at, keys.view(torch.int64))
        written.temperature_R.index_copy_(0, at, temperatures.view(torch.float32))
        written.top_k_R.index_copy_(0, at, top_k)
        written.top_p_R.index_copy_(0, at, top_p.view(torch.float32))
        written.min_p_R.index_copy_(0, at, min_p.view(torch.float32))

    def __call__(self, logits_NV: Tensor, rows_N: Tensor, positions_N: Tensor, *, cuts: bool, room: int = 0) -> Tensor:
        count = len(rows_N)
        words = torch.empty(2 * count + room, dtype=torch.int32, device=logits_NV.device)
        tokens_N, best_N = words[:count], words[count : 2 * count].view(torch.float32)
        self._sampler.sample(
            logits_NV, rows_N, positions_N, self._parameters, tokens_N, best_N, self._rows.last_tokens, cuts=cuts
        )
        return words

    def redraw(self, logits_NV: Tensor, adjustments: Adjustments, words: Tensor, room: int, *, cuts: bool) -> None:
        tokens_N, best_N = words[:room], words[room : 2 * room].view(torch.float32)
        self._sampler.redraw(
            logits_NV, adjustments, self._parameters, tokens_N, best_N, self._rows.last_tokens, cuts=cuts
        )

    def log_probabilities(
        self, logits_NV: Tensor, places_L: Tensor, tokens_N: Tensor, width: int, words: Tensor
    ) -> None:
        log_probabilities(logits_NV, places_L, tokens_N, width, words)
