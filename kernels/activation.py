"""Gated activations."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

__all__ = ["silu_and_multiply_"]


def silu_and_multiply_(gate_up_TF: Tensor) -> Tensor:
    """Return silu(gate) * up, written over the gate.

    gate_up_TF: [T, 2 * intermediate], the gate's columns first; they hold the result afterwards.
    Returns a view, [T, intermediate].
    """
    gate, up = gate_up_TF.chunk(2, dim=-1)
    return functional.silu(gate, inplace=True).mul_(up)
