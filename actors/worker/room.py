"""How many tokens the KV pool can hold: what weights and a step's own work leave of the memory."""

from __future__ import annotations

import torch

from ...kernels.attention.interface import Attention, AttentionBatch
from ...kernels.kv_pool import KVPool
from ...models.config import ModelConfig
from ...models.model import Model
from .options import WorkerOptions

__all__ = ["kv_slots", "slot_bytes"]

_CPU_KV_BYTES = 512 << 20
# What graphs, libraries' workspaces and fragments take beside what the profiled step has shown.
_RESERVE_BYTES = 2 << 30


def slot_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Tell what one cached token takes, in all layers."""
    return 2 * config.layers * config.kv_heads * config.head_dim * dtype.itemsize


def kv_slots(
    options: WorkerOptions,
    model: Model,
    attention: Attention,
    context_length: int,
    device: torch.device,
    dtype: torch.dtype,
) -> int:
    """Choose the pool's size: as told, or what fits, at most max_rows x context_length.

    Raises ValueError with the numbers if no token fits.
    """
    if options.kv_slots is not None:
        return options.kv_slots
    one = slot_bytes(model.config, dtype)
    most = options.max_rows * context_length
    if options.kv_bytes is not None or device.type == "cpu":
        budget = _CPU_KV_BYTES if options.kv_bytes is None else options.kv_bytes
        if budget < one:
            raise ValueError(f"kv_bytes is {budget}; one cached token of this model takes {one} bytes")
        return min(budget // one, most)
    free, total = torch.cuda.mem_get_info(device)
    needed = _step_bytes(options, model, attention, context_length, device, dtype) + _RESERVE_BYTES
    budget = int(total * options.mem_fraction) - (total - free) - needed
    if budget < one * context_length:
        raise ValueError(
            f"mem_fraction is {options.mem_fraction} of {_gib(total)}: {_gib(total - free)} are taken (weights among "
            f"them), a step needs {_gib(needed)}, and one sequence of {context_length} tokens "
            f"{_gib(one * context_length)}; give a smaller context_length or chunk_tokens, "
            "a larger mem_fraction, or free the GPU"
        )
    return min(budget // one, most)


def _step_bytes(
    options: WorkerOptions,
    model: Model,
    attention: Attention,
    context_length: int,
    device: torch.device,
    dtype: torch.dtype,
) -> int:
    """Measure what the largest step takes beside weights and pool, by running one; its kernels are compiled by it."""
    config = model.config
    tokens = min(options.chunk_tokens + options.max_rows, context_length)
    count = -(-(options.chunk_tokens + options.max_rows) // tokens)  # rows of that length
    pool = KVPool(
        layers=config.layers,
        slots=tokens,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        dtype=dtype,
        device=device,
    )
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    line = torch.arange(tokens, device=device)
    repeated = line.repeat(count)
    starts = torch.arange(0, tokens * count + 1, tokens, dtype=torch.int32)
    batch = AttentionBatch(
        query_starts_R1=starts,
        query_lengths=[tokens] * count,
        lengths=[tokens] * count,
        table_RL=line.to(torch.int32).repeat(count, 1),
        slots_T=repeated,
        positions_T=repeated,
        rows_R=torch.arange(count, dtype=torch.int32, device=device),
        lengths_R=torch.full((count,), tokens, dtype=torch.int32, device=device),
        starts_R1=starts.to(device),
        extends=count,
    )
    hidden_TC = model.forward(repeated % config.vocabulary, repeated, repeated, pool, attention, attention.plan(batch))
    model.logits(hidden_TC[: options.max_rows].contiguous()).float()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    del pool, batch, hidden_TC
    torch.cuda.empty_cache()
    return peak


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
