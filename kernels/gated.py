"""Gated products of many tokens on Hopper: gates and ups meet in registers and are never written.

A library writes both and a second kernel reads them again, a gigabyte a layer for 8,192 tokens of Llama-3.1-8B: time,
and watts that the products could do with.
Shape suffixes:  T tokens    I inputs    O outputs    F gated outputs, O / 2
"""

from __future__ import annotations

import torch
from torch import Tensor

from .hopper import copied_by_descriptors

__all__ = ["gated_linear", "takes_gated"]

_PROCESSORS = 132
_GATES, _TOKENS = 64, 256  # of a tile, of which a multiprocessor has one at a time
_LEAST_INPUTS = 2048  # with fewer a tile's end, when nothing is multiplied, is too much of it
_LEAST_FILLED = 0.93


def takes_gated(x_TI: Tensor, weight_IO: Tensor) -> bool:
    """Tell whether the kernel computes this product, and its tiles fill their rounds over the multiprocessors.

    Half precision, Hopper, weight rows [O, I].
    """
    tokens, inputs = x_TI.shape
    width = weight_IO.shape[1] // 2
    if inputs < _LEAST_INPUTS or width % 8:
        return False
    rounds = -(-(-(-width // _GATES) * -(-tokens // _TOKENS)) // _PROCESSORS)
    filled = tokens * width >= _LEAST_FILLED * rounds * _PROCESSORS * _GATES * _TOKENS
    return filled and copied_by_descriptors(x_TI, weight_IO)


def gated_linear(x_TI: Tensor, weight_IO: Tensor, *, bias_O: Tensor | None = None) -> Tensor:
    """Multiply by a weight whose first half of outputs are gates, and return silu(gate) * up, [T, F], of x's type.

    It is summed and gated in float32 and rounded once.  Sizes need not fill tiles, but I and F be multiples of 8; ask
    `takes_gated` before.
    """
    inputs, outputs = weight_IO.shape
    if x_TI.shape[1] != inputs or inputs % 8 or outputs % 16:
        raise ValueError(
            f"gated_linear: x is {tuple(x_TI.shape)}, the weight {tuple(weight_IO.shape)}; they must have the same"
            " inputs, a multiple of 8, and outputs a multiple of 16"
        )
    from .fused import gated

    out_TF = torch.empty(x_TI.shape[0], outputs // 2, dtype=x_TI.dtype, device=x_TI.device)
    gated.multiply(x_TI, weight_IO, out_TF, bias_O)
    return out_TF
