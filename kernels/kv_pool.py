"""The keys and values of every cached token, by slot."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["FLOAT8", "KVPool", "saturated", "store_"]

FLOAT8 = torch.float8_e4m3fn  # up to 448, four significant bits, no infinities


class KVPool:
    """Hold the keys and values of `slots` tokens for every layer.

    entries[layer]: [slots + 1, kv_heads * 2 * head_dim], for each head a token's key and then its value, so that one
    row copy gathers a token, whole or by the head.  keys[layer] and values[layer] are views of it,
    [slots + 1, kv_heads, head_dim].
    Slot number `slots` belongs to nobody: padding may be written there.  Which request owns which slot is the
    scheduler's business.  The tensors start as zeros, so what padding reads is finite.
    dtype: what the model computes in, or FLOAT8, which takes half as much as bfloat16.  It keeps few digits and a small
    range: whoever writes scales what is to fit (models/kv_scales.py); the rest saturates.
    """

    def __init__(
        self, *, layers: int, slots: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        for name, given in (("layers", layers), ("slots", slots), ("kv_heads", kv_heads), ("head_dim", head_dim)):
            if given < 1:
                raise ValueError(f"KVPool: {name} is {given}; it must be at least 1")
        self.slots = slots
        width = kv_heads * 2 * head_dim
        self.entries = [torch.zeros(slots + 1, width, dtype=dtype, device=device) for _ in range(layers)]
        by_head = [entries.view(slots + 1, kv_heads, 2, head_dim) for entries in self.entries]
        self.keys = [entries[:, :, 0] for entries in by_head]
        self.values = [entries[:, :, 1] for entries in by_head]

    @property
    def dummy_slot(self) -> int:
        """Tell the slot that padding may be written to."""
        return self.slots

    @property
    def size_bytes(self) -> int:
        """Tell how much memory the pool takes."""
        return sum(entries.nbytes for entries in self.entries)

    def write(self, layer: int, slots_T: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> None:
        """Store the keys and values of one layer's new tokens, each [T, kv_heads, head_dim]."""
        store_(self.keys[layer], slots_T, k_TKD)
        store_(self.values[layer], slots_T, v_TKD)


def saturated(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert to a pool's dtype: what is beyond float8's range becomes its largest, with its sign; NaN stays NaN.

    Left to themselves torch's conversions have made NaN of it, or saturated, by version and device.
    """
    if dtype == FLOAT8:
        largest = torch.finfo(dtype).max
        x = x.clamp(-largest, largest)
    return x.to(dtype)


def store_(place_S: Tensor, slots_T: Tensor, x_T: Tensor) -> None:
    """Copy tokens to their slots of a pool's tensor, or of a view of it, converted to its dtype."""
    x_T = saturated(x_T, place_S.dtype)
    if place_S.dtype == FLOAT8:  # torch has no such copy of it, but any copy of bytes
        place_S, x_T = place_S.view(torch.uint8), x_T.view(torch.uint8)
    place_S.index_copy_(0, slots_T, x_T)
