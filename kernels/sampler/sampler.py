"""Sample rows on a device with nothing from the host: what `kernels/sampling.py` does, in one pass over the vocabulary.

Shapes: N rows that sample, R rows of a worker, V vocabulary.
"""

# num_warps is the compiler's, no parameter of a kernel.
# pyright: reportCallIssue=false

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .adjusted import choose_adjusted, deliver, scan_adjusted
from .adjustments import Adjustments
from .cuts import draw_kept, narrow, weigh
from .parameters import DeviceSampling
from .scan import choose, scan

__all__ = ["Sampler", "Tuning"]

# How many of float32's bits a type's numbers leave empty when they are widened.
_EMPTY_BITS = {torch.float32: 0, torch.float16: 13, torch.bfloat16: 16}


@dataclass(frozen=True, slots=True)
class Tuning:
    """How the kernels cut a row; all are powers of two.

    block: tokens that are summed for themselves.  scan_blocks, weigh_blocks: blocks a program.  narrow_tiles: pieces of
    1024 tokens a program.  They decide how sums round, so they do not vary with the number of rows.
    """

    block: int = 1024
    scan_blocks: int = 1
    scan_warps: int = 1
    adjust_warps: int = 2
    choose_warps: int = 4
    narrow_tile: int = 1024
    narrow_tiles: int = 8
    narrow_warps: int = 4
    weigh_blocks: int = 4
    weigh_warps: int = 4


class Sampler:
    """Own the scratch memory that sampling up to `rows` rows at once takes; `sample` allocates nothing.

    One call at a time: calls on one stream are.  blocks: that a row is cut into, of `block` tokens each.
    """

    def __init__(self, rows: int, vocabulary: int, device: torch.device, tuning: Tuning | None = None) -> None:
        self.vocabulary = vocabulary
        self._tuning = tuning = tuning or Tuning()
        self.block = tuning.block
        self.blocks = -(-vocabulary // tuning.block)
        self._programs = programs = -(-vocabulary // (tuning.narrow_tile * tuning.narrow_tiles))

        def room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._maxima_NC = room(rows, self.blocks)
        self._sums_NC = room(rows, self.blocks)
        self._firsts_NC = room(rows, self.blocks, dtype=torch.int32)
        self._greatest_N = room(rows)
        self._totals_N = room(rows, dtype=torch.float64)
        self._searches_N = room(rows, dtype=torch.int32)
        self._cuts_N = room(rows, dtype=torch.int32)
        self._above_NC = room(rows, self.blocks)
        self._ranks_NC2 = room(rows, self.blocks, 2, dtype=torch.int32)
        # Twice: a pass reads what the one before wrote.
        self._brackets = tuple(room(rows, 2, dtype=torch.int32) for _ in range(2))
        self._counts = tuple(room(rows, programs, 4) for _ in range(2))
        self._masses = tuple(room(rows, programs, 4) for _ in range(2))

    def sample(
        self,
        logits_NV: Tensor,
        rows_N: Tensor,
        positions_N: Tensor,
        parameters: DeviceSampling,
        tokens_N: Tensor,
        best_N: Tensor,
        last_tokens_R: Tensor,
        *,
        cuts: bool,
    ) -> None:
        """Give each row a token: the most likely one, or a draw as its parameters say.

        logits_NV: bf16, float16 or float32; its lines may stand apart.  rows_N: int32 or int64; a negative one is
        padding and gets nothing.  positions_N: int32 or int64, where the token will stand.  Written: tokens_N (int32
        or int64), best_N (float32: the greatest logit; NaN if one is not a number, -inf if nothing is allowed; the
        token means nothing then) and last_tokens_R[rows_N].  cuts: whether any row may have a top-k, top-p or min-p;
        must be true if one has.
        """
        tuning = self._tuning
        scan[-(-self.blocks // tuning.scan_blocks), len(rows_N)](
            logits_NV, logits_NV.stride(0), self.vocabulary, rows_N, parameters.temperature_R,
            self._maxima_NC, self._firsts_NC, self._sums_NC,
            BLOCK=tuning.block, PER_PROGRAM=tuning.scan_blocks, num_warps=tuning.scan_warps,
        )  # fmt: skip
        self._draw(logits_NV, rows_N, positions_N, parameters, tokens_N, best_N, last_tokens_R, cuts=cuts)

    def redraw(
        self,
        logits_NV: Tensor,
        adjustments: Adjustments,
        parameters: DeviceSampling,
        tokens_N: Tensor,
        best_N: Tensor,
        last_tokens_R: Tensor,
        *,
        cuts: bool,
    ) -> None:
        """Give the rows that `adjustments` names a token from their adjusted logits; other rows keep theirs.

        logits_NV are only read.  cuts: whether one of the named rows may have a top-k, top-p or min-p; their logits
        take 4 bytes a token then.  Else as for `sample`.
        """
        tuning, a, count = self._tuning, adjustments, len(adjustments.rows_A)
        history, edits, p = a.history, a.edits, parameters
        wishes = (
            a.places_A, a.histories_A, a.masks_A, a.edits_A, history.seen_LW, history.counts_LV, history.strengths_L3,
            a.masks_MW, a.masks_MW.shape[1], edits.starts_SC, edits.tokens_E, edits.values_E, p.temperature_R,
        )  # fmt: skip
        stored_AV = logits_NV
        if cuts:
            stored_AV = torch.empty((count, self.vocabulary), dtype=torch.float32, device=logits_NV.device)
        scan_adjusted[self.blocks, count](
            logits_NV, logits_NV.stride(0), self.vocabulary, a.rows_A, *wishes,
            self._maxima_NC, self._firsts_NC, self._sums_NC, stored_AV,
            BLOCK=tuning.block, STORE=cuts, num_warps=tuning.adjust_warps,
        )  # fmt: skip
        if not cuts:
            choose_adjusted[count,](
                logits_NV, logits_NV.stride(0), self.vocabulary, a.rows_A, a.positions_A, *wishes, p.keys_R,
                self._maxima_NC, self._firsts_NC, self._sums_NC, tokens_N, best_N, last_tokens_R,
                BLOCK=tuning.block, BLOCKS=_power(self.blocks), num_warps=tuning.choose_warps,
            )  # fmt: skip
            return
        tokens_A, best_A = torch.empty_like(a.rows_A), torch.empty_like(best_N[:count])
        self._draw(stored_AV, a.rows_A, a.positions_A, p, tokens_A, best_A, last_tokens_R, cuts=True)
        deliver[count,](
            a.places_A, a.histories_A, self.vocabulary, history.seen_LW, history.counts_LV, tokens_A, best_A,
            tokens_N, best_N, num_warps=1,
        )  # fmt: skip

    def _draw(
        self,
        logits_NV: Tensor,
        rows_N: Tensor,
        positions_N: Tensor,
        parameters: DeviceSampling,
        tokens_N: Tensor,
        best_N: Tensor,
        last_tokens_R: Tensor,
        *,
        cuts: bool,
    ) -> None:
        """Draw from rows that have been summarised."""
        tuning, vocabulary, count = self._tuning, self.vocabulary, len(rows_N)
        stride, shift = logits_NV.stride(0), _EMPTY_BITS[logits_NV.dtype]
        blocks, p = _power(self.blocks), parameters
        choose[count,](
            logits_NV, stride, vocabulary, rows_N, positions_N, p.temperature_R, p.top_k_R, p.top_p_R, p.min_p_R,
            p.keys_R, self._maxima_NC, self._firsts_NC, self._sums_NC, self._greatest_N, self._totals_N,
            self._brackets[0], self._searches_N, tokens_N, best_N, last_tokens_R,
            BLOCK=tuning.block, BLOCKS=blocks, SHIFT=shift, CUTS=cuts, num_warps=tuning.choose_warps,
        )  # fmt: skip
        if not cuts:
            return
        now = self._narrow(logits_NV, rows_N, p, shift)
        weigh[-(-self.blocks // tuning.weigh_blocks), count](
            logits_NV, stride, vocabulary, rows_N, p.temperature_R, p.top_k_R, p.top_p_R, p.min_p_R, self._searches_N,
            self._greatest_N, self._totals_N, self._brackets[now], self._counts[now], self._masses[now],
            self._programs, self._cuts_N, self._above_NC, self._sums_NC, self._ranks_NC2,
            BLOCK=tuning.block, PER_PROGRAM=tuning.weigh_blocks, PROGRAMS=_power(self._programs), SHIFT=shift,
            num_warps=tuning.weigh_warps,
        )  # fmt: skip
        draw_kept[count,](
            logits_NV, stride, vocabulary, rows_N, positions_N, p.temperature_R, p.top_k_R, p.top_p_R, p.min_p_R,
            p.keys_R, self._searches_N, self._greatest_N, self._totals_N, self._cuts_N, self._above_NC, self._sums_NC,
            self._ranks_NC2, tokens_N, best_N, last_tokens_R,
            BLOCK=tuning.block, BLOCKS=blocks, SHIFT=shift, num_warps=tuning.choose_warps,
        )  # fmt: skip

    def _narrow(self, logits_NV: Tensor, rows_N: Tensor, parameters: DeviceSampling, shift: int) -> int:
        """Search for the cuts; tells which half of the scratch memory has what the last pass found.

        A pass leaves a quarter of a bracket, rounded up, so half as many passes as keys have bits are enough.
        """
        tuning, p, passes = self._tuning, parameters, (33 - shift) // 2
        now = 0
        for number in range(passes):
            now = 1 - now
            narrow[self._programs, len(rows_N)](
                logits_NV, logits_NV.stride(0), self.vocabulary, rows_N, p.temperature_R, p.top_k_R, p.top_p_R,
                self._searches_N, self._greatest_N, self._totals_N,
                self._brackets[1 - now], self._counts[1 - now], self._masses[1 - now],
                self._brackets[now], self._counts[now], self._masses[now],
                TILE=tuning.narrow_tile, TILES=tuning.narrow_tiles, PROGRAMS=_power(self._programs), SHIFT=shift,
                FIRST=number == 0, num_warps=tuning.narrow_warps,
            )  # fmt: skip
        return now


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()
