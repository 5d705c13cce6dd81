"""What callboard doctor tells of a model: its shape, whether its files are whole, and whether it fits a device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from ..actors.worker.device import read_device, verify_float8
from ..actors.worker.room import slot_bytes
from ..models import embedded
from ..models.checkpoint import Checkpoint
from ..models.config import ModelConfig, read_config
from ..models.parameters import Parameter
from ..models.registry import family
from ..models.room import GIB, HEADROOM_BYTES, Room, check_room, device_room, weight_bytes
from ..models.verify import verify
from .doctor import Finding

__all__ = ["examine_model"]


def examine_model(
    path: str,
    device: str | None = None,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    room: Callable[[torch.device], Room | None] = device_room,
) -> list[Finding]:
    """Look at a model without loading it.

    path: "embedded" is the one that ships.  device: None is a GPU if torch sees one, else the CPU.  dtype: None is
    float32 on a CPU and the model's own on a GPU.  kv_dtype: of what is cached, "float8", or None, as dtype.
    room: tells what a device has left.
    """
    folder = embedded.path() if path == "embedded" else Path(path).expanduser()
    return list(_findings(folder, device, dtype, kv_dtype, room))


def _findings(
    folder: Path,
    device_name: str | None,
    dtype_name: str | None,
    kv_dtype_name: str | None,
    room: Callable[[torch.device], Room | None],
) -> Iterator[Finding]:
    try:
        config = read_config(folder)
        parameters = family(config.architecture).parameters(config)
    except ValueError as error:
        yield Finding("model", "bad", str(error))
        return
    millions = weight_bytes(parameters, torch.uint8) / 1e6
    yield Finding(
        "model",
        "good",
        f"{config.architecture}, {millions:,.1f} million parameters saved as {config.dtype}: {config.layers} layers, "
        f"{config.heads} heads on {config.kv_heads} of {config.head_dim}, context {config.context_length:,} tokens",
    )
    yield _weights(folder, config, parameters)
    yield _tokenizer(folder)
    yield _room(config, parameters, device_name, dtype_name, kv_dtype_name, room)


def _weights(folder: Path, config: ModelConfig, parameters: list[Parameter]) -> Finding:
    try:
        checkpoint = Checkpoint(folder)
        verify(checkpoint, config, parameters)
    except ValueError as error:
        return Finding("weights", "bad", str(error))
    files = {folder / file for file in checkpoint.files.values()}
    size = sum(file.stat().st_size for file in files) / GIB
    many = "a file" if len(files) == 1 else f"{len(files)} files"
    return Finding("weights", "good", f"{len(checkpoint.files)} tensors in {many}, {size:.2f} GiB")


def _tokenizer(folder: Path) -> Finding:
    file = folder / "tokenizer.json"
    if file.is_file():
        return Finding("tokenizer", "good", str(file))
    return Finding("tokenizer", "bad", f"{file} does not exist; save the model's fast tokenizer there")


def _room(
    config: ModelConfig,
    parameters: list[Parameter],
    device_name: str | None,
    dtype_name: str | None,
    kv_dtype_name: str | None,
    room: Callable[[torch.device], Room | None],
) -> Finding:
    """Tell whether the weights fit, and how many tokens can be cached beside them."""
    try:
        device = read_device(device_name or ("cuda" if torch.cuda.is_available() else "cpu"))
        if device.type == "cuda":
            there = room(device)
        else:
            there = room(device) or _memory()
        dtype = getattr(torch, dtype_name or ("float32" if device.type == "cpu" else config.dtype))
        if kv_dtype_name == "float8":
            verify_float8(device)
        kv_dtype = torch.float8_e4m3fn if kv_dtype_name == "float8" else dtype
        needed = weight_bytes(parameters, dtype)
        check_room(needed, dtype, device, there)
    except (ValueError, RuntimeError) as error:  # RuntimeError: torch cannot ask the device
        return Finding("room", "bad", str(error).partition("\n")[0])
    weights = f"{needed / GIB:.2f} GiB of weights in {str(dtype).removeprefix('torch.')} fit {device}"
    if there is None:
        return Finding("room", "good", f"{weights} if it has that much: this system does not tell")
    left = there.free - needed - HEADROOM_BYTES
    kept = "" if kv_dtype is dtype else f" in {kv_dtype_name}"
    return Finding(
        "room",
        "good",
        f"{weights}, and leave {left / GIB:.1f} of {there.total / GIB:.1f} GiB: "
        f"{left // slot_bytes(config, kv_dtype):,} cached tokens{kept}",
    )


def _memory() -> Room | None:
    """Tell what this machine's memory has left, its file cache counted as free; None if the system does not tell."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        lines = Path("/proc/meminfo").read_text().splitlines()
    except (ValueError, OSError, AttributeError):
        return None
    for line in lines:
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return Room(int(amount.split()[0]) * 1024, total)
    return None
