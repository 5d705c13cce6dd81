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

__all__ = ["Draw", "Sorting", "add_bias", "log_probabilities", "penalize", "sample", "subtracted", "top"]

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
    # Only a row of NaN or of nothing could point into the padding.
    return (block_M * _BLOCK + inner_M).clamp_(max=weights_MV.shape[1] - 1)


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
    """Draw among the heaviest: all three cuts leave a prefix of the sorted weights, and the shortest one counts."""
    total_S = weights_SV.sum(-1, dtype=torch.float64)
    allowed_S1 = (sorting.top_p_S * total_S).unsqueeze(1)
    width = sorting.width
    # Elsewhere than on a CPU, asking how many are heavy enough would wait for the device.
    if width * 2 >= weights_SV.shape[1] and weights_SV.device.type == "cpu":
        width = min(width, _heavy_enough(weights_SV, total_S, sorting.top_p_S))
    tokens_SK, sorted_SK = _heaviest(weights_SV, width)
    cumulative_SK = sorted_SK.cumsum(-1, dtype=torch.float64)
    # A token stays if what stands before it does not exceed top_p: the first always does.
    last_S1 = torch.searchsorted(cumulative_SK, allowed_S1, right=True)
    last_S1 = torch.minimum(last_S1, (sorting.top_k_S - 1).unsqueeze(1))
    if min_p_S is not None:
        last_S1 = torch.minimum(last_S1, (sorted_SK >= min_p_S.unsqueeze(1)).sum(-1, keepdim=True) - 1)
    last_S1 = last_S1.clamp_(0, sorted_SK.shape[1] - 1)
    share_S1 = uniform_S.unsqueeze(1) * cumulative_SK.gather(1, last_S1)
    chosen_S1 = torch.searchsorted(cumulative_SK, share_S1, right=True)
    return tokens_SK.gather(1, torch.minimum(chosen_S1, last_S1)).squeeze(1).to(torch.int64)


def _heavy_enough(weights_SV: Tensor, total_S: Tensor, top_p_S: Tensor) -> int:
    """Bound how many tokens top-p may keep, without sorting.

    V tokens lighter than (1 - top_p) total / V weigh less than (1 - top_p) total together, so they all lie behind the
    cut; a little is left for rounding.
    """
    lightest_S = (1.0 - top_p_S) * total_S * ((1.0 - 1e-6) / weights_SV.shape[1])
    return max(1, int((weights_SV >= lightest_S.to(torch.float32).unsqueeze(1)).sum(-1).max()))


def _heaviest(weights_SV: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Give the `width` heaviest tokens, int32 [S, width], and their weights, float32; equals by id.

    (minus the weight's bits, id) sort as one integer, so that every key is different: no device and no width orders
    ties its own way.  The bits of floats that are not negative order as the floats do.
    """
    vocabulary = weights_SV.shape[1]
    halves_SV2 = torch.empty((*weights_SV.shape, 2), dtype=torch.int32, device=weights_SV.device)
    halves_SV2[..., 0] = torch.arange(vocabulary, dtype=torch.int32, device=weights_SV.device)
    halves_SV2[..., 1] = weights_SV.view(torch.int32)
    halves_SV2[..., 1].neg_()
    keys_SV = halves_SV2.view(torch.int64).squeeze(-1)
    few = width * 2 < vocabulary
    if keys_SV.device.type == "cpu":  # numpy sorts with vectors: 1 to 7 ms at 32 x 4096
        array_SV = keys_SV.numpy()
        nearest = np.partition(array_SV, width - 1, axis=-1)[:, :width] if few else array_SV
        keys_SK = torch.from_numpy(np.sort(nearest, axis=-1)[:, :width])
    else:
        keys_SK = keys_SV.topk(width, largest=False).values if few else keys_SV.sort(dim=-1).values[:, :width]
    halves_SK2 = keys_SK.contiguous().view(torch.int32).view(*keys_SK.shape, 2)
    return halves_SK2[..., 0], halves_SK2[..., 1].neg().view(torch.float32)


def penalize(logits_NV: Tensor, subtracted_NV: Tensor, divisors_NV: Tensor | None = None) -> None:
    """Make tokens that were already there less likely (or more, with negative penalties), in place.

    subtracted_NV: from `subtracted`.  divisors_NV: the repetition penalty where a token was in prompt or output, else
    1; what is left of a logit is divided by it if positive, else multiplied (Keskar et al. 2019, CTRL).  float32 both.
    """
    logits_NV.sub_(subtracted_NV)
    if divisors_NV is not None:
        positive_NV = logits_NV.clamp(min=0.0).div_(divisors_NV)
        logits_NV.clamp_(max=0.0).mul_(divisors_NV).add_(positive_NV)


def subtracted(counts: Tensor, frequency: Tensor, presence: Tensor) -> Tensor:
    """Give what frequency and presence penalties take off: one for each occurrence in the output, one for any."""
    return counts * frequency + (counts > 0) * presence


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
