"""Layers that families share."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ..kernels.half_linear import HalfMatrix, fits_half

__all__ = ["HalfLinear", "Linear", "PlainLinear", "linear"]


class Linear(Protocol):
    """Multiply by a weight and add a bias if there is one.

    Shape suffixes:  T tokens    I inputs    O outputs
    """

    def __call__(self, x_TI: Tensor) -> Tensor: ...

    def add_to_(self, residual_TO: Tensor, x_TI: Tensor) -> None:
        """Add the result to a residual stream in place."""
        ...

    def scores(self, x_TI: Tensor) -> Tensor:
        """Multiply, giving float32."""
        ...


def linear(weight_IO: Tensor, bias_O: Tensor | None = None) -> Linear:
    """Choose how to multiply by a weight: packed as float16 where that is faster and loses nothing."""
    if fits_half(weight_IO):
        return HalfLinear(weight_IO, bias_O)
    return PlainLinear(weight_IO, bias_O)


class PlainLinear:
    """Multiply by a weight, [in, out]."""

    __slots__ = ("bias_O", "weight_IO")

    def __init__(self, weight_IO: Tensor, bias_O: Tensor | None = None) -> None:
        self.weight_IO = weight_IO
        self.bias_O = bias_O

    def __call__(self, x_TI: Tensor) -> Tensor:
        if self.bias_O is None:
            return torch.mm(x_TI, self.weight_IO)
        return torch.addmm(self.bias_O, x_TI, self.weight_IO)

    def add_to_(self, residual_TO: Tensor, x_TI: Tensor) -> None:
        residual_TO.addmm_(x_TI, self.weight_IO)
        if self.bias_O is not None:
            residual_TO.add_(self.bias_O)

    def scores(self, x_TI: Tensor) -> Tensor:
        if x_TI.is_cuda and x_TI.dtype != torch.float32 and self.bias_O is None:
            # Sums are kept in float32 anyway: rounding them to convert them back would cost two more passes.
            return torch.mm(x_TI, self.weight_IO, out_dtype=torch.float32)
        return self(x_TI).float()


class HalfLinear:
    """Multiply by a weight that is packed as float16 (see kernels/half_linear.py)."""

    __slots__ = ("matrix",)

    def __init__(self, weight_IO: Tensor, bias_O: Tensor | None = None) -> None:
        self.matrix = HalfMatrix(weight_IO, bias_O)

    def __call__(self, x_TI: Tensor) -> Tensor:
        return self.matrix.multiply(x_TI)

    def add_to_(self, residual_TO: Tensor, x_TI: Tensor) -> None:
        residual_TO.add_(self.matrix.multiply(x_TI))

    def scores(self, x_TI: Tensor) -> Tensor:
        return self.matrix.multiply(x_TI)
