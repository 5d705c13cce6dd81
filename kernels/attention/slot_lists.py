"""Rows' slots side by side, as kernels want them that know no table: written on the device, by one launch.

Shape suffixes:  R rows    L columns of the table    N keys of all rows together
"""

# A launch takes more, and other types, than its kernel's signature says; a range's bounds are numbers of the device.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .interface import AttentionBatch

__all__ = ["copy_slots", "list_slots"]

_PROGRAMS = 528  # four for each of an H200's multiprocessors
_BLOCK = 1024


def list_slots(batch: AttentionBatch, first: int, rows: int, starts_R1: Tensor, slots_N: Tensor) -> None:
    """Write the slots of rows [first, first + rows) of a batch, one row's behind the other's, and where each starts.

    starts_R1: int32 [rows + 1], the last one the end.  slots_N: int32, with room for all; what lies behind is left.
    Reads nothing of the host but the number of rows, so that it can be captured and replayed with other lengths.
    """
    assert batch.lengths_R is not None, "lengths are read on the device"
    parts = max(1, min(64, _PROGRAMS // rows))
    copy_slots[(rows, parts)](
        batch.table_RL,
        batch.lengths_R,
        batch.rows_R,
        starts_R1,
        slots_N,
        batch.table_RL.stride(0),
        first,
        rows,
        parts,
        HAS_ROWS=batch.rows_R is not None,
        BLOCK_R=max(256, triton.next_power_of_2(rows)),
        BLOCK=_BLOCK,
    )


# Lengths and rows come out of one packed transfer and start anywhere: the kernel is not compiled anew for that.
@triton.jit(
    do_not_specialize=["first", "R", "parts"],
    do_not_specialize_on_alignment=["lengths_R", "rows_R"],
)
def copy_slots(
    table_RL,
    lengths_R,
    rows_R,
    starts_R1,
    slots_N,
    stride,
    first,
    R,
    parts,
    HAS_ROWS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copy one of `parts` of a row's slots; a program finds out by itself where its row starts."""
    row, part = tl.program_id(0), tl.program_id(1)
    rows = tl.arange(0, BLOCK_R)
    lengths = tl.load(lengths_R + first + rows, mask=rows < R, other=0)
    start = tl.sum(tl.where(rows < row, lengths, 0))
    length = tl.sum(tl.where(rows == row, lengths, 0))
    if part == 0:
        tl.store(starts_R1 + row, start)
        tl.store(starts_R1 + R, start + length, mask=row == R - 1)
    line = first + row
    if HAS_ROWS:
        line = tl.load(rows_R + first + row)
    source = table_RL + tl.cast(line, tl.int64) * stride
    for begin in range(part * BLOCK, length, parts * BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        slots = tl.load(source + columns, mask=columns < length, other=0)
        tl.store(slots_N + start + columns, slots.to(tl.int32), mask=columns < length)
