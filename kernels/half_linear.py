"""Multiplication by float32 weights that float16 can hold, on a CPU: half the bytes to read for the same products.

Most checkpoints are saved in bfloat16 or float16.  Run in float32, their weights still have few significant bits, and
fbgemm multiplies float32 activations by packed float16 weights, in float32 arithmetic (figures in bench/LOG.md).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["HalfMatrix", "fits_half", "holds_half"]

# Below this many elements the call costs more than the bytes it saves.
WORTHWHILE_ELEMENTS = 1 << 18
# float16 has bfloat16's precision and more down to 2 ** -17; what is lost below is half of its last bit, 2 ** -24.
NEGLIGIBLE = 2.0**-25


def fits_half(weight_IO: Tensor) -> bool:
    """Tell whether packing pays and changes no element by more than 2 ** -25."""
    if weight_IO.device.type != "cpu" or weight_IO.dtype != torch.float32 or weight_IO.numel() < WORTHWHILE_ELEMENTS:
        return False
    if torch.backends.quantized.engine not in {"x86", "fbgemm"}:
        return False
    return holds_half(weight_IO)


def holds_half(weight_IO: Tensor) -> bool:
    """Tell whether float16 changes no element by more than 2 ** -25."""
    half_IO = weight_IO.half()
    return bool(((half_IO.float() - weight_IO).abs() <= NEGLIGIBLE).all())


class HalfMatrix:
    """A weight [in, out] and a bias, packed for fbgemm.  The float32 original need not be kept."""

    __slots__ = ("packed",)

    def __init__(self, weight_IO: Tensor, bias_O: Tensor | None) -> None:
        self.packed: Any = torch.ops.quantized.linear_prepack_fp16(weight_IO.t().contiguous(), bias_O)

    def multiply(self, x_TI: Tensor) -> Tensor:
        """Multiply float32 [T, in]; returns float32 [T, out]."""
        return torch.ops.quantized.linear_dynamic_fp16(x_TI, self.packed)
