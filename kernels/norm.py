"""Root-mean-square normalisation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["add_rms_norm_", "rms_norm"]


def rms_norm(x_TC: Tensor, weight_C: Tensor, epsilon: float) -> Tensor:
    """Divide each token's vector by its root mean square and scale it by the weight.

    It is computed in float32 and rounded once.
    """
    if x_TC.is_cuda:
        from .fused import norm

        return norm.rms_norm(x_TC, weight_C, epsilon)
    if x_TC.device.type != "cpu" or x_TC.dtype != torch.float32:
        return functional.rms_norm(x_TC, weight_C.shape, weight_C, epsilon)
    # On a CPU torch's own is made of more calls than these; for one token the calls are all there is to it.
    norm_T1 = torch.linalg.vector_norm(x_TC, dim=-1, keepdim=True)
    square_T1 = norm_T1.mul_(norm_T1).mul_(1 / x_TC.shape[-1]).add_(epsilon)
    return (x_TC * square_T1.rsqrt_()).mul_(weight_C)


def add_rms_norm_(x_TC: Tensor, parts_PTC: Tensor, weight_C: Tensor, epsilon: float) -> Tensor:
    """Add parts of a sum to the residual stream in place, and return the norm of what it holds then.

    x_TC: rows contiguous.  parts_PTC: float32, contiguous; all is summed in float32, in order, and rounded once.
    """
    if x_TC.is_cuda:
        from .fused import norm

        return norm.add_rms_norm_(x_TC, parts_PTC, weight_C, epsilon)
    return rms_norm(x_TC.copy_(x_TC + parts_PTC.sum(0)), weight_C, epsilon)
