"""Keep tokens out: sparse bans and a grammar's bit masks, both in place on logits."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["apply_bitmask", "ban"]


def apply_bitmask(logits_NV: Tensor, words_NW: Tensor) -> None:
    """Set to -inf every token whose bit is not set, in place.

    words_NW: int32 on the logits' device; bit b of word w is token 32 w + b, as llguidance writes it.  Words may cover
    fewer or more tokens than the logits: tokens without a bit are kept out, bits without a token ignored.
    """
    vocabulary = logits_NV.shape[1]
    if logits_NV.device.type == "cpu" and logits_NV.dtype == torch.float32:
        _apply_on_host(logits_NV, words_NW)
        return
    bits_B = torch.arange(32, dtype=torch.int32, device=words_NW.device)
    covered = min(vocabulary, words_NW.shape[1] * 32)
    banned_NV = ((words_NW.unsqueeze(-1) >> bits_B) & 1).eq(0).flatten(1)
    logits_NV[:, :covered].masked_fill_(banned_NV[:, :covered], -torch.inf)
    if covered < vocabulary:
        logits_NV[:, covered:] = -torch.inf


def _apply_on_host(logits_NV: Tensor, words_NW: Tensor) -> None:
    """Take the lesser of each logit and what its byte of the mask allows: a ninth of the time of filling by a mask."""
    limits_NV = _limits_of_bytes().take(words_NW.contiguous().numpy().view(np.uint8), axis=0).reshape(len(words_NW), -1)
    covered = min(logits_NV.shape[1], limits_NV.shape[1])
    logits_NV[:, :covered].clamp_(max=torch.from_numpy(limits_NV[:, :covered]))
    logits_NV[:, covered:] = -torch.inf


@cache
def _limits_of_bytes() -> npt.NDArray[np.float32]:
    """Say for each of the 256 bytes which of its eight tokens is kept out: float32 [256, 8], -inf or inf."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return np.where(bits, np.inf, -np.inf).astype(np.float32)


def ban(logits_NV: Tensor, rows_B: Tensor, tokens_B: Tensor) -> None:
    """Set logits[rows_B[i], tokens_B[i]] to -inf for every i, in place.  Both int64; repeats do no harm."""
    logits_NV.index_put_((rows_B, tokens_B), torch.full((), -torch.inf, dtype=logits_NV.dtype, device=logits_NV.device))
