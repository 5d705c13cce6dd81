"""Cached slots into the tables of rows that begin with them.

Shape suffixes:  B rows that begin    S slots sent    R rows of the tables    L columns
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["write_prefixes"]


def write_prefixes(tables_RL: Tensor, begun_3B: Tensor, slots_S: Tensor, longest: int) -> None:
    """Write each row's first columns, all int32.

    begun_3B: side by side, how many slots a row begins with, its line of the tables, and where in slots_S they stand.
    longest: no row begins with more.
    """
    if tables_RL.is_cuda:
        from .fused import prefixes

        prefixes.write(tables_RL, begun_3B, slots_S, longest)
        return
    for count, row, offset in begun_3B.view(3, -1).T.tolist():
        tables_RL[row, :count] = slots_S[offset : offset + count]
