"""Drawing tokens on a device: every row's parameters stand there, so only a row that begins sends some."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...kernels.sampler.adjustments import Adjustments
from ...kernels.sampler.begin import write_parameters
from ...kernels.sampler.logprobs import log_probabilities
from ...kernels.sampler.parameters import DeviceSampling
from ...kernels.sampler.sampler import Sampler
from .rows import RANDOM, Rows
from .staging import Staging

__all__ = ["DeviceDraw"]


class DeviceDraw:
    """Sample a worker's rows by our kernels (kernels/sampler), and leave their tokens in `rows.last_tokens`."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        lines = rows.max_rows + 1  # padding's is the last, and greedy
        self._parameters = DeviceSampling.empty(lines, rows.device)
        self._sampler = Sampler(lines, rows.vocabulary, rows.device)
        self.blocks, self.block = self._sampler.blocks, self._sampler.block
        self._begun: list[int] = []

    def begin(self, row: int) -> None:
        self._begun.append(row)

    def send(self, staging: Staging) -> None:
        if not self._begun:
            return
        begun, self._begun = np.array(self._begun, np.int32), []
        rows = self._rows
        random = (rows.features[begun] & RANDOM) != 0  # of the others Rows keeps no parameters
        top_k = np.where(random, rows.top_k[begun], 0)
        parts = (
            rows.keys[begun].view(np.int32),  # first, two words each, so that they stand at an even place
            begun,
            np.where(random, rows.temperature[begun], 0.0).astype(np.float32),
            np.where(top_k < rows.vocabulary, top_k, 0).astype(np.int32),
            np.where(random, rows.top_p[begun], 1.0).astype(np.float32),
            np.where(random, rows.min_p[begun], 0.0).astype(np.float32),
        )
        write_parameters(self._parameters, staging.send(parts))

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
