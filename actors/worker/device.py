"""The device that a model is to live on."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from ...models.room import device_room

__all__ = ["open_device", "read_device", "verify_float8"]

_FLOAT8_FROM = (8, 9)


def open_device(name: str) -> torch.device:
    """Make a device this thread's own.

    Raises ValueError that says what to do: no such device, a GPU that another process has to itself, no triton.
    """
    device = read_device(name)
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise ValueError(f"device is {name!r}; torch sees no CUDA device here, use 'cpu'")
    if (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device is {name!r}; torch sees {torch.cuda.device_count()} CUDA devices here")
    if find_spec("triton") is None:
        raise ValueError(
            f"device is {name!r}; triton is not installed, and nothing runs on a GPU without it: "
            "pip install 'callboard[gpu]', or use 'cpu'"
        )
    device = torch.device("cuda", device.index or 0)
    device_room(device)  # before torch makes a context there: its own words would not say who holds the GPU
    torch.cuda.set_device(device)
    return device


def read_device(name: str) -> torch.device:
    """Read a device's name, whether or not there is such a one; ValueError tells what it may be."""
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in {"cpu", "cuda"}:
        raise ValueError(f"device is {name!r}; it must be 'cpu', 'cuda' or 'cuda:N'")
    return device


def verify_float8(device: torch.device) -> None:
    """Raise ValueError if a device cannot cache in float8: a GPU that has no instructions for it."""
    if device.type != "cuda":
        return
    capability = torch.cuda.get_device_capability(device)
    if capability < _FLOAT8_FROM:
        raise ValueError(
            f"kv_dtype is 'float8'; {torch.cuda.get_device_name(device)} has compute capability "
            f"{'.'.join(map(str, capability))}, and float8 needs {'.'.join(map(str, _FLOAT8_FROM))}: leave kv_dtype out"
        )
