"""Root-mean-square normalisation."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

__all__ = ["rms_norm"]


def rms_norm(x_TC: Tensor, weight_C: Tensor, epsilon: float) -> Tensor:
    """Divide each token's vector by its root mean square and scale it by the weight."""
    return functional.rms_norm(x_TC, weight_C.shape, weight_C, epsilon)
