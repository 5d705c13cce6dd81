"""Batched sampling: from a step's logits to one token a row.

Shapes: N rows that sample, V vocabulary, K the widest top-k.

The order is SGLang's: frequency and presence penalties (subtracted), the repetition penalty (multiplied), bans and
grammar masks, logit bias, temperature, then top-k, top-p and min-p, which all look at the same distribution, the one
after temperature ("joint": top-p does not count again after top-k).  A row takes the path its own parameters name,
whatever its neighbours ask for, so that its token does not depend on them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Draw", "Sorting", "add_bias", "count", "log_probabilities", "penalize", "sample", "top"]

_BLOCK = 64


@dataclass(frozen=True, slots=True)
class Sorting:
    """The random rows that have a top-k or a top-p.

    rows_S: int64, indices among the random rows; None for all of them.  top_k_S: int64, the vocabulary's size for
    "all".  top_p_S: float64.  width: the largest top_k; known to the host, so that no device is asked.
    """

    rows_S: Tensor | None
    top_k_S: Tensor
    top_p_S: Tensor
    width: int


@dataclass(frozen=True, slots=True)
class Draw:
    """How the rows with a temperature draw; all M random rows of N.

    rows_M: int64, their indices among the N; None if N = M.  temperature_M: float32, above 0.  min_p_M: float32; None
    if no row has one.
    """

    rows_M: Tensor | None
    temperature_M: Tensor
    min_p_M: Tensor | None = None
    sorting: Sorting | None = None


def sample(logits_NV: Tensor, draw: Draw | None = None, uniform_M: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Choose one token a row: the most likely one, or a draw for the rows that `draw` names.

    logits_NV: float32, penalties and masks applied.  uniform_M: float64 in [0, 1), one for each random row, from
    `random.uniform`.  Returns tokens int64 [N] and best float32 [N], the greatest logit: NaN if the row has a NaN,
    -inf if nothing is allowed; the token means nothing then.
    """
    if draw is None or uniform_M is None:
        return _greatest(logits_NV)
    if draw.rows_M is None:
        best_N = logits_NV.amax(dim=-1)
        return _draw(logits_NV, best_N, draw, uniform_M), best_N
    tokens_N, best_N = _greatest(logits_NV)
    drawn_M = _draw(logits_NV[draw.rows_M], best_N[draw.rows_M], draw, uniform_M)
    return tokens_N.index_copy_(0, draw.rows_M, drawn_M), best_N


def _greatest(logits_NV: Tensor) -> tuple[Tensor, Tensor]:
    """Find each row's greatest logit, the first among equals, NaN before all."""
    if logits_NV.device.type == "cpu":  # numpy's argmax uses vectors where torch's does not: 15 to 130 us at 32 x 4096
        tokens_N = torch.from_numpy(np.asarray(logits_NV.numpy().argmax(axis=-1)))
    else:
        tokens_N = logits_NV.argmax(dim=-1)
    return tokens_N, logits_NV.gather(1, tokens_N.unsqueeze(1)).squeeze(1)


def _draw(logits_MV: Tensor, best_M: Tensor, draw: Draw, uniform_M: Tensor) -> Tensor:
    # exp of the distance to the best: the best token weighs exactly 1, so min-p is a threshold and nothing overflows.
    weights_MV = logits_MV.sub(best_M.unsqueeze(1)).div_(draw.temperature_M.unsqueeze(1)).exp_()
    sorting = draw.sorting
    if sorting is None:
        return _invert(_above(weights_MV, draw.min_p_M), uniform_M)
    rows_S = sorting.rows_S
    if rows_S is None:
        return _invert_sorted(weights_MV, draw.min_p_M, uniform_M, sorting)
    min_p_S = None if draw.min_p_M is None else draw.min_p_M[rows_S]
    sorted_S = _invert_sorted(weights_MV[rows_S], min_p_S, uniform_M[rows_S], sorting)
    return _invert(_above(weights_MV, draw.min_p_M), uniform_M).index_copy_(0, rows_S, sorted_S)


def _above(weights_MV: Tensor, min_p_M: Tensor | None) -> Tensor:
    return weights_MV if min_p_M is None else weights_MV.masked_fill_(weights_MV < min_p_M.unsqueeze(1), 0.0)


def _invert(weights_MV: Tensor, uniform_M: Tensor) -> Tensor:
    """Find where the cumulative weight first exceeds its share of the whole; a weight of 0 is never chosen.

    In two levels, first among blocks and then within one: a cumulative sum over the vocabulary would cost more than
    all the rest, and in float32 it would lose small weights.
    """
    rest = -weights_MV.shape[1] % _BLOCK
    padded_MV = functional.pad(weights_MV, (0, rest)) if rest else weights_MV
    blocks_MCB = padded_MV.unflatten(1, (-1, _BLOCK))
    sums_MC = blocks_MCB.sum(-1)
    block_M, rest_M = _position(sums_MC, uniform_M)
    within_MB = blocks_MCB.gather(1, block_M.view(-1, 1, 1).expand(-1, 1, _BLOCK)).squeeze(1)
    inner_M, _ = _position(within_MB, rest_M)
    return block_M * _BLOCK + inner_M


def _position(weights_MC: Tensor, uniform_M: Tensor) -> tuple[Tensor, Tensor]:
    """Find the first index whose cumulative weight exceeds uniform x total, and how far into it that lies, in [0, 1).

    Rows of NaN or of nothing give some index in range.
    """
    cumulative_MC = weights_MC.cumsum(-1, dtype=torch.float64)
    share_M1 = (uniform_M * cumulative_MC[:, -1]).unsqueeze(1)
    index_M1 = torch.searchsorted(cumulative_MC, share_M1, right=True).clamp_(max=weights_MC.shape[1] - 1)
    weight_M1 = weights_MC.gather(1, index_M1)
    into_M1 = (share_M1 - cumulative_MC.gather(1, index_M1)) / weight_M1 + 1.0
    # Rounding may reach 1, which would point behind the last weight.
    return index_M1.squeeze(1), into_M1.clamp_(0.0, 1.0 - 2.0**-32).squeeze(1)


def _invert_sorted(weights_SV: Tensor, min_p_S: Tensor | None, uniform_S: Tensor, sorting: Sorting) -> Tensor:
    total_S = weights_SV.sum(-1, dtype=torch.float64)
    tokens_SK, sorted_SK = _heaviest(weights_SV, sorting.width)
    before_SK = sorted_SK.cumsum(-1).sub_(sorted_SK)
    ranks_K = torch.arange(sorted_SK.shape[1], device=sorted_SK.device)
    dropped_SK = before_SK > (sorting.top_p_S * total_S).unsqueeze(1)
    dropped_SK |= ranks_K >= sorting.top_k_S.unsqueeze(1)
    if min_p_S is not None:
        dropped_SK |= sorted_SK < min_p_S.unsqueeze(1)
    chosen_S, _ = _position(sorted_SK.masked_fill_(dropped_SK, 0.0), uniform_S)
    return tokens_SK.gather(1, chosen_S.unsqueeze(1)).squeeze(1)


def _heaviest(weights_SV: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Give the `width` heaviest tokens, int64 [S, width], and their weights, float64; equals by id.

    (weight's bits, id) sort as one integer, so that every key is different: no device and no width orders ties its own
    way.  The bits of floats that are not negative order as the floats do.
    """
    vocabulary = weights_SV.shape[1]
    ids_V = torch.arange(vocabulary, device=weights_SV.device)
    keys_SV = ids_V - (weights_SV.view(torch.int32).to(torch.int64) << 32)
    if weights_SV.device.type == "cpu":  # numpy sorts with vectors: 1 to 7 ms at 32 x 4096
        array_SV = keys_SV.numpy()
        if width * 4 < vocabulary:
            array_SV = np.partition(array_SV, width - 1, axis=-1)[:, :width]
        keys_SK = torch.from_numpy(np.sort(array_SV, axis=-1)[:, :width])
    elif width * 4 < vocabulary:
        keys_SK = keys_SV.topk(width, dim=-1, largest=False).values
    else:
        keys_SK = keys_SV.sort(dim=-1).values[:, :width]
    tokens_SK = keys_SK & 0xFFFFFFFF
    weights_SK = ((tokens_SK - keys_SK) >> 32).to(torch.int32).view(torch.float32)
    return tokens_SK, weights_SK.to(torch.float64)


def penalize(
    logits_NV: Tensor,
    output_counts_NV: Tensor,
    seen_NV: Tensor,
    frequency_N: Tensor,
    presence_N: Tensor,
    repetition_N: Tensor,
) -> Tensor:
    """Make tokens that were already there less likely (or more, with negative penalties); return new logits.

    output_counts_NV: int32, how often the output has each token; frequency is subtracted once an occurrence, presence
    once.  seen_NV: bool, tokens of prompt or output; their logits are divided by repetition if positive, else
    multiplied (Keskar et al. 2019, CTRL, as SGLang and transformers do).
    """
    penalty_NV = output_counts_NV * frequency_N.unsqueeze(1) + (output_counts_NV > 0) * presence_N.unsqueeze(1)
    logits_NV = logits_NV - penalty_NV
    repetition_N1 = repetition_N.unsqueeze(1)
    scaled_NV = torch.where(logits_NV > 0, logits_NV / repetition_N1, logits_NV * repetition_N1)
    return torch.where(seen_NV, scaled_NV, logits_NV)


def count(counts_PV: Tensor, rows_B: Tensor, tokens_B: Tensor) -> None:
    """Add one to counts[rows_B[i], tokens_B[i]] for every i, in place; repeats add up."""
    ones_B = torch.ones((), dtype=counts_PV.dtype, device=counts_PV.device).expand(tokens_B.shape[0])
    counts_PV.index_put_((rows_B, tokens_B), ones_B, accumulate=True)


def add_bias(logits_NV: Tensor, rows_B: Tensor, tokens_B: Tensor, bias_B: Tensor) -> None:
    """Add bias_B[i] to logits[rows_B[i], tokens_B[i]] for every i, in place.  Ids are int64, the bias float32."""
    logits_NV.index_put_((rows_B, tokens_B), bias_B, accumulate=True)


def log_probabilities(logits_NV: Tensor, tokens_N: Tensor) -> tuple[Tensor, Tensor]:
    """Give log softmax of the logits, [N, V], and of it each row's token, [N]; natural logarithms, float32."""
    logprobs_NV = logits_NV.log_softmax(dim=-1)
    return logprobs_NV, logprobs_NV.gather(1, tokens_N.unsqueeze(1)).squeeze(1)


def top(logprobs_NV: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Give the `width` most likely tokens, int64 [N, width], and their log-probabilities, best first."""
    values_NK, tokens_NK = logprobs_NV.topk(width, dim=-1)
    return tokens_NK, values_NK
