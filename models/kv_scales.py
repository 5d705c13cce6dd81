"""What keys and values are divided by before a pool of float8 keeps them: where it is told, and how it costs nothing.

A scale is rounded up to a power of two, so that multiplying a weight by it changes no digit, and is folded into the
weights when they are loaded.  Keys come out of their projection divided, queries multiplied, so their products stay the
same; values come out divided, and the output projection multiplies.  Rotation is linear and takes no notice.  Where
heads are normed, queries' and keys' scales go into the norms' weights, which all heads share.

Shape suffixes:  H query heads    K key heads    D head_dim    O outputs of a projection
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import frexp, isfinite, ldexp
from typing import Literal

import torch
from torch import Tensor

from .checkpoint import Checkpoint
from .config import ModelConfig

__all__ = ["KVScales", "fold_", "read_scales", "round_up", "scale_names"]

# How checkpoints with a float8 cache name a layer's scales, after `model.layers.N.self_attn.`; the last is for both.
_SPELLINGS = {
    "keys": ("k_scale", "attn.k_scale", "k_proj.k_scale", "k_proj.output_scale", "kv_scale"),
    "values": ("v_scale", "attn.v_scale", "v_proj.v_scale", "v_proj.output_scale", "kv_scale"),
}
# A CPU packs weights as float16, where those that are multiplied by less would lose digits; what is that small keeps
# some of its own in float8.
_LEAST = 2.0**-10


@dataclass(frozen=True, slots=True)
class KVScales:
    """What each layer's keys and values are divided by: powers of two, [layer][key head].

    source: who said so, the checkpoint or a measurement of ours.
    """

    source: Literal["checkpoint", "measured"]
    keys: tuple[tuple[float, ...], ...]
    values: tuple[tuple[float, ...], ...]


def round_up(scale: float) -> float:
    """Give the least power of two that is not below a scale, and not below 2 ** -10."""
    fraction, exponent = frexp(scale)
    return max(ldexp(1.0, exponent - (fraction == 0.5)), _LEAST)


def scale_names(config: ModelConfig) -> set[str]:
    """List all tensors of a checkpoint that may tell scales."""
    kinds = _SPELLINGS.values()
    return {name for layer in range(config.layers) for spellings in kinds for name in _names(layer, spellings)}


def read_scales(checkpoint: Checkpoint, config: ModelConfig) -> KVScales | None:
    """Read a checkpoint's scales: one value a layer, or one a key head.  None if it has none.

    Raises ValueError that names the tensor, if one is no number above 0, misshapen, or missing where others are there.
    """
    held = checkpoint.names() & scale_names(config)
    if not held:
        return None
    wanted = [
        (_choose(checkpoint, held, layer, "keys"), _choose(checkpoint, held, layer, "values"))
        for layer in range(config.layers)
    ]
    used = {name for names in wanted for name in names}
    for name, shape in checkpoint.shapes(used):
        if shape not in {(), (1,), (config.kv_heads,)}:
            raise ValueError(
                f"{_where(checkpoint, name)} has the shape {list(shape)}; "
                f"a scale is one number, or one for each of the {config.kv_heads} key heads"
            )
    read = {name: _each_head(checkpoint, name, tensor, config.kv_heads) for name, tensor in checkpoint.read(used)}
    return KVScales("checkpoint", tuple(read[keys] for keys, _ in wanted), tuple(read[values] for _, values in wanted))


def fold_(config: ModelConfig, weights: Mapping[str, Tensor], scales: KVScales) -> None:
    """Have a decoder's weights, under the names that it lists them by, give scaled keys and values; in place.

    Raises ValueError, naming the weight, if one leaves the range of its dtype.
    """
    H, K, D = config.heads, config.kv_heads, config.head_dim
    for layer, (keys, values) in enumerate(zip(scales.keys, scales.values, strict=True)):
        if config.qk_norm:
            _multiply_(weights, f"{layer}.q_norm", [max(keys)])
            _multiply_(weights, f"{layer}.k_norm", [1 / max(keys)])
            keys = (1.0,) * K
        queries = (keys[head * K // H] for head in range(H))
        factors = [*queries, *(1 / scale for scale in keys), *(1 / scale for scale in values)]
        _multiply_(weights, f"{layer}.qkv.weight", _repeat(factors, D))
        if config.qkv_bias:
            _multiply_(weights, f"{layer}.qkv.bias", _repeat(factors, D))
        # The output projection's bias is added behind it; its inputs are the first dimension.
        inputs = [[factor] for factor in _repeat((values[head * K // H] for head in range(H)), D)]
        _multiply_(weights, f"{layer}.output.weight", inputs)


def _multiply_(weights: Mapping[str, Tensor], name: str, factors: list[float] | list[list[float]]) -> None:
    """Multiply one weight in place."""
    weight = weights[name]
    weight.mul_(torch.tensor(factors, dtype=torch.float32, device=weight.device))
    if not weight.isfinite().all():
        raise ValueError(
            f"{name}: what scales a float8 cache makes it leave the range of {weight.dtype}, or it was not finite "
            f"before; dtype 'bfloat16' has more range"
        )


def _repeat(factors: Iterable[float], times: int) -> list[float]:
    return [factor for factor in factors for _ in range(times)]


def _names(layer: int, spellings: Iterable[str]) -> list[str]:
    return [f"model.layers.{layer}.self_attn.{spelling}" for spelling in spellings]


def _choose(checkpoint: Checkpoint, held: set[str], layer: int, kind: str) -> str:
    """Tell which tensor holds a layer's scale; one of its own goes before one for both."""
    names = _names(layer, _SPELLINGS[kind])
    found = [name for name in names if name in held]
    if not found:
        raise ValueError(
            f"{checkpoint.folder} lacks {names[0]}, though it holds other scales of keys and values; "
            f"all layers must have them, or none"
        )
    return found[0]


def _each_head(checkpoint: Checkpoint, name: str, tensor: Tensor, kv_heads: int) -> tuple[float, ...]:
    """Round a tensor's scales up, one for each key head."""
    told: list[float] = tensor.double().reshape(-1).tolist()
    for scale in told:
        if not isfinite(scale) or scale <= 0:
            raise ValueError(f"{_where(checkpoint, name)} is {scale:g}; a scale must be a number above 0")
    return tuple(round_up(scale) for scale in (told if len(told) == kv_heads else told * kv_heads))


def _where(checkpoint: Checkpoint, name: str) -> str:
    return f"{checkpoint.folder / checkpoint.files[name]}: {name}"
