"""Cached slots into tables, in one kernel.

Shape suffixes:  B rows that begin    S slots sent    R rows of the tables    L columns
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

__all__ = ["write"]


# What is read stands anywhere in a packed transfer: kernels are not compiled anew for that.
@triton.jit(do_not_specialize=["B"], do_not_specialize_on_alignment=["begun_3B", "slots_S"])
def _copy(begun_3B, slots_S, tables_RL, B, stride, BLOCK: tl.constexpr):
    begun = begun_3B + tl.program_id(0)
    count, row, offset = tl.load(begun), tl.load(begun + B), tl.load(begun + 2 * B)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    slots = tl.load(slots_S + offset + column, column < count, 0)
    tl.store(tables_RL + row.to(tl.int64) * stride + column, slots, column < count)


def write(tables_RL: Tensor, begun_3B: Tensor, slots_S: Tensor, longest: int, *, block: int = 1024) -> None:
    """Do what `kernels.prefixes.write_prefixes` promises, on a device; block: columns a program."""
    rows = len(begun_3B) // 3
    _copy[(rows, triton.cdiv(longest, block))](
        begun_3B, slots_S, tables_RL, rows, tables_RL.stride(0), BLOCK=block,
        num_warps=4,  # pyright: ignore[reportCallIssue]: the launcher's
    )  # fmt: skip
