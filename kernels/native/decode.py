"""A decode step in C: all layers in one call, where torch's calls cost more than what they compute.

Shape suffixes:  R rows, one new token each    C hidden size    V vocabulary    P = head_dim / 2 rotary pairs
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention.interface import Plan
from ..attention.planning import ReferencePlan
from ..kv_pool import KVPool
from .build import load_library
from .structs import CLayer, CMatrix, CModel, CStep, Panels

__all__ = ["LayerWeights", "NativeDecode", "Shape", "native_decode"]

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


def native_decode(
    shape: Shape, layers: Sequence[LayerWeights], norm_C: Tensor, head_CV: Tensor, rotations_LP: Tensor
) -> NativeDecode | None:
    """Prepare a model's decode steps in C; None if it is not float32 on a CPU that can, or too large."""
    if norm_C.device.type != "cpu" or norm_C.dtype != torch.float32 or shape.head_dim % 8:
        return None
    matrices = [head_CV, *(matrix for one in layers for matrix in (one.qkv, one.output, one.gate_up, one.down))]
    if sum(matrix.numel() for matrix in matrices) * 2 > _MOST_BYTES:
        return None
    library = load_library("decode")
    return None if library is None else NativeDecode(library, shape, layers, norm_C, head_CV, rotations_LP)


class NativeDecode:
    """Run steps in which every row decodes.  One serves one thread at a time: its scratch memory is kept."""

    def __init__(
        self,
        library: ctypes.CDLL,
        shape: Shape,
        layers: Sequence[LayerWeights],
        norm_C: Tensor,
        head_CV: Tensor,
        rotations_LP: Tensor,
    ) -> None:
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
        self._scratch_floats = library.callboard_scratch_floats
        self._scratch_floats.argtypes = [ctypes.POINTER(CModel), size, size, size]
        self._scratch_floats.restype = size
        self._decode = library.callboard_decode
        self._decode.argtypes = [ctypes.POINTER(CModel), ctypes.POINTER(CStep)]
        self._decode.restype = ctypes.c_int
        self._multiply = library.callboard_multiply
        self._multiply.argtypes = [ctypes.POINTER(CMatrix), pointer, size, pointer, pointer, size]
        self._multiply.restype = None

    def takes(self, pool: KVPool, plan: Plan) -> bool:
        """Tell whether a step can be run here: one new token a row, keys and values in float32."""
        if not isinstance(plan, ReferencePlan) or pool.entries[0].dtype != torch.float32:
            return False
        return len(plan.batch.slots_T) == len(plan.batch.lengths)

    def decode_(self, x_RC: Tensor, positions_R: Tensor, pool: KVPool, plan: ReferencePlan) -> Tensor:
        """Run embedded tokens through all layers and the norm, in place, storing their keys and values."""
        batch, threads = plan.batch, torch.get_num_threads()
        rows, longest = len(batch.lengths), max(batch.lengths)
        table_RL = batch.table_RL
        if table_RL.dtype != torch.int32 or table_RL.stride(1) != 1:
            table_RL = table_RL.to(torch.int32).contiguous()
        positions_R, slots_R = positions_R.contiguous(), batch.slots_T.contiguous()
        entries = (ctypes.c_void_p * len(pool.entries))(*(one.data_ptr() for one in pool.entries))
        lengths = (ctypes.c_int32 * rows)(*batch.lengths)
        floats = self._scratch_floats(self._model, rows, longest, threads)
        step = CStep(
            x_RC.data_ptr(),
            ctypes.addressof(entries),
            self._rotations_LP.data_ptr(),
            positions_R.data_ptr(),
            slots_R.data_ptr(),
            table_RL.data_ptr(),
            ctypes.addressof(lengths),
            self._room(floats),
            table_RL.stride(0),
            rows,
            longest,
            threads,
            len(pool.entries[0]),
            len(self._rotations_LP),
            plan.scale,
        )
        if not self._decode(self._model, step):
            raise IndexError("a decode step names a slot or a position that does not exist")
        return x_RC

    def logits(self, hidden_NC: Tensor) -> Tensor:
        """Score the vocabulary: float32 [N, C] -> [N, V]."""
        hidden_NC, threads = hidden_NC.contiguous(), torch.get_num_threads()
        rows, head = len(hidden_NC), self._head.c
        out_NV = torch.empty(rows, head.outputs)
        scratch = self._room(threads * rows * 16)
        self._multiply(head, hidden_NC.data_ptr(), rows, out_NV.data_ptr(), scratch, threads)
        return out_NV

    def _room(self, floats: int) -> int:
        """Give the address of that much scratch memory; it grows by a quarter more than asked for."""
        if self._scratch.numel() < floats:
            self._scratch = torch.empty(floats + floats // 4)
        return self._scratch.data_ptr()


def _panels(layer: LayerWeights, intermediate: int) -> Mapping[str, Panels]:
    gate_IO, up_IO = layer.gate_up.split(intermediate, dim=1)
    weights = {"qkv": layer.qkv, "output": layer.output, "gate": gate_IO, "up": up_IO, "down": layer.down}
    return {name: Panels(weight_IO) for name, weight_IO in weights.items()}
