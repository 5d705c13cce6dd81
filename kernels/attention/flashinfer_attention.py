"""Paged attention by flashinfer: prefill by its FlashAttention 3 on Hopper (2 elsewhere), decode on tensor cores.

A page is a slot, so the pool is read where it lies.  What flashinfer plans on the host, which program takes which keys
of which row, is planned once a step for all layers; the rows' slots are listed on the device (`slot_lists.py`).

Shape suffixes:  T new tokens    R rows    N keys of all rows together    H query heads    K key heads    D head_dim
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..kv_pool import KVPool
from .flashinfer_sizes import row_starts, scratch_bytes, verify_shape, window_left
from .flashinfer_tools import flashinfer_lacks
from .interface import Attention, AttentionBatch
from .plan_buffers import PlanBuffers
from .slot_lists import list_slots

__all__ = ["FlashInferAttention", "FlashInferPlan"]

_INT_BYTES = 8 << 20  # of a plan, as flashinfer's own buffers have it; no step of ours comes near


@dataclass(frozen=True, slots=True)
class FlashInferPlan:
    """How many tokens extend, and how many rows decode.  All else stands in the wrappers, until the next plan."""

    extend_tokens: int
    decodes: int


class FlashInferAttention(Attention):
    """Attend by flashinfer's kernels.

    scale: what scores are multiplied by, 1 / sqrt(head_dim) unless given.  max_rows, context_length: the most rows
    that decode in a step, and the most keys of one.  windows: see Attention.  soft_cap: scores s become
    cap * tanh(s / cap).  dtype: of queries, results and the pool, bfloat16 or float16.  Rows attend alone: `pack`
    answers None.

    Making one compiles the kernels it needs, if they are not yet, and tries them.  Raises ValueError if something is
    out of range, or flashinfer or what it compiles with is not there.

    A plan is good until the next one.  A step of decoding rows alone may be captured behind one of as many rows that
    ran; before a replay `replay` is told the lengths, plans on the host, and sends what it planned to where the graph
    reads it.  Nothing waits for the device.  The scratch is shared: one attention serves one stream at a time.
    """

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float | None = None,
        *,
        max_rows: int,
        context_length: int,
        device: torch.device,
        dtype: torch.dtype,
        windows: tuple[int | None, ...] = (),
        soft_cap: float | None = None,
    ) -> None:
        verify_shape(
            heads,
            kv_heads,
            head_dim,
            dtype,
            max_rows=max_rows,
            context_length=context_length,
            scale=scale,
            windows=windows,
            soft_cap=soft_cap,
        )
        if device.type != "cuda":
            raise ValueError(f"FlashInferAttention: device is {device}; it must be a GPU")
        if (lacking := flashinfer_lacks()) is not None:
            raise ValueError(f"attention is 'flashinfer'; {lacking}")
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.scale = head_dim**-0.5 if scale is None else scale
        self.max_rows, self.windows = max_rows, windows
        self.device, self.dtype = device, dtype
        self._soft_cap = soft_cap or 0.0
        self._kinds = tuple(dict.fromkeys(windows)) or (None,)
        self._library: Any = import_module("flashinfer")
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        size_bytes = scratch_bytes(heads, kv_heads, head_dim, max_rows, processors)
        self._scratch = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
        # Two steps are in flight, each with a plan for extends and one for decodes of each kind of layer.
        self._buffers = PlanBuffers(_INT_BYTES, 6 * len(self._kinds))
        # What decoding graphs read lies at fixed addresses, whatever the number of rows.
        self._plans = {window: torch.empty(_INT_BYTES, dtype=torch.uint8, device=device) for window in self._kinds}
        self._slots_N = torch.zeros(max_rows * context_length, dtype=torch.int32, device=device)
        self._starts_R1 = torch.zeros(max_rows + 1, dtype=torch.int32, device=device)
        self._ones_R = torch.ones(max_rows, dtype=torch.int32, device=device)
        make: Any = self._library.BatchPrefillWithPagedKVCacheWrapper
        self._extending = {window: make(self._scratch, "NHD", backend="auto") for window in self._kinds}
        self._decoding: dict[tuple[int, int | None], Any] = {}
        self._try()

    def plan(self, batch: AttentionBatch) -> FlashInferPlan:
        if batch.lengths_R is None:
            raise ValueError("AttentionBatch: lengths_R is None; FlashInferAttention reads lengths on the device")
        extends, decodes = batch.extends, len(batch.lengths) - batch.extends
        if decodes > self.max_rows:
            raise ValueError(f"AttentionBatch: {decodes} rows decode; FlashInferAttention was made for {self.max_rows}")
        if extends:
            self._plan_extends(batch)
        if decodes:
            if torch.cuda.is_current_stream_capturing():
                assert (decodes, self._kinds[0]) in self._decoding, "a step is captured behind one that ran"
            else:
                self.replay(np.array(batch.lengths[extends:], np.int32))
            list_slots(batch, extends, decodes, self._starts_R1, self._slots_N)
        return FlashInferPlan(sum(batch.query_lengths[:extends]), decodes)

    def replay(self, lengths: np.ndarray) -> None:
        starts, rows = row_starts(lengths), len(lengths)
        if starts[-1] > len(self._slots_N):
            raise ValueError(
                f"AttentionBatch: the rows that decode have {starts[-1]} keys; FlashInferAttention was made for "
                f"{len(self._slots_N)}"
            )
        for window in self._kinds:
            wrapper = self._decode_wrapper(rows, window)
            # Its ordinary plan goes over the lengths in Python, and copies again what has not changed.
            with self._buffers.lent_to(wrapper):
                self._library.fast_decode_plan(
                    wrapper,
                    self._starts_R1[: rows + 1],
                    self._slots_N,
                    self._ones_R[:rows],
                    **self._decode_options(window),
                    global_override_indptr_cpu=torch.from_numpy(starts),
                )

    def attend(
        self,
        q_THD: Tensor,
        layer: int,
        pool: KVPool,
        plan: FlashInferPlan,
        fresh: tuple[Tensor, Tensor] | None = None,  # noqa: ARG002  (what is in the pool is enough)
    ) -> Tensor:
        keys_SKD, values_SKD = pool.keys[layer], pool.values[layer]
        if keys_SKD.dtype != self.dtype:
            raise ValueError(
                f"KVPool: it holds {keys_SKD.dtype}; with attention 'flashinfer' it must be {self.dtype}, "
                "with 'triton' it may be float8"
            )
        window = self.windows[layer] if self.windows else None
        first = plan.extend_tokens
        out_THD = torch.empty(q_THD.shape, dtype=self.dtype, device=q_THD.device)
        if first:
            self._extending[window].run(q_THD[:first], (keys_SKD, values_SKD), out=out_THD[:first])
        if plan.decodes:
            wrapper = self._decoding[plan.decodes, window]
            wrapper.run(q_THD[first:], (keys_SKD, values_SKD), out=out_THD[first:])
        return out_THD

    def _plan_extends(self, batch: AttentionBatch) -> None:
        extends = batch.extends
        lengths, ones_R = np.array(batch.lengths[:extends], np.int32), torch.ones(extends, dtype=torch.int32)
        starts = row_starts(lengths)
        slots_N = torch.empty(int(starts[-1]), dtype=torch.int32, device=self.device)
        starts_R1 = torch.empty(extends + 1, dtype=torch.int32, device=self.device)
        list_slots(batch, 0, extends, starts_R1, slots_N)
        for window, wrapper in self._extending.items():
            with self._buffers.lent_to(wrapper):
                wrapper.plan(
                    batch.query_starts_R1[: extends + 1].to(torch.int32),
                    torch.from_numpy(starts),
                    slots_N,
                    ones_R,
                    self.heads,
                    self.kv_heads,
                    self.head_dim,
                    1,
                    causal=True,
                    sm_scale=self.scale,
                    window_left=window_left(window),
                    logits_soft_cap=self._soft_cap,
                    q_data_type=self.dtype,
                    kv_data_type=self.dtype,
                    max_token_per_sequence=max(batch.query_lengths[:extends]),
                )

    def _decode_wrapper(self, rows: int, window: int | None) -> Any:
        """Give what decodes so many rows in layers of one window: a graph's own, but with buffers that all share."""
        if (found := self._decoding.get((rows, window))) is not None:
            return found
        wrapper = self._library.BatchDecodeWithPagedKVCacheWrapper(
            self._scratch,
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=True,
            paged_kv_indptr_buffer=self._starts_R1[: rows + 1],
            paged_kv_indices_buffer=self._slots_N,
            paged_kv_last_page_len_buffer=self._ones_R[:rows],
            backend="fa2",
        )
        wrapper.reset_workspace_buffer(self._scratch, self._plans[window])
        # Rows of one key each: this finds the kernels, the plan that counts comes after it.
        counting_R1, ones_R = torch.arange(rows + 1, dtype=torch.int32), torch.ones(rows, dtype=torch.int32)
        with self._buffers.lent_to(wrapper):
            wrapper.plan(counting_R1, self._slots_N[:0], ones_R, **self._decode_options(window))
        self._decoding[rows, window] = wrapper
        return wrapper

    def _decode_options(self, window: int | None) -> dict[str, Any]:
        return {
            "num_qo_heads": self.heads,
            "num_kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "page_size": 1,
            "window_left": window_left(window),
            "logits_soft_cap": self._soft_cap,
            "q_data_type": self.dtype,
            "kv_data_type": self.dtype,
            "sm_scale": self.scale,
        }

    def _try(self) -> None:
        """Compile the kernels, load them and run each once, so that what is wrong is found now."""
        pool = KVPool(
            layers=len(self.windows) or 1,
            slots=1,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            dtype=self.dtype,
            device=self.device,
        )
        zero = torch.zeros(1, dtype=torch.int64, device=self.device)
        q_THD = torch.zeros(1, self.heads, self.head_dim, dtype=self.dtype, device=self.device)
        try:
            for extends in (1, 0):
                batch = AttentionBatch(
                    torch.tensor([0, 1], dtype=torch.int32),
                    [1],
                    [1],
                    zero.to(torch.int32)[None],
                    zero,
                    zero,
                    lengths_R=self._ones_R[:1],
                    extends=extends,
                )
                plan = self.plan(batch)
                for window in self._kinds:
                    self.attend(q_THD, self.windows.index(window) if self.windows else 0, pool, plan)
            torch.cuda.synchronize(self.device)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, OSError) as error:
            raise ValueError(f"attention is 'flashinfer', whose kernels do not compile or run here: {error}") from error
