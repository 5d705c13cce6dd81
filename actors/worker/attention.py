"""Which kernels attend: on a GPU ours, and cuDNN's where that is faster for whole long prompts; others if told."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from ...kernels.attention.flashinfer_tools import flashinfer_lacks
from ...kernels.attention.interface import Attention
from ...kernels.attention.reference import ReferenceAttention
from ...models.config import ModelConfig
from .options import WorkerOptions

__all__ = ["choose_attention", "flashinfer_lacks"]  # the latter for `callboard doctor`


def choose_attention(
    options: WorkerOptions, config: ModelConfig, device: torch.device, dtype: torch.dtype, kv_dtype: torch.dtype
) -> Attention:
    """Make the attention that the options force, or the fastest there is on the device.

    dtype: what the model computes in.  kv_dtype: the pool's.
    Raises ValueError if it is forced and cannot be had.
    """
    wanted = options.attention
    if wanted == "auto":
        wanted = "auto" if device.type == "cuda" and find_spec("triton") is not None else "reference"
    scale = config.head_dim**-0.5
    if wanted == "reference" and not options.deterministic:
        return ReferenceAttention(config.heads, config.kv_heads, config.head_dim, scale, windows=config.windows)
    if device.type != "cuda":
        raise ValueError(f"attention is {options.attention!r}, which needs a GPU; the device is {device}")
    if find_spec("triton") is None:
        raise ValueError(f"attention is {options.attention!r}; triton is not installed: pip install 'callboard[gpu]'")
    if options.deterministic:
        from ...kernels.attention.invariant_attention import InvariantAttention

        return InvariantAttention(
            config.heads, config.kv_heads, config.head_dim, scale, dtype=dtype, device=device, windows=config.windows
        )
    if wanted == "flashinfer":
        from ...kernels.attention.flashinfer_attention import FlashInferAttention

        return FlashInferAttention(
            config.heads,
            config.kv_heads,
            config.head_dim,
            scale,
            max_rows=options.max_rows,
            context_length=min(options.context_length or config.context_length, config.context_length),
            device=device,
            dtype=dtype,
            windows=config.windows,
        )
    from ...kernels.attention.tree_tuning import TreeTuning
    from ...kernels.attention.triton_attention import TritonAttention

    return TritonAttention(
        config.heads,
        config.kv_heads,
        config.head_dim,
        scale,
        max_rows=options.max_rows,
        device=device,
        dtype=dtype,
        kv_dtype=kv_dtype,
        windows=config.windows,
        extend="auto" if wanted == "auto" else "triton",
        tree=TreeTuning(),
    )
