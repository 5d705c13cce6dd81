"""What is done to rows' logits before they are drawn from: penalties, masks, bans and a bias, as it lies on a device.

Shapes: N rows that sample, A of them adjusted, V vocabulary, W words of 32 tokens, L lines of rows with penalties, M
masks, S rows with edits, C blocks of BLOCK tokens, E edits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

__all__ = ["Adjustments", "Edits", "History", "lay_edits"]


@dataclass(frozen=True, slots=True)
class History:
    """Which tokens rows have had, a line a row.

    seen_LW: int32, bit b of word w is token 32 w + b: whether it was in prompt or output.  counts_LV: int32, how often
    it was in the output; means nothing where its bit is not set.  So a row that begins need not clear its counts, and
    what reads a line reads little of it.  strengths_L3: float32, frequency, presence and repetition penalty.
    """

    seen_LW: Tensor
    counts_LV: Tensor
    strengths_L3: Tensor

    @classmethod
    def empty(cls, lines: int, vocabulary: int, device: torch.device) -> History:
        """Make room for lines; a row must write its line of `seen` and its strengths before it is used."""
        return cls(
            torch.zeros((lines, -(-vocabulary // 32)), dtype=torch.int32, device=device),
            torch.empty((lines, vocabulary), dtype=torch.int32, device=device),
            torch.zeros((lines, 3), dtype=torch.float32, device=device),
        )


@dataclass(frozen=True, slots=True)
class Edits:
    """What is added to single tokens: a bias, or -inf for a ban.

    starts_SC: int32 [S, C + 1], where in the lists a row's edits of each block begin, and where the last end.
    tokens_E: int32.  values_E: float32.
    """

    starts_SC: Tensor
    tokens_E: Tensor
    values_E: Tensor

    @classmethod
    def read(cls, words: Tensor, lines: int, blocks: int) -> Edits:
        """Read what `lay_edits` laid out, int32, once it has been sent."""
        room = lines * (blocks + 1)
        half = room + (len(words) - room) // 2
        return cls(words[:room].view(lines, blocks + 1), words[room:half], words[half:].view(torch.float32))


def lay_edits(rows: Sequence[tuple[np.ndarray, np.ndarray]], blocks: int, block: int) -> np.ndarray:
    """Lay out each row's edits, tokens and values, side by side: int32, for `Edits.read`.

    A token may stand there twice.  block: tokens of one, as the sampler cuts a row.
    """
    tokens = np.concatenate([tokens for tokens, _ in rows]).astype(np.int64)
    values = np.concatenate([values for _, values in rows]).astype(np.float32)
    owners = np.repeat(np.arange(len(rows)), [len(tokens) for tokens, _ in rows])
    # A row has one more place than blocks: behind its last block stands its end, which is the next row's start.
    keys = owners * (blocks + 1) + tokens // block
    order = keys.argsort(kind="stable")
    sizes = np.bincount(keys, minlength=len(rows) * (blocks + 1))
    starts = sizes.cumsum() - sizes
    return np.concatenate((starts.astype(np.int32), tokens[order].astype(np.int32), values[order].view(np.int32)))


@dataclass(frozen=True, slots=True)
class Adjustments:
    """What A of N rows want done to their logits, in this order: penalties, mask, edits.

    All int32 [A].  places_A: which of the N.  rows_A: as the worker numbers them.  positions_A: where the token will
    stand.  histories_A, masks_A, edits_A: the line of `history`, `masks_MW` and `edits`; -1 for none.
    history: its rows' new tokens are put on their lines.  masks_MW: int32, a bit a token, as for `masks.apply_bitmask`.
    """

    places_A: Tensor
    rows_A: Tensor
    positions_A: Tensor
    histories_A: Tensor
    masks_A: Tensor
    edits_A: Tensor
    history: History
    masks_MW: Tensor
    edits: Edits
