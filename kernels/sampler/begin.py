"""The parameters of rows that begin, from a transfer to where every step reads them, in one kernel.

Shape suffixes:  B rows that begin    R rows of a worker
"""

# num_warps is the compiler's, no parameter of a kernel.
# pyright: reportCallIssue=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .parameters import DeviceSampling

__all__ = ["write_parameters"]


# What is read stands anywhere in a packed transfer: kernels are not compiled anew for that.
@triton.jit(
    do_not_specialize=["B"],
    do_not_specialize_on_alignment=["keys_B2", "rows_B", "temperature_B", "top_k_B", "top_p_B", "min_p_B"],
)
def _scatter(
    keys_B2,
    rows_B,
    temperature_B,
    top_k_B,
    top_p_B,
    min_p_B,
    keys_R2,
    temperature_R,
    top_k_R,
    top_p_R,
    min_p_R,
    B,
    BLOCK: tl.constexpr,
):
    """Copy words as they are, whatever they mean; all of them int32."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = place < B
    row = tl.load(rows_B + place, live, 0)
    tl.store(keys_R2 + 2 * row, tl.load(keys_B2 + 2 * place, live, 0), live)
    tl.store(keys_R2 + 2 * row + 1, tl.load(keys_B2 + 2 * place + 1, live, 0), live)
    tl.store(temperature_R + row, tl.load(temperature_B + place, live, 0), live)
    tl.store(top_k_R + row, tl.load(top_k_B + place, live, 0), live)
    tl.store(top_p_R + row, tl.load(top_p_B + place, live, 0), live)
    tl.store(min_p_R + row, tl.load(min_p_B + place, live, 0), live)


def write_parameters(into: DeviceSampling, parts: list[Tensor], *, block: int = 128) -> None:
    """Write what rows begin with.

    parts: int32 words of keys [2 B], rows [B], temperature, top_k, top_p and min_p [B], those of floats as they are.
    """
    rows = len(parts[1])
    words = (into.keys_R, into.temperature_R, into.top_k_R, into.top_p_R, into.min_p_R)
    _scatter[(triton.cdiv(rows, block),)](
        *parts, *(each.view(parts[1].dtype) for each in words), rows, BLOCK=block, num_warps=4
    )
