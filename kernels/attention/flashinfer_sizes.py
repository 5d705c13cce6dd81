"""What flashinfer must be told of a step, and how much room it needs, as plain numbers."""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["row_starts", "scratch_bytes", "verify_shape", "window_left"]

_HEAD_DIMS = (64, 128, 256)
_KEYS_LIMIT = 1 << 31


def row_starts(lengths: np.ndarray) -> np.ndarray:
    """Give where each row's keys start if all stand side by side, and behind the last where they end: int32 [R + 1]."""
    starts = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=starts[1:])
    return starts


def window_left(window: int | None) -> int:
    """Say a window as flashinfer does: how many keys before itself a query sees, -1 for all."""
    return -1 if window is None else window - 1


def scratch_bytes(heads: int, kv_heads: int, head_dim: int, max_rows: int, processors: int) -> int:
    """Tell what flashinfer needs for parts of rows, in float32, with their log-sum-exps.

    It splits keys over at most two blocks a processor.  A decoding step in a graph always leaves parts, a tile of
    queries each, and at least one a row; a prefill only where tiles are fewer than blocks.
    """
    group, blocks = heads // kv_heads, 2 * processors // kv_heads
    tile = 16 if group <= 16 else 64 if group <= 64 else 128
    decode = max(blocks, -(-max_rows * group // tile) + max_rows - 1) * tile
    return 4 * heads * max(decode, blocks * 128) * (head_dim + 1) + 256


def verify_shape(
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    *,
    max_rows: int,
    context_length: int,
    scale: float | None,
    windows: tuple[int | None, ...],
    soft_cap: float | None,
) -> None:
    """Raise ValueError naming the first of FlashInferAttention's arguments that cannot be."""
    problem = ""
    if kv_heads < 1 or heads % kv_heads:
        problem = f"heads is {heads}; it must be a multiple of kv_heads ({kv_heads})"
    elif head_dim not in _HEAD_DIMS:
        problem = f"head_dim is {head_dim}; it must be 64, 128 or 256 ('triton' takes any)"
    elif dtype not in (torch.bfloat16, torch.float16):
        problem = f"dtype is {dtype}; it must be bfloat16 or float16 ('triton' takes float32 too)"
    elif max_rows < 1:
        problem = f"max_rows is {max_rows}; it must be at least 1"
    elif context_length < 1:
        problem = f"context_length is {context_length}; it must be at least 1"
    elif max_rows * context_length >= _KEYS_LIMIT:
        problem = f"max_rows x context_length is {max_rows * context_length}; it must be below {_KEYS_LIMIT}"
    elif scale is not None and scale <= 0:
        problem = f"scale is {scale}; it must be above 0"
    elif any(window is not None and window < 1 for window in windows):
        problem = f"windows is {windows}; each must be at least 1, or None"
    elif soft_cap is not None and soft_cap <= 0:
        problem = f"soft_cap is {soft_cap}; it must be above 0, or None"
    if problem:
        raise ValueError(f"FlashInferAttention: {problem}")
