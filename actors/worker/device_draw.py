"""Drawing tokens on a device: every row's parameters stand there, so a step sends none."""

from __future__ import annotations

import torch
from torch import Tensor

from ...kernels.random import key_of
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

    def begin(self, row: int, sampling: SamplingParams, seed: int) -> None:
        """Write a row's parameters."""
        written = self._parameters
        greedy = sampling.temperature < GREEDY_BELOW or sampling.top_k == 1
        written.temperature_R[row] = 0.0 if greedy else sampling.temperature
        if greedy:
            return
        written.top_k_R[row] = sampling.top_k if 1 <= sampling.top_k < self._rows.vocabulary else 0
        written.top_p_R[row] = sampling.top_p
        written.min_p_R[row] = sampling.min_p
        written.keys_R[row] = key_of(seed)

    def __call__(self, logits_NV: Tensor, rows_N: Tensor, positions_N: Tensor, *, cuts: bool) -> tuple[Tensor, Tensor]:
        tokens_N = torch.empty(len(rows_N), dtype=torch.int64, device=logits_NV.device)
        best_N = torch.empty(len(rows_N), dtype=torch.float32, device=logits_NV.device)
        self._sampler.sample(
            logits_NV, rows_N, positions_N, self._parameters, tokens_N, best_N, self._rows.last_tokens, cuts=cuts
        )
        return tokens_N, best_N
