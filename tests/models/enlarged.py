"""Checkpoints whose keys and values float8 cannot hold, far larger or smaller, and that compute what they did."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

__all__ = ["APART", "KEYS", "PREFIX", "VALUES", "enlarge"]

Factors = list[tuple[float, float]]
# What keys and values of each layer's two key heads are made larger by; the weights that read them undo it.
KEYS: Factors = [(2.0**10, 2.0**10), (2.0**-9, 2.0**-9), (2.0**13, 2.0**13)]
VALUES: Factors = [(2.0**-9, 2.0**-9), (2.0**12, 2.0**12), (2.0**10, 2.0**10)]
APART: Factors = [(2.0**11, 2.0**-8), (2.0**-8, 2.0**12), (2.0**10, 2.0**-9)]
PREFIX = "model.layers.{}.self_attn."


@torch.no_grad()
def enlarge(folder: Path, keys: Factors = KEYS, values: Factors = VALUES) -> None:
    """Rewrite a checkpoint so that it computes the same by keys and values of other magnitudes."""
    tensors = load_file(folder / "model.safetensors")

    def scale(name: str, factors: list[float], dimension: int = 0) -> None:
        if name in tensors:
            parts = tensors[name].tensor_split(len(factors), dimension)
            tensors[name] = torch.cat([part * by for part, by in zip(parts, factors, strict=True)], dimension)

    for layer, (key, value) in enumerate(zip(keys, values, strict=True)):
        prefix = PREFIX.format(layer)
        for kind in ("weight", "bias"):
            if prefix + "k_norm.weight" in tensors:
                scale(prefix + "k_norm." + kind, [key[0]])
                scale(prefix + "q_norm." + kind, [1 / key[0]])
            else:
                scale(prefix + "k_proj." + kind, list(key))
                scale(prefix + "q_proj." + kind, [1 / each for each in key])
            scale(prefix + "v_proj." + kind, list(value))
        scale(prefix + "o_proj.weight", [1 / each for each in value], 1)
    save_file(tensors, folder / "model.safetensors")
