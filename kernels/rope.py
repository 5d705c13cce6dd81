"""Rotary position embedding, applied to interleaved pairs."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["rotate_"]


def rotate_(x_THD: Tensor, rotations_TP: Tensor) -> None:
    """Rotate every pair (2p, 2p + 1) of each head in place by its token's angle.

    x_THD: [T, heads, head_dim], head_dim contiguous.  rotations_TP: complex64 [T, head_dim / 2].  A pair is read as one
    complex number, so the rotation is a single multiplication; in half precision it is done in float32.
    """
    pairs = x_THD if x_THD.dtype == torch.float32 else x_THD.float()
    pairs_THP = torch.view_as_complex(pairs.unflatten(-1, (-1, 2)))
    pairs_THP.mul_(rotations_TP.unsqueeze(1))
    if pairs is not x_THD:
        x_THD.copy_(pairs)
