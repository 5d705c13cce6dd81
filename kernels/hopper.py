"""Where kernels in Gluon for Hopper can be had."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["copied_by_descriptors", "has_hopper_gluon"]


def has_hopper_gluon(device: torch.device, dtype: torch.dtype) -> bool:
    """Tell whether our kernels in Gluon run on a device, with numbers of two bytes.

    They are written for compute capability 9.0 and for Triton 3.6: Gluon's names change from one version to the next.
    """
    if device.type != "cuda" or dtype not in {torch.bfloat16, torch.float16}:
        return False
    if torch.cuda.get_device_capability(device) != (9, 0):
        return False
    import triton

    return triton.__version__.split(".")[:2] == ["3", "6"]


def copied_by_descriptors(x_TI: Tensor, weight_IO: Tensor) -> bool:
    """Tell whether such a kernel can copy both sides of a product: one type, inputs side by side, 16 bytes aligned."""
    inputs = x_TI.shape[1]
    return (
        weight_IO.dtype == x_TI.dtype
        and inputs % 8 == 0
        and weight_IO.stride() == (1, inputs)
        and x_TI.stride() == (inputs, 1)
        and x_TI.data_ptr() % 16 == weight_IO.data_ptr() % 16 == 0
        and has_hopper_gluon(x_TI.device, x_TI.dtype)
    )
