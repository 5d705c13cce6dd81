"""Where kernels in Gluon for Hopper can be had."""

from __future__ import annotations

import torch

__all__ = ["has_hopper_gluon"]


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
