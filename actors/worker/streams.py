"""Which stream a worker launches on, asked once instead of at every launch: asking takes the host microseconds."""

from __future__ import annotations

import torch

__all__ = ["launching_stream"]


def launching_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Give the stream that this thread launches a device's work on; None where there is no GPU."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else None
