"""Small arrays from the host to where the rows are, without waiting for what the device is at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

__all__ = ["to_device"]


def to_device(values: np.ndarray | Sequence[int], device: torch.device) -> Tensor:
    """Copy an array, or indices as int64, to a device.

    From ordinary memory a GPU would finish its queue first.  From pinned memory the copy joins the queue; torch keeps
    that memory until the copy is done.
    """
    array = values if isinstance(values, np.ndarray) else np.array(values, np.int64)
    host = torch.from_numpy(array.copy())
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)
