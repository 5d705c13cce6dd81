"""Two gathers in one kernel: rows of token ids, and rows of embeddings by them.

Shape suffixes:  T tokens    M rows that hold tokens    V vocabulary    C hidden size
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["embed_rows"]


@triton.jit
def _gather(embedding_ptr, tokens_ptr, rows_ptr, out_ptr, stride, C, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(tokens_ptr + tl.load(rows_ptr + place)).to(tl.int64)
    row = tl.load(embedding_ptr + token * stride + column, column < C, 0.0)
    tl.store(out_ptr + place * C + column, row, column < C)


def embed_rows(embedding_VC: Tensor, tokens_M: Tensor, rows_T: Tensor, *, block: int = 1024) -> Tensor:
    """Do what `kernels.embedding.embed_rows` promises, on a device; block: columns a program."""
    tokens, width = rows_T.shape[0], embedding_VC.shape[1]
    out_TC = torch.empty(tokens, width, dtype=embedding_VC.dtype, device=embedding_VC.device)
    _gather[(tokens, triton.cdiv(width, block))](
        embedding_VC, tokens_M, rows_T, out_TC, embedding_VC.stride(0), width, BLOCK=block,
        num_warps=4,  # pyright: ignore[reportCallIssue]: the launcher's
    )  # fmt: skip
    return out_TC
