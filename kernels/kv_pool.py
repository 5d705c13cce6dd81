"""The keys and values of every cached token, by slot."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["KVPool"]


class KVPool:
    """Hold the keys and values of `slots` tokens for every layer.

    entries[layer]: [slots + 1, 2 * kv_heads * head_dim], a token's keys then its values, so that writing a token is one
    row copy and gathering it another.  keys[layer] and values[layer] are views of it, [slots + 1, kv_heads, head_dim].
    Slot number `slots` belongs to nobody: padding may be written there.  Which request owns which slot is the
    scheduler's business.  The tensors start as zeros, so what padding reads is finite.
    """

    def __init__(
        self, *, layers: int, slots: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        for name, given in (("layers", layers), ("slots", slots), ("kv_heads", kv_heads), ("head_dim", head_dim)):
            if given < 1:
                raise ValueError(f"KVPool: {name} is {given}; it must be at least 1")
        width = kv_heads * head_dim
        self.slots = slots
        self.entries = [torch.zeros(slots + 1, 2 * width, dtype=dtype, device=device) for _ in range(layers)]
        self.keys = [entries[:, :width].view(slots + 1, kv_heads, head_dim) for entries in self.entries]
        self.values = [entries[:, width:].view(slots + 1, kv_heads, head_dim) for entries in self.entries]

    @property
    def dummy_slot(self) -> int:
        """Tell the slot that padding may be written to."""
        return self.slots

    @property
    def size_bytes(self) -> int:
        """Tell how much memory the pool takes."""
        return sum(entries.nbytes for entries in self.entries)

    def write(self, layer: int, slots_T: Tensor, entries_TE: Tensor) -> None:
        """Store the new tokens of one layer: entries_TE is [T, 2 * kv_heads * head_dim], keys then values."""
        self.entries[layer].index_copy_(0, slots_T, entries_TE)
