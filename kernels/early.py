"""Kernels that start before the one before them has ended."""

from __future__ import annotations

import torch

__all__ = ["launches_early"]

# With more tokens a kernel takes so much longer than its launch that nothing is to be won.
_TOKENS = 512


def launches_early(device: torch.device, tokens: int = 1) -> bool:
    """Tell whether a kernel over so many tokens should be launched early (programmatic dependent launch).

    From compute capability 9.0 on.  A kernel that is launched so waits (`gdc_wait`) before it touches what its
    predecessor writes, and only then lets its own successor start: so what older kernels wrote may be read at once.
    """
    return tokens <= _TOKENS and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
