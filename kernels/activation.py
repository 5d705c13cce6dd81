"""Gated activations."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

__all__ = ["silu_and_multiply_"]


def silu_and_multiply_(gate_up_TF: Tensor) -> Tensor:
    """Return silu(gate) * up, [T, intermediate], and leave the input spent: it may hold the result.

    gate_up_TF: [T, 2 * intermediate], rows contiguous, the gate's columns first.  On a CPU the result is a view of it.
    """
    if gate_up_TF.is_cuda:
        from .fused import activation

        return activation.silu_and_multiply(gate_up_TF)
    gate, up = gate_up_TF.chunk(2, dim=-1)
    return functional.silu(gate, inplace=True).mul_(up)
