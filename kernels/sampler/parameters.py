"""How rows are sampled on a device, a line for each row a worker may hold; read there by index, so no step sends it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["DeviceSampling"]


@dataclass(frozen=True, slots=True)
class DeviceSampling:
    """The parameters of R rows.

    temperature_R, top_p_R, min_p_R: float32.  A temperature of 0 is greedy, and then nothing else counts.  top_k_R:
    int32.  0 for a top-k, 1 for a top-p and 0 for a min-p mean none.  keys_R: int64, from `random.key_of`.
    """

    temperature_R: Tensor
    top_k_R: Tensor
    top_p_R: Tensor
    min_p_R: Tensor
    keys_R: Tensor

    @classmethod
    def empty(cls, rows: int, device: torch.device) -> DeviceSampling:
        """Make room for `rows` rows; all of them are greedy."""
        return cls(
            temperature_R=torch.zeros(rows, dtype=torch.float32, device=device),
            top_k_R=torch.zeros(rows, dtype=torch.int32, device=device),
            top_p_R=torch.ones(rows, dtype=torch.float32, device=device),
            min_p_R=torch.zeros(rows, dtype=torch.float32, device=device),
            keys_R=torch.zeros(rows, dtype=torch.int64, device=device),
        )
