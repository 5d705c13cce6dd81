"""Embedding of tokens that lie on the device, by row."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

__all__ = ["embed_rows"]


def embed_rows(embedding_VC: Tensor, tokens_M: Tensor, rows_T: Tensor) -> Tensor:
    """Return the embeddings of tokens_M[rows_T], [T, C]; ids and rows are int32 or int64, within their bounds."""
    if embedding_VC.is_cuda:
        from .fused import embedding

        return embedding.embed_rows(embedding_VC, tokens_M, rows_T)
    return functional.embedding(tokens_M.index_select(0, rows_T), embedding_VC)
