"""Whether a model fits a device, told from its config before anything is allocated."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

import torch

from .parameters import Parameter

__all__ = ["HEADROOM_BYTES", "Room", "check_room", "device_room", "weight_bytes"]

# For a step's activations, the kernels' workspaces and a first few cached tokens.
HEADROOM_BYTES = 1 << 30
GIB = 1 << 30


class Room(NamedTuple):
    """A device's memory, in bytes."""

    free: int
    total: int


def device_room(device: torch.device) -> Room | None:
    """Ask a GPU how much memory it has left; None for a CPU, whose system pages out what does not fit.

    Raises ValueError if the GPU cannot be used: no such device, or another process has it to itself.
    """
    if device.type != "cuda":
        return None
    try:
        return Room(*torch.cuda.mem_get_info(device))
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch is built without CUDA
        told = str(error).partition("\n")[0]
        raise ValueError(
            f"device {device} cannot be used ({told}); `nvidia-smi` shows which GPUs there are and who holds them"
        ) from error


def weight_bytes(parameters: Iterable[Parameter], dtype: torch.dtype) -> int:
    """Tell how much memory a model's parameters take."""
    return sum(prod(parameter.stacked_shape) for parameter in parameters) * dtype.itemsize


def check_room(weights_bytes: int, dtype: torch.dtype, device: torch.device, room: Room | None) -> None:
    """Raise ValueError, with numbers and what to do, if weights do not fit what is free; None always fits."""
    if room is None or weights_bytes + HEADROOM_BYTES <= room.free:
        return
    needed = weights_bytes + HEADROOM_BYTES
    if needed <= room.total:
        lists = "nvidia-smi" if device.type == "cuda" else "top"
        advice = f"other processes hold the rest: end them (`{lists}` shows them), or choose another device"
    elif dtype == torch.float32 and weights_bytes // 2 + HEADROOM_BYTES <= room.free:
        advice = f"dtype 'bfloat16' needs {(weights_bytes // 2 + HEADROOM_BYTES) / GIB:.1f} GiB"
    else:
        advice = "choose a larger device or a smaller model"
    raise ValueError(
        f"the model needs {needed / GIB:.1f} GiB ({weights_bytes / GIB:.1f} GiB of weights in "
        f"{str(dtype).removeprefix('torch.')}, {HEADROOM_BYTES / GIB:.1f} GiB to work in); "
        f"{device} has {room.free / GIB:.1f} GiB free of {room.total / GIB:.1f} GiB; {advice}"
    )
