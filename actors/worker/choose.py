"""How a step's rows are to be sampled: gathered once for a set of rows, and kept while the set stays the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ...kernels.sampling import Draw, Sorting
from .rows import BIAS, GRAMMAR, LOGPROB, MIN_P, MINIMUM, PENALTY, RANDOM, SORTED, Rows
from .to_device import to_device

__all__ = ["Choice", "Chooser"]


@dataclass(frozen=True, slots=True)
class Choice:
    """What N sampled rows need.  Lists hold indices among the N, on the host.

    draw, keys: of the rows with a temperature; keys int64 on the host.  bias: rows, tokens and values, on the device.
    adjusted: those whose logits may be adjusted.  logprobs_L: logprobs, int64, on the device.  top_logprobs: the widest
    asked for.  cuts: whether a row whose logits may be left as they are has a top-k, a top-p or a min-p.
    adjusted_cuts: whether one of `adjusted` has.
    """

    draw: Draw | None
    random: np.ndarray
    keys: np.ndarray
    adjusted: list[int]
    penalized: list[int]
    biased: list[int]
    bias: tuple[Tensor, Tensor, Tensor] | None
    minimum: list[int]
    grammar: list[int]
    logprobs: list[int]
    logprobs_L: Tensor | None
    top_logprobs: int
    cuts: bool
    adjusted_cuts: bool

    @property
    def plain(self) -> bool:
        """Whether nothing but a temperature touches the logits, and only tokens are wanted."""
        return not (self.adjusted or self.logprobs)


class Chooser:
    """Make the Choice of a set of rows, or find it again: batches decode many steps between changes.

    draws: whether choices say how to draw, and with what bias; a device that reads its rows' parameters itself needs
    neither.
    """

    def __init__(self, rows: Rows, *, draws: bool = True) -> None:
        self._rows = rows
        self._draws = draws
        self._key: tuple[int, bytes] | None = None
        self._choice: Choice | None = None

    def choose(self, sampled: np.ndarray) -> Choice:
        """Give the Choice of these rows, int64 [N]."""
        key = (self._rows.version, sampled.tobytes())
        if self._choice is None or key != self._key:
            self._key, self._choice = key, self._make(sampled)
        return self._choice

    def _make(self, sampled: np.ndarray) -> Choice:
        rows = self._rows
        features = rows.features[sampled]

        def having(bit: int) -> list[int]:
            return np.flatnonzero(features & bit).tolist()

        random = np.flatnonzero(features & RANDOM)
        cuts = (features & (SORTED | MIN_P)) != 0
        adjusted = (features & (PENALTY | BIAS | MINIMUM | GRAMMAR)) != 0
        always = (features & (PENALTY | BIAS | GRAMMAR)) != 0  # and not only until there are tokens enough
        logprobs, biased = having(LOGPROB), having(BIAS)
        return Choice(
            draw=self._draw(sampled, features, random) if len(random) and self._draws else None,
            random=random,
            keys=rows.keys[sampled[random]],
            adjusted=np.flatnonzero(adjusted).tolist(),
            penalized=having(PENALTY),
            biased=biased,
            bias=self._bias(sampled, biased) if biased and self._draws else None,
            minimum=having(MINIMUM),
            grammar=having(GRAMMAR),
            logprobs=logprobs,
            logprobs_L=to_device(logprobs, rows.device) if logprobs else None,
            top_logprobs=max((rows.live(int(sampled[index])).top_logprobs for index in logprobs), default=0),
            cuts=bool(np.any(cuts & ~always)),
            adjusted_cuts=bool(np.any(cuts & adjusted)),
        )

    def _draw(self, sampled: np.ndarray, features: np.ndarray, random: np.ndarray) -> Draw:
        rows = self._rows
        drawn, bits = sampled[random], features[random]
        return Draw(
            rows_M=None if len(random) == len(sampled) else self._index(random),
            temperature_M=to_device(rows.temperature[drawn], rows.device),
            min_p_M=to_device(rows.min_p[drawn], rows.device) if np.any(bits & MIN_P) else None,
            sorting=self._sorting(drawn, bits) if np.any(bits & SORTED) else None,
        )

    def _sorting(self, drawn: np.ndarray, bits: np.ndarray) -> Sorting:
        rows = self._rows
        chosen = np.flatnonzero(bits & SORTED)
        top_k = rows.top_k[drawn[chosen]]
        return Sorting(
            rows_S=None if len(chosen) == len(drawn) else self._index(chosen),
            top_k_S=self._index(top_k),
            top_p_S=to_device(rows.top_p[drawn[chosen]], rows.device),
            width=int(top_k.max()),
        )

    def _bias(self, sampled: np.ndarray, biased: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        extras = [self._rows.live(int(sampled[index])) for index in biased]
        return (
            self._index(np.repeat(biased, [len(each.bias_tokens) for each in extras])),
            self._index(np.concatenate([each.bias_tokens for each in extras])),
            to_device(np.concatenate([each.bias_values for each in extras]), self._rows.device),
        )

    def _index(self, values: np.ndarray) -> Tensor:
        return to_device(values.astype(np.int64), self._rows.device)
