"""Put a worker's parts together: model, KV pool, attention, rows."""

from __future__ import annotations

import logging
from pathlib import Path
from time import perf_counter
from typing import Literal, cast

import torch

from ...kernels.attention.interface import Attention
from ...kernels.attention.reference import ReferenceAttention
from ...kernels.kv_pool import FLOAT8, KVPool
from ...models.calibration import TOKENS
from ...models.loader import load
from ...models.model import Model
from ...models.pool import pool_for
from ..grammar import GrammarCache
from .attention import choose_attention
from .device import open_device, verify_float8
from .options import WorkerDescription, WorkerOptions
from .room import kv_slots, slot_bytes
from .rows import Rows
from .runner import Runner

__all__ = ["build_runner"]

_LOG = logging.getLogger("callboard.actors.worker")
_SOURCES = {
    "checkpoint": "the checkpoint tells (k_scale, v_scale)",
    "measured": f"{TOKENS:,} random tokens have shown: the checkpoint tells no scales",
}


def build_runner(options: WorkerOptions, grammars: GrammarCache | None) -> tuple[Runner, WorkerDescription]:
    """Load the model and make room for its rows.  Raises ValueError that says what is wrong with options or model."""
    options.verify()
    started = perf_counter()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = open_device(options.device)
    name = options.dtype or ("float32" if device.type == "cpu" else None)
    float8 = options.kv_dtype == "float8"
    if float8:
        verify_float8(device)
    model = load(
        Path(options.folder),
        device=device,
        dtype=None if name is None else getattr(torch, name),
        load_format=cast("Literal['auto', 'dummy']", options.load_format),
        seed=options.seed,
        deterministic=options.deterministic,
        kv_dtype=FLOAT8 if float8 else None,
    )
    config, scales = model.config, model.kv_scales
    dtype: torch.dtype = getattr(torch, name or config.dtype)
    kv_dtype = FLOAT8 if float8 else dtype
    if scales is not None:
        _LOG.info("keys and values are cached in float8, scaled by what %s", _SOURCES[scales.source])
        if device.type == "cuda":
            torch.cuda.empty_cache()  # what measuring took is not the model's
    context_length = min(options.context_length or config.context_length, config.context_length)
    attention = choose_attention(options, config, device, dtype, kv_dtype)
    slots = kv_slots(options, model, attention, context_length, device, kv_dtype)
    pool = pool_for(config, slots=slots, dtype=kv_dtype, device=device)
    rows = Rows(options.max_rows, context_length, config.vocabulary, device, staged=device.type == "cuda")
    description = WorkerDescription(
        architecture=config.architecture,
        max_rows=options.max_rows,
        context_length=context_length,
        kv_slots=slots,
        vocabulary=config.vocabulary,
        eos_ids=tuple(config.eos_ids),
        joins=all(window is None for window in config.windows),
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        kv_dtype=str(kv_dtype).removeprefix("torch."),
        kv_scales="" if scales is None else scales.source,
        kv_bytes=slots * slot_bytes(config, kv_dtype),
        load_s=perf_counter() - started,
    )
    return _runner(model, pool, attention, rows, grammars, fast_forward=options.fast_forward), description


def _runner(
    model: Model, pool: KVPool, attention: Attention, rows: Rows, grammars: GrammarCache | None, *, fast_forward: bool
) -> Runner:
    if rows.device.type == "cpu":
        return Runner(model, pool, attention, rows, grammars, fast_forward=fast_forward)
    from .device_draw import DeviceDraw
    from .device_runner import DeviceRunner

    # The reference reads lengths on the host, which a graph would not read again.
    capture = not isinstance(attention, ReferenceAttention)
    return DeviceRunner(
        model, pool, attention, rows, grammars, draw=DeviceDraw(rows), capture=capture, fast_forward=fast_forward
    )
