"""What a step's rows want done to their logits on a device, gathered on the host and sent in one transfer."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch

from ...kernels.sampler.adjustments import Adjustments, Edits, lay_edits
from .batch import Sampled
from .choose import Choice
from .device_penalties import DevicePenalties
from .masks import Masks
from .rows import Rows
from .staging import Staging
from .to_device import to_device

__all__ = ["Adjuster"]

_NO_WORDS = np.zeros(0, np.int32)


class Adjuster:
    """Gather adjustments for the sampler.  blocks, block: how it cuts a row.

    Bias and bans are sent again only when they or the rows change; masks, places and positions travel with each step.
    """

    def __init__(self, rows: Rows, blocks: int, block: int) -> None:
        self._rows = rows
        self._blocks = blocks
        self._block = block
        self._staging = Staging(rows.device)
        self._none = Edits.read(torch.zeros(0, dtype=torch.int32, device=rows.device), 0, blocks)
        self._edits: tuple[Choice, list[int], Edits, np.ndarray] | None = None

    def gather(
        self, sampled: Sampled, choice: Choice, surplus: Collection[int], masks: Masks | None, banned: list[int]
    ) -> Adjustments | None:
        """Name what is done to which rows; None if nothing is.

        surplus: indices, among the sampled rows, of those whose tokens nobody wants.  banned: of those that may not
        end yet.
        """
        penalties = self._rows.penalties
        assert isinstance(penalties, DevicePenalties), "rows of a device"
        lines_3N = np.full((3, len(sampled.rows)), -1, np.int32)
        if choice.penalized:
            lines_3N[0, choice.penalized] = penalties.lines([sampled.listed[index] for index in choice.penalized])
        words, width = _NO_WORDS, 1
        if masks is not None:
            lines_3N[1, masks.indices] = np.arange(len(masks.indices), dtype=np.int32)
            words, width = _side_by_side(masks).reshape(-1), masks.words_RW.shape[1]
        edits, lines_3N[2] = self._edit(sampled, choice, banned)
        lines_3N[:, list(surplus)] = -1
        places = np.flatnonzero(lines_3N.max(axis=0) >= 0)
        if not len(places):
            return None
        parts = (places, sampled.rows[places], sampled.positions[places], *lines_3N[:, places], words)
        *sent, words = self._staging.send([part.astype(np.int32, copy=False) for part in parts])
        return Adjustments(*sent, history=penalties.history(), masks_MW=words.view(-1, width), edits=edits)

    def _edit(self, sampled: Sampled, choice: Choice, banned: list[int]) -> tuple[Edits, np.ndarray]:
        """Give all edits, and the line of each sampled row, -1 for none."""
        last = self._edits
        if last is not None and last[0] is choice and last[1] == banned:
            return last[2], last[3]
        lines_N = np.full(len(sampled.rows), -1, np.int32)
        edits, laid = self._none, list[tuple[np.ndarray, np.ndarray]]()
        bans = set(banned)
        for index in sorted(bans.union(choice.biased)):
            extras = self._rows.live(sampled.listed[index])
            tokens, values = [extras.bias_tokens], [extras.bias_values]
            if index in bans:
                tokens.append(extras.banned)
                values.append(np.full(len(extras.banned), -np.inf, np.float32))
            lines_N[index] = len(laid)
            laid.append((np.concatenate(tokens), np.concatenate(values)))
        if laid:
            words = to_device(lay_edits(laid, self._blocks, self._block), self._rows.device)
            edits = Edits.read(words, len(laid), self._blocks)
        self._edits = choice, banned, edits, lines_N
        return edits, lines_N


def _side_by_side(masks: Masks) -> np.ndarray:
    """Give the masks' lines; without copying them, 4 MB for 256 rows, where they stand in order already."""
    lines = masks.lines
    if lines == list(range(lines[0], lines[0] + len(lines))):
        return masks.words_RW[lines[0] : lines[0] + len(lines)]
    return masks.words_RW[lines]
