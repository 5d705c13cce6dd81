"""What a worker is told when it is made, and what it tells about itself."""

from __future__ import annotations

from typing import Any

import msgspec

from ..core import Ask

__all__ = ["Describe", "WorkerDescription", "WorkerOptions"]


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Say which model runs where, and how much room it gets.

    folder: the model, in Hugging Face's layout.  dtype: "float32", "bfloat16" or "float16"; None is float32 on a CPU
    and the model's own on a GPU.  kv_dtype: of cached keys and values: "float8", scaled to fit (models/kv_scales.py),
    or None, as dtype.  context_length: at most the model's, which None is.  kv_slots: cached tokens; None is
    what fits kv_bytes, at most max_rows x context_length.  kv_bytes: None is 512 MiB on a CPU, and on a GPU what
    weights and a step of chunk_tokens leave of mem_fraction of its memory.  attention: "auto", "reference", "triton"
    or "flashinfer".  fast_forward: whether tokens that a grammar forces are told at once.  deterministic: a row's
    tokens are the same whatever is beside it, to the bit; on a GPU only.  threads: torch's, process-wide; None leaves
    them alone.
    """

    folder: str
    device: str = "cpu"
    dtype: str | None = None
    kv_dtype: str | None = None
    max_rows: int = 32
    context_length: int | None = None
    kv_slots: int | None = None
    kv_bytes: int | None = None
    mem_fraction: float = 0.9
    chunk_tokens: int = 512
    attention: str = "auto"
    load_format: str = "auto"
    seed: int = 0
    fast_forward: bool = True
    deterministic: bool = False
    threads: int | None = None

    def verify(self) -> None:
        """Raise ValueError naming the first field that is out of range."""
        for field in ("max_rows", "context_length", "kv_slots", "kv_bytes", "chunk_tokens", "threads"):
            value: Any = getattr(self, field)
            if value is not None and value < 1:
                raise ValueError(f"{field} is {value}; it must be at least 1")
        if self.dtype not in (None, "float32", "bfloat16", "float16"):
            raise ValueError(f"dtype is {self.dtype!r}; it must be 'float32', 'bfloat16', 'float16' or None")
        if self.kv_dtype not in (None, "float8"):
            raise ValueError(f"kv_dtype is {self.kv_dtype!r}; it must be 'float8' or None")
        if self.kv_dtype is not None and self.attention == "flashinfer":
            raise ValueError("attention is 'flashinfer'; with kv_dtype 'float8' it must be another")
        if not 0.0 < self.mem_fraction <= 1.0:
            raise ValueError(f"mem_fraction is {self.mem_fraction}; it must be above 0 and at most 1")
        if self.attention not in ("auto", "reference", "triton", "flashinfer"):
            raise ValueError(
                f"attention is {self.attention!r}; it must be 'auto', 'reference', 'triton' or 'flashinfer'"
            )
        if self.load_format not in ("auto", "dummy"):
            raise ValueError(f"load_format is {self.load_format!r}; it must be 'auto' or 'dummy'")
        if self.deterministic and self.device == "cpu":
            raise ValueError("deterministic is True; that needs a GPU: a CPU's libraries round by the number of rows")
        if self.deterministic and self.attention in ("reference", "flashinfer"):
            raise ValueError(f"attention is {self.attention!r}; with deterministic=True it must be 'auto' or 'triton'")


class WorkerDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What the other actors must know of a started worker.

    joins: whether rows attend rightly to lines side by side: not where a window counts how far a key is.
    context_length: the longest sequence a row can have.  kv_bytes: memory taken.  load_s: seconds.
    kv_dtype: of what is cached, in torch's words.  kv_scales: who says by what that is scaled, "checkpoint" or
    "measured"; "" if it is not.
    """

    architecture: str
    max_rows: int
    context_length: int
    kv_slots: int
    vocabulary: int
    eos_ids: tuple[int, ...]
    joins: bool
    device: str
    dtype: str
    kv_dtype: str
    kv_scales: str
    kv_bytes: int
    load_s: float


class Describe(Ask[WorkerDescription], frozen=True):
    """Tell what runs here and how much room it has."""
