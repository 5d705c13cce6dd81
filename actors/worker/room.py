"""How many tokens the KV pool can hold: what weights and a step's own work leave of the memory."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ...kernels.attention.interface import Attention, AttentionBatch
from ...models.config import ModelConfig
from ...models.model import Model
from ...models.pool import pool_for
from .options import WorkerOptions

__all__ = ["Taken", "kv_slots", "slot_bytes", "slots_left"]

_CPU_KV_BYTES = 512 << 20
# What graphs, libraries' workspaces and fragments take beside what the profiled step has shown.
_RESERVE_BYTES = 5 << 29
_NOTICEABLE_BYTES = 1 << 30  # of others; a context of one's own takes up to half of that outside torch's account


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
    taken = _taken(device)
    try:
        needed = _step_bytes(options, model, attention, context_length, device, dtype) + _RESERVE_BYTES
    except torch.OutOfMemoryError as error:
        raise ValueError(_refusal(options, taken, None, one * context_length, context_length)) from error
    return slots_left(options, taken, needed, one, context_length)


class Taken(NamedTuple):
    """A GPU's memory in bytes: all of it, what this process holds (the weights above all), what others hold."""

    total: int
    ours: int
    others: int


def slots_left(options: WorkerOptions, taken: Taken, needed: int, one: int, context_length: int) -> int:
    """Tell how many slots of `one` byte count fit beside what is taken and the `needed` bytes of a step.

    Raises ValueError, with the numbers and what to do, if that is not even one sequence.
    """
    budget = int(taken.total * options.mem_fraction) - taken.ours - taken.others - needed
    if budget < one * context_length:
        raise ValueError(_refusal(options, taken, needed, one * context_length, context_length))
    return min(budget // one, options.max_rows * context_length)


def _refusal(options: WorkerOptions, taken: Taken, needed: int | None, sequence: int, context_length: int) -> str:
    """Say why a model that fits cannot run: needed is None if not even a step did."""
    step = "more than is free" if needed is None else _gib(needed)
    others = f"other processes hold {_gib(taken.others)}"
    advice = "a smaller context_length or chunk_tokens, or a larger mem_fraction, may do"
    if taken.others > _NOTICEABLE_BYTES:
        advice = f"end those (`nvidia-smi` shows them) or choose another device; {advice}"
    return (
        f"mem_fraction is {options.mem_fraction} of the GPU's {_gib(taken.total)}: weights and the like take "
        f"{_gib(taken.ours)}, {others}, a step of {options.chunk_tokens} tokens needs {step}, and one sequence of "
        f"{context_length} tokens {_gib(sequence)}; {advice}"
    )


def _taken(device: torch.device) -> Taken:
    free, total = torch.cuda.mem_get_info(device)
    ours = torch.cuda.memory_reserved(device)
    return Taken(total, ours, total - free - ours)


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
    pool = pool_for(config, slots=tokens, dtype=dtype, device=device)
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
