"""The structs of step.c."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor
from torch.nn import functional

from ..half_linear import holds_half

__all__ = ["CLayer", "CMatrix", "CModel", "CStep", "Panels"]

_PANEL = 16


def _pointers(*names: str) -> list[tuple[str, type[ctypes.c_void_p]]]:
    return [(name, ctypes.c_void_p) for name in names]


def _integers(*names: str) -> list[tuple[str, type[ctypes.c_int64]]]:
    return [(name, ctypes.c_int64) for name in names]


class CMatrix(ctypes.Structure):
    _fields_ = [*_pointers("panels"), *_integers("inputs", "outputs", "half")]


class CLayer(ctypes.Structure):
    _fields_ = [
        *_pointers("attention_norm", "mlp_norm"),
        *((name, CMatrix) for name in ("qkv", "output", "gate", "up", "down")),
    ]


class CModel(ctypes.Structure):
    _fields_ = [
        ("layers", ctypes.POINTER(CLayer)),
        *_pointers("norm"),
        *_integers("count", "hidden", "heads", "kv_heads", "head_dim", "intermediate"),
        ("epsilon", ctypes.c_float),
    ]


class CStep(ctypes.Structure):
    _fields_ = [
        *_pointers(
            "x", "entries", "rotations", "positions", "slots", "table", "owners", "visible", "wanted", "scratch"
        ),
        *_integers("table_stride", "rows", "tokens", "longest", "threads", "pool_slots", "known_positions"),
        *_integers("wanted_count"),
        ("scale", ctypes.c_float),
    ]


class Panels:
    """A weight [in, out] as panels of 16 outputs, zero-padded: float16 where that loses nothing, else float32."""

    __slots__ = ("c", "panels_PIO")

    def __init__(self, weight_IO: Tensor) -> None:
        inputs, outputs = weight_IO.shape
        half = holds_half(weight_IO)
        padded_IO = functional.pad(weight_IO, (0, -outputs % _PANEL)).to(torch.float16 if half else torch.float32)
        self.panels_PIO = padded_IO.view(inputs, -1, _PANEL).transpose(0, 1).contiguous()
        self.c = CMatrix(self.panels_PIO.data_ptr(), inputs, outputs, half)
