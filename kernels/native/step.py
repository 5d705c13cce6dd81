"""A step in C: all layers in one call, where torch's calls cost more than what they compute.

Shape suffixes:  T new tokens of the step    R rows    L cached positions of a row    C hidden size    V vocabulary
                 N tokens whose logits are wanted    P = head_dim / 2 rotary pairs
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..attention.interface import Plan
from ..attention.planning import ReferencePlan
from ..kv_pool import KVPool
from .build import load_library
from .structs import CLayer, CMatrix, CModel, CStep, Panels

__all__ = ["LayerWeights", "NativeStep", "Shape", "native_step"]

_Int32s = npt.NDArray[np.int32]
# The panels are a second copy of the weights, beside the one that torch multiplies by.  Beyond this many bytes it
# would be felt, and reading it takes so long that the calls no longer matter.
_MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Shape:
    """What a step in C must know of a model."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    epsilon: float


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """A layer's weights, [in, out] each; the gate's columns of gate_up come first."""

    attention_norm: Tensor
    qkv: Tensor
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


def native_step(
    shape: Shape, layers: Sequence[LayerWeights], norm_C: Tensor, head_CV: Tensor, rotations_LP: Tensor
) -> NativeStep | None:
    """Prepare a model's steps in C; None if it is not float32 on a CPU that can, or too large."""
    if norm_C.device.type != "cpu" or norm_C.dtype != torch.float32 or shape.head_dim % 8:
        return None
    matrices = [head_CV, *(matrix for one in layers for matrix in (one.qkv, one.output, one.gate_up, one.down))]
    if sum(matrix.numel() for matrix in matrices) * 2 > _MOST_BYTES:
        return None
    library = load_library("step")
    return None if library is None else NativeStep(library, shape, layers, norm_C, head_CV, rotations_LP)


class NativeStep:
    """Run steps.  One serves one thread at a time: its scratch memory is kept.

    before: called when a step is about to let go of Python's lock for all its time, which is when other threads of
    Python are best woken: from here on nobody waits for them.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        shape: Shape,
        layers: Sequence[LayerWeights],
        norm_C: Tensor,
        head_CV: Tensor,
        rotations_LP: Tensor,
    ) -> None:
        self.before: Callable[[], None] | None = None
        self._bind(library)
        self._shape = shape
        self._rotations_LP = rotations_LP
        self._norm_C = norm_C
        self._panels = [_panels(one, shape.intermediate) for one in layers]
        self._norms = [(one.attention_norm, one.mlp_norm) for one in layers]
        self._layers = (CLayer * len(layers))(
            *(
                CLayer(attention.data_ptr(), mlp.data_ptr(), **{name: one.c for name, one in panels.items()})
                for (attention, mlp), panels in zip(self._norms, self._panels, strict=True)
            )
        )
        self._model = CModel(
            self._layers,
            norm_C.data_ptr(),
            len(layers),
            shape.hidden,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            shape.intermediate,
            shape.epsilon,
        )
        self._head = Panels(head_CV)
        self._scratch = torch.empty(0)

    def _bind(self, library: ctypes.CDLL) -> None:
        size, pointer = ctypes.c_int64, ctypes.c_void_p
        self._step_floats = library.callboard_step_floats
        self._step_floats.argtypes = [ctypes.POINTER(CModel), size, size, size]
        self._step_floats.restype = size
        self._product_floats = library.callboard_product_floats
        self._product_floats.argtypes = [size]
        self._product_floats.restype = size
        self._step = library.callboard_step
        self._step.argtypes = [ctypes.POINTER(CModel), ctypes.POINTER(CStep)]
        self._step.restype = ctypes.c_int
        self._multiply = library.callboard_multiply
        self._multiply.argtypes = [ctypes.POINTER(CMatrix), pointer, size, pointer, pointer, size]
        self._multiply.restype = None

    def takes(self, pool: KVPool, plan: Plan) -> bool:
        """Tell whether a step can be run here: planned by the reference attention, keys and values in float32."""
        return isinstance(plan, ReferencePlan) and pool.entries[0].dtype == torch.float32 and plan.batch.rows_R is None

    def forward_(
        self, x_TC: Tensor, positions_T: Tensor, pool: KVPool, plan: ReferencePlan, wanted_N: Tensor | None = None
    ) -> Tensor:
        """Run embedded tokens through all layers and the norm, in place, storing their keys and values.

        wanted_N: int64, ascending, the tokens whose hidden states are wanted, [N, C] then; None for all.  The others
        leave the last layer when their keys and values are stored.
        """
        batch, threads = plan.batch, torch.get_num_threads()
        rows, tokens, longest = len(batch.lengths), len(x_TC), max(batch.lengths)
        table_RL = batch.table_RL
        if table_RL.dtype != torch.int32 or table_RL.stride(1) != 1:
            table_RL = table_RL.to(torch.int32).contiguous()
        positions_T, slots_T = positions_T.contiguous(), batch.slots_T.contiguous()
        entries = (ctypes.c_void_p * len(pool.entries))(*(one.data_ptr() for one in pool.entries))
        owners_T, visible_T = _sight(batch.query_lengths, batch.lengths)
        step = CStep(
            x_TC.data_ptr(),
            ctypes.addressof(entries),
            self._rotations_LP.data_ptr(),
            positions_T.data_ptr(),
            slots_T.data_ptr(),
            table_RL.data_ptr(),
            owners_T.ctypes.data,
            visible_T.ctypes.data,
            0 if wanted_N is None else wanted_N.data_ptr(),
            self._room(self._step_floats(self._model, tokens, longest, threads)),
            table_RL.stride(0),
            rows,
            tokens,
            longest,
            threads,
            len(pool.entries[0]),
            len(self._rotations_LP),
            0 if wanted_N is None else len(wanted_N),
            plan.scale,
        )
        if self.before is not None:
            self.before()
        if not self._step(self._model, step):
            raise IndexError("a step names a slot, a position or a token that does not exist")
        return x_TC if wanted_N is None else x_TC[: len(wanted_N)]

    def logits(self, hidden_NC: Tensor) -> Tensor:
        """Score the vocabulary: float32 [N, C] -> [N, V]."""
        hidden_NC, threads = hidden_NC.contiguous(), torch.get_num_threads()
        rows, head = len(hidden_NC), self._head.c
        out_NV = torch.empty(rows, head.outputs)
        scratch = self._room(self._product_floats(threads))
        self._multiply(head, hidden_NC.data_ptr(), rows, out_NV.data_ptr(), scratch, threads)
        return out_NV

    def _room(self, floats: int) -> int:
        """Give the address of that much scratch memory; it grows by a quarter more than asked for."""
        if self._scratch.numel() < floats:
            self._scratch = torch.empty(floats + floats // 4)
        return self._scratch.data_ptr()


def _sight(query_lengths: list[int], lengths: list[int]) -> tuple[_Int32s, _Int32s]:
    """Tell each token's row, and how many keys it sees: int32 [T] each."""
    lengths_R, rows_R = np.array(lengths, np.int32), np.arange(len(lengths), dtype=np.int32)
    if max(query_lengths) == 1:
        return rows_R, lengths_R
    queries_R = np.array(query_lengths, np.int32)
    # A row's last token sees all its keys, the one before it one less.
    behind_R = lengths_R - queries_R.cumsum(dtype=np.int32)
    tokens_T = np.arange(1, queries_R.sum() + 1, dtype=np.int32)
    return rows_R.repeat(queries_R), tokens_T + behind_R.repeat(queries_R)


def _panels(layer: LayerWeights, intermediate: int) -> Mapping[str, Panels]:
    gate_IO, up_IO = layer.gate_up.split(intermediate, dim=1)
    weights = {"qkv": layer.qkv, "output": layer.output, "gate": gate_IO, "up": up_IO, "down": layer.down}
    return {name: Panels(weight_IO) for name, weight_IO in weights.items()}
