"""A pool of keys and values of a model's shape."""

from __future__ import annotations

import torch

from ..kernels.kv_pool import KVPool
from .config import ModelConfig

__all__ = ["pool_for"]


def pool_for(config: ModelConfig, *, slots: int, dtype: torch.dtype, device: torch.device) -> KVPool:
    """Allocate room for the keys and values of `slots` tokens in all layers of a model."""
    return KVPool(
        layers=config.layers,
        slots=slots,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        dtype=dtype,
        device=device,
    )
