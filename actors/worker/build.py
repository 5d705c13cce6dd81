"""Put a worker's parts together: model, KV pool, attention, rows."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Literal, cast

import torch

from ...kernels.attention.reference import ReferenceAttention
from ...kernels.kv_pool import KVPool
from ...models.config import ModelConfig
from ...models.loader import load
from ..grammar import GrammarCache
from .options import WorkerDescription, WorkerOptions
from .rows import Rows
from .runner import Runner

__all__ = ["build_runner"]

_CPU_KV_BYTES = 512 << 20
_GPU_KV_SHARE = 0.85


def build_runner(options: WorkerOptions, grammars: GrammarCache | None) -> tuple[Runner, WorkerDescription]:
    """Load the model and make room for its rows.  Raises ValueError that says what is wrong with options or model."""
    options.verify()
    started = perf_counter()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is {options.device!r}; torch sees no CUDA device here, use 'cpu'")
    name = options.dtype or ("float32" if device.type == "cpu" else None)
    load_format = cast("Literal['auto', 'dummy']", options.load_format)
    model = load(
        Path(options.folder),
        device=device,
        dtype=None if name is None else getattr(torch, name),
        load_format=load_format,
        seed=options.seed,
    )
    config = model.config
    dtype: torch.dtype = getattr(torch, name or config.dtype)
    context_length = min(options.context_length or config.context_length, config.context_length)
    slots = _slots(options, config, context_length, device, dtype)
    pool = KVPool(
        layers=config.layers,
        slots=slots,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        dtype=dtype,
        device=device,
    )
    rows = Rows(options.max_rows, context_length, config.vocabulary, device)
    attention = ReferenceAttention(config.heads, config.kv_heads, config.head_dim, windows=config.windows)
    description = WorkerDescription(
        architecture=config.architecture,
        max_rows=options.max_rows,
        context_length=context_length,
        kv_slots=slots,
        vocabulary=config.vocabulary,
        eos_ids=tuple(config.eos_ids),
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        kv_bytes=slots * _slot_bytes(config, dtype),
        load_s=perf_counter() - started,
    )
    return Runner(model, pool, attention, rows, grammars), description


def _slot_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    return 2 * config.layers * config.kv_heads * config.head_dim * dtype.itemsize


def _slots(
    options: WorkerOptions, config: ModelConfig, context_length: int, device: torch.device, dtype: torch.dtype
) -> int:
    if options.kv_slots is not None:
        return options.kv_slots
    budget = options.kv_bytes
    if budget is None:
        budget = _CPU_KV_BYTES if device.type == "cpu" else int(torch.cuda.mem_get_info(device)[0] * _GPU_KV_SHARE)
    slot_bytes = _slot_bytes(config, dtype)
    slots = min(budget // slot_bytes, options.max_rows * context_length)
    if slots < 1:
        raise ValueError(f"kv_bytes is {budget}; one cached token of this model takes {slot_bytes} bytes")
    return slots
