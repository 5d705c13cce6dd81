"""Layers that families share."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Linear"]


class Linear:
    """Multiply by a weight kept as [in, out] and add a bias if there is one."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x_TI: Tensor) -> Tensor:
        if self.bias is None:
            return torch.mm(x_TI, self.weight)
        return torch.addmm(self.bias, x_TI, self.weight)

    def add_to_(self, residual_TO: Tensor, x_TI: Tensor) -> None:
        """Add the product to a residual stream in place: one pass instead of two."""
        residual_TO.addmm_(x_TI, self.weight)
        if self.bias is not None:
            residual_TO.add_(self.bias)
