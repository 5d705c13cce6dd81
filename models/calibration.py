"""How large a model's keys and values get, measured where its checkpoint does not tell.

Shape suffixes:  T tokens    S slots    K key heads    D head_dim
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import torch
from torch import Tensor

from ..kernels.attention.interface import AttentionBatch
from ..kernels.attention.reference import ReferenceAttention
from ..kernels.kv_pool import FLOAT8
from .kv_scales import KVScales, round_up
from .model import Model
from .pool import pool_for

__all__ = ["TOKENS", "measure_scales"]

# Tokens in a row, and rows; how many are looked at.
_LENGTH, _ROWS = 256, 4
TOKENS = _LENGTH * _ROWS
_HEADROOM = 2.0  # other tokens will have larger keys than these


@torch.inference_mode()
def measure_scales(model: Model, device: torch.device, dtype: torch.dtype) -> KVScales:
    """Run a model over random tokens of its vocabulary, always the same, and see what it would cache.

    dtype: what the model computes in.  Scales give twice what was seen room in float8.  Raises ValueError, naming the
    layer, if a key or value is not finite.
    """
    config = model.config
    length = min(_LENGTH, config.context_length)
    pool = pool_for(config, slots=length, dtype=dtype, device=device)
    attention = ReferenceAttention(config.heads, config.kv_heads, config.head_dim, windows=config.windows)
    line_T = torch.arange(length, device=device)
    batch = AttentionBatch(
        query_starts_R1=torch.tensor([0, length], dtype=torch.int32),
        query_lengths=[length],
        lengths=[length],
        table_RL=line_T.to(torch.int32).unsqueeze(0),
        slots_T=line_T,
        positions_T=line_T,
    )
    generator = torch.Generator().manual_seed(0)
    largest = torch.zeros(config.layers, config.kv_heads, 2, device=device)
    for _ in range(_ROWS):
        tokens_T = torch.randint(config.vocabulary, (length,), generator=generator)
        if config.bos_id is not None:  # what begins every prompt often has the largest keys of all
            tokens_T[0] = config.bos_id
        model.forward(tokens_T.to(device), line_T, line_T, pool, attention, attention.plan(batch))
        torch.maximum(largest, torch.stack([_largest(each, config.kv_heads) for each in pool.entries]), out=largest)
    told: list[list[list[float]]] = largest.tolist()
    for layer, heads in enumerate(told):
        if not all(isfinite(each) for head in heads for each in head):
            raise ValueError(
                f"layer {layer} of the model computes keys or values that are not finite in "
                f"{str(dtype).removeprefix('torch.')}; they cannot be scaled to fit a float8 cache"
            )
    return KVScales(
        "measured",
        tuple(_scales([key for key, _ in heads]) for heads in told),
        tuple(_scales([value for _, value in heads]) for heads in told),
    )


def _largest(entries_SE: Tensor, kv_heads: int) -> Tensor:
    """Give the largest magnitude of each head's keys and of its values, [K, 2]; NaN if one is."""
    return entries_SE.unflatten(1, (kv_heads, 2, -1)).abs().amax((0, 3)).float()


def _scales(largest: Sequence[float]) -> tuple[float, ...]:
    """Bring what was seen, and as much again, into range; a head that has nothing but zeros is left alone."""
    limit = torch.finfo(FLOAT8).max
    return tuple(round_up(_HEADROOM * each / limit) if each else 1.0 for each in largest)
