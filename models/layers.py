"""Layers that families share.

Shape suffixes:  T tokens    I inputs    O outputs    F outputs of a gated product, O / 2    P parts of a sum
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels.activation import silu_and_multiply_
from ..kernels.gated import gated_linear, takes_gated
from ..kernels.half_linear import HalfMatrix, fits_half
from ..kernels.invariant import invariant_linear
from ..kernels.norm import add_rms_norm_, rms_norm
from ..kernels.skinny import skinny_linear, takes
from ..kernels.streamed import stream_linear, stream_parts, streams

__all__ = ["DeviceLinear", "HalfLinear", "InvariantLinear", "Linear", "Norm", "PlainLinear", "Residual", "linear"]


class Norm(NamedTuple):
    """Divide by the root mean square and scale."""

    weight_I: Tensor
    epsilon: float

    def __call__(self, x_TI: Tensor) -> Tensor:
        return rms_norm(x_TI, self.weight_I, self.epsilon)


class Residual:
    """The residual stream of a step, and the parts of a product that the next norm is to add to it."""

    __slots__ = ("_parts_PTO", "_x_TO")

    def __init__(self, x_TO: Tensor) -> None:
        self._x_TO = x_TO
        self._parts_PTO: Tensor | None = None

    @property
    def tokens(self) -> int:
        return self._x_TO.shape[0]

    @property
    def x_TO(self) -> Tensor:  # noqa: N802 (a shape's suffix)
        """What all have added, to be added to in place."""
        if self._parts_PTO is not None:
            self._x_TO.copy_(self._x_TO + self._parts_PTO.sum(0))
            self._parts_PTO = None
        return self._x_TO

    def normed(self, norm: Norm) -> Tensor:
        if self._parts_PTO is None:
            return norm(self._x_TO)
        parts_PTO, self._parts_PTO = self._parts_PTO, None
        return add_rms_norm_(self._x_TO, parts_PTO, norm.weight_I, norm.epsilon)

    def leave(self, parts_PTO: Tensor) -> None:
        """Leave parts, float32, to be added."""
        self._x_TO, self._parts_PTO = self.x_TO, parts_PTO

    def keep(self, wanted_N: Tensor) -> None:
        """Keep the tokens whose indices are given, and no others."""
        self._x_TO = self.x_TO.index_select(0, wanted_N)


class Linear(ABC):
    """Multiply by a weight and add a bias if there is one, with what stands before and behind it in a layer."""

    __slots__ = ()

    @abstractmethod
    def multiply(self, x_TI: Tensor) -> Tensor:
        """Multiply and add the bias, nothing else."""

    def normed(self, residual: Residual, norm: Norm) -> Tensor:
        """Multiply the norm of a residual stream, [T, O]."""
        return self.multiply(residual.normed(norm))

    def gated(self, residual: Residual, norm: Norm) -> Tensor:
        """Return silu(gate) * up of its norm, [T, F]: the first half of the outputs are gates."""
        return silu_and_multiply_(self.normed(residual, norm))

    def add_to_(self, residual: Residual, x_TI: Tensor) -> None:
        """Add the result to a residual stream."""
        residual.x_TO.add_(self.multiply(x_TI))

    def scores(self, x_TI: Tensor) -> Tensor:
        """Multiply, giving float32."""
        return self.multiply(x_TI).float()


def linear(weight_IO: Tensor, bias_O: Tensor | None = None, *, deterministic: bool = False) -> Linear:
    """Choose how to multiply by a weight: packed as float16 on a CPU, where that is faster and loses nothing.

    deterministic: so that a token's bits do not depend on the others.
    """
    if deterministic:
        return InvariantLinear(weight_IO, bias_O)
    if weight_IO.is_cuda:
        return DeviceLinear(weight_IO, bias_O)
    if fits_half(weight_IO):
        return HalfLinear(weight_IO, bias_O)
    return PlainLinear(weight_IO, bias_O)


class PlainLinear(Linear):
    """Multiply by a weight, [in, out]."""

    __slots__ = ("bias_O", "weight_IO")

    def __init__(self, weight_IO: Tensor, bias_O: Tensor | None = None) -> None:
        self.weight_IO = weight_IO
        self.bias_O = bias_O

    def multiply(self, x_TI: Tensor) -> Tensor:
        if self.bias_O is None:
            return torch.mm(x_TI, self.weight_IO)
        return torch.addmm(self.bias_O, x_TI, self.weight_IO)

    def add_to_(self, residual: Residual, x_TI: Tensor) -> None:
        residual_TO = residual.x_TO.addmm_(x_TI, self.weight_IO)
        if self.bias_O is not None:
            residual_TO.add_(self.bias_O)


class DeviceLinear(PlainLinear):
    """Multiply on a GPU: one token with all that is around it, or a few, in kernels of ours, more in the library's."""

    __slots__ = ()

    def multiply(self, x_TI: Tensor) -> Tensor:
        if takes(x_TI, self.weight_IO):
            return skinny_linear(x_TI, self.weight_IO, bias_O=self.bias_O)
        if streams(x_TI, self.weight_IO):
            return stream_linear(x_TI, self.weight_IO, bias_O=self.bias_O)
        return super().multiply(x_TI)

    def normed(self, residual: Residual, norm: Norm) -> Tensor:
        if not self._one_token(residual):
            return super().normed(residual, norm)
        return skinny_linear(
            residual.x_TO, self.weight_IO, bias_O=self.bias_O, norm_I=norm.weight_I, epsilon=norm.epsilon
        )

    def gated(self, residual: Residual, norm: Norm) -> Tensor:
        if self._one_token(residual):
            return skinny_linear(
                residual.x_TO,
                self.weight_IO,
                bias_O=self.bias_O,
                norm_I=norm.weight_I,
                epsilon=norm.epsilon,
                gated=True,
            )
        x_TI = residual.normed(norm)
        if streams(x_TI, self.weight_IO):
            return stream_linear(x_TI, self.weight_IO, bias_O=self.bias_O, gated=True)
        if takes_gated(x_TI, self.weight_IO):
            return gated_linear(x_TI, self.weight_IO, bias_O=self.bias_O)
        return silu_and_multiply_(self.multiply(x_TI))

    def _one_token(self, residual: Residual) -> bool:
        """Tell whether the norm, too, is the kernel's of one token."""
        return residual.tokens == 1 and takes(residual.x_TO, self.weight_IO)

    def add_to_(self, residual: Residual, x_TI: Tensor) -> None:
        if takes(x_TI, self.weight_IO):
            skinny_linear(x_TI, self.weight_IO, bias_O=self.bias_O, residual_TO=residual.x_TO)
        elif streams(x_TI, self.weight_IO, divided=True):
            residual.leave(stream_parts(x_TI, self.weight_IO, bias_O=self.bias_O))
        else:
            super().add_to_(residual, x_TI)

    def scores(self, x_TI: Tensor) -> Tensor:
        if takes(x_TI, self.weight_IO):
            return skinny_linear(x_TI, self.weight_IO, bias_O=self.bias_O, dtype=torch.float32)
        if x_TI.dtype != torch.float32 and self.bias_O is None:
            # Sums are kept in float32 anyway: rounding them to convert them back would cost two more passes.
            return torch.mm(x_TI, self.weight_IO, out_dtype=torch.float32)
        return super().scores(x_TI)


class InvariantLinear(PlainLinear):
    """Multiply on a GPU so that a token's result is the same, to the bit, in any batch (see kernels/invariant.py)."""

    __slots__ = ()

    def __init__(self, weight_IO: Tensor, bias_O: Tensor | None = None) -> None:
        super().__init__(weight_IO.t().contiguous().t(), bias_O)  # a view still, where it is laid out so already

    def multiply(self, x_TI: Tensor) -> Tensor:
        return invariant_linear(x_TI, self.weight_IO, bias_O=self.bias_O)

    def add_to_(self, residual: Residual, x_TI: Tensor) -> None:
        invariant_linear(x_TI, self.weight_IO, bias_O=self.bias_O, residual_TO=residual.x_TO)

    def scores(self, x_TI: Tensor) -> Tensor:
        return invariant_linear(x_TI, self.weight_IO, bias_O=self.bias_O, dtype=torch.float32)


class HalfLinear(Linear):
    """Multiply by a weight that is packed as float16 (see kernels/half_linear.py)."""

    __slots__ = ("matrix",)

    def __init__(self, weight_IO: Tensor, bias_O: Tensor | None = None) -> None:
        self.matrix = HalfMatrix(weight_IO, bias_O)

    def multiply(self, x_TI: Tensor) -> Tensor:
        return self.matrix.multiply(x_TI)
