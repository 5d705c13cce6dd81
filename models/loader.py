"""From a folder in the Hugging Face layout to a model on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ..kernels.kv_pool import FLOAT8
from .calibration import measure_scales
from .checkpoint import Checkpoint
from .config import read_config
from .kv_scales import read_scales
from .model import Model
from .parameters import Parameter, Source, interleave_pairs
from .registry import family
from .room import Room, check_room, device_room, weight_bytes
from .upload import Upload
from .verify import verify

__all__ = ["LoadFormat", "load", "read_config"]

LoadFormat = Literal["auto", "dummy"]


def load(
    folder: Path | str,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    load_format: LoadFormat = "auto",
    seed: int = 0,
    room: Callable[[torch.device], Room | None] = device_room,
    deterministic: bool = False,
    kv_dtype: torch.dtype | None = None,
) -> Model:
    """Load a model: each tensor goes from its safetensors file straight to its place on the device.

    dtype: float32, bfloat16 or float16; None takes the one the weights were saved as.  load_format "dummy" reads
    config.json alone and draws random weights from the seed, on the device.  room: tells what a device has left.
    deterministic: what the model computes for a token depends on its row alone, to the bit; for a GPU.
    kv_dtype: of the pool that the model will write to.  For float8_e4m3fn keys and values come out scaled: by what the
    checkpoint says, or if it does not, by what a pass of random tokens shows (`kv_scales` of the model tells).
    Raises ValueError that says what is missing, misshapen, unsupported or too large, and what to do.
    """
    folder = Path(folder)
    config = read_config(folder)
    allowed = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    dtype = allowed[config.dtype] if dtype is None else dtype
    if dtype not in allowed.values():
        raise ValueError(f"dtype is {dtype}; allowed: {', '.join(allowed)}")
    build = family(config.architecture)
    parameters = build.parameters(config)
    device = torch.device(device)
    scales = None
    # Everything that can be wrong is found before anything is allocated.
    match load_format:
        case "auto":
            checkpoint = Checkpoint(folder)
            verify(checkpoint, config, parameters)
            scales = read_scales(checkpoint, config) if kv_dtype == FLOAT8 else None
            check_room(weight_bytes(parameters, dtype), dtype, device, room(device))
            weights = _read_weights(checkpoint, parameters, device, dtype)
        case "dummy":
            check_room(weight_bytes(parameters, dtype), dtype, device, room(device))
            weights = _draw_weights(parameters, device, dtype, seed)
        case _:
            raise ValueError(f"load_format is {load_format!r}; allowed: auto, dummy")
    if kv_dtype == FLOAT8 and scales is None:
        scales = measure_scales(build(config, weights, deterministic=deterministic), device, dtype)
    return build(config, weights, deterministic=deterministic, kv_scales=scales)


def _read_weights(
    checkpoint: Checkpoint, parameters: Sequence[Parameter], device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Copy every source tensor to its rows of its parameter, converting as it goes."""
    weights: dict[str, Tensor] = {}
    places: dict[str, tuple[Source, Tensor]] = {}
    for parameter in parameters:
        weight = weights[parameter.name] = parameter.allocate(device, dtype)
        stacked, row = weight.t() if parameter.transposed else weight, 0
        for source in parameter.sources:
            places[source.name] = (source, stacked[row : row + source.shape[0]])
            row += source.shape[0]
    upload = None if device.type == "cpu" else Upload(device)
    for name, tensor in checkpoint.read(set(places)):
        source, place = places[name]
        _fill(place, tensor, source.rotary_heads, upload)
    return weights


def _fill(place: Tensor, tensor: Tensor, rotary_heads: int, upload: Upload | None) -> None:
    """Bring a tensor to its place; on a GPU what must be converted or reordered is, there."""
    if upload is not None:
        as_stored = tensor.dtype == place.dtype and not rotary_heads
        landed = place if as_stored else torch.empty(tensor.shape, dtype=tensor.dtype, device=place.device)
        upload.send(tensor, landed)
        if as_stored:
            return
        tensor = landed
    place.copy_(interleave_pairs(tensor, rotary_heads) if rotary_heads else tensor)


def _draw_weights(
    parameters: Sequence[Parameter], device: torch.device, dtype: torch.dtype, seed: int
) -> dict[str, Tensor]:
    """Draw weights as a model in training starts: normal with a deviation of 0.02, norms 1, biases 0."""
    generator = torch.Generator(device).manual_seed(seed)
    weights: dict[str, Tensor] = {}
    for parameter in parameters:
        weight = weights[parameter.name] = parameter.allocate(device, dtype)
        match parameter.initial:
            case "normal":
                weight.normal_(0.0, 0.02, generator=generator)
            case "ones":
                weight.fill_(1.0)
            case "zeros":
                weight.zero_()
    return weights
