"""One token a row from a step's logits, in C: masks, greatest logits and draws by temperature in one pass over a row.

Shape suffixes:  N rows    M rows that draw    V vocabulary    W words of a mask
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..sampling import Draw
from .build import load_library

__all__ = ["NativeDraw", "native_draw"]


_POINTERS = ("logits", "masks", "lines", "temperatures", "uniform", "tokens", "best")
_INTEGERS = ("rows", "vocabulary", "bytes", "threads")


class _CDraw(ctypes.Structure):
    _fields_ = [*((name, ctypes.c_void_p) for name in _POINTERS), *((name, ctypes.c_int64) for name in _INTEGERS)]


def native_draw(device: torch.device) -> NativeDraw | None:
    """Prepare draws in C; None where they cannot be had."""
    library = load_library("draw") if device.type == "cpu" else None
    return None if library is None else NativeDraw(library)


class NativeDraw:
    """Choose tokens as `sampling.sample` does, with the grammars' masks at once.

    At 32 rows of 4,096 it takes 4 us a row, with a mask that allows little half of that, where torch takes 11 and with
    masks 33.  Weights below e ** -87 of the best token's are none here; torch has them down to e ** -103.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._draw = library.callboard_draw
        self._draw.argtypes = [ctypes.POINTER(_CDraw)]
        self._draw.restype = None

    def takes(self, logits_NV: Tensor, draw: Draw | None) -> bool:
        """Tell whether rows can be drawn here: float32, and without top-k, top-p and min-p."""
        plain = draw is None or (draw.sorting is None and draw.min_p_M is None)
        return plain and logits_NV.dtype == torch.float32 and logits_NV.is_contiguous()

    def __call__(
        self,
        logits_NV: Tensor,
        draw: Draw | None,
        uniform_M: npt.NDArray[np.float64] | None,
        masks_RW: npt.NDArray[np.int32] | None = None,
        lines_N: npt.NDArray[np.int32] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Choose one token a row; what comes back is what `sampling.sample` gives.

        masks_RW: as `masks.apply_bitmask` takes them, contiguous.  lines_N: which of them is whose, negative for rows
        without one; those that are named must exist.
        """
        rows, vocabulary = logits_NV.shape
        temperature_N, uniform_N = np.zeros(rows, np.float32), np.zeros(rows)
        if draw is not None and uniform_M is not None:
            drawn = slice(None) if draw.rows_M is None else draw.rows_M.numpy()
            temperature_N[drawn], uniform_N[drawn] = draw.temperature_M.numpy(), uniform_M
        if masks_RW is None or lines_N is None:
            masks_RW, lines_N = np.zeros((0, 0), np.int32), np.full(rows, -1, np.int32)
        tokens_N, best_N = torch.empty(rows, dtype=torch.int64), torch.empty(rows)
        self._draw(
            _CDraw(
                logits_NV.data_ptr(),
                masks_RW.ctypes.data,
                lines_N.ctypes.data,
                temperature_N.ctypes.data,
                uniform_N.ctypes.data,
                tokens_N.data_ptr(),
                best_N.data_ptr(),
                rows,
                vocabulary,
                masks_RW.shape[1] * 4,
                torch.get_num_threads(),
            )
        )
        return tokens_N, best_N
