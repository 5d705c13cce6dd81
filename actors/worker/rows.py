"""What the worker keeps of each running row, so that a decode step brings only row indices and slots.

On the host: lengths, counts, sampling parameters and which features a row uses; the host knows them without asking the
device.  On the device: slot tables and last tokens, one tensor each, indexed by row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ...kernels.random import key_of
from ..messages import Begin
from ..sampling import SamplingParams
from .device_penalties import DevicePenalties
from .penalties import Penalties
from .prefixes import Prefixes
from .to_device import to_device

if TYPE_CHECKING:
    from llguidance import LLMatcher

__all__ = [
    "BIAS",
    "GRAMMAR",
    "LOGPROB",
    "MINIMUM",
    "MIN_P",
    "PENALTY",
    "RANDOM",
    "SORTED",
    "Extras",
    "Rows",
]

# What a row's sampling needs; bits of Rows.features.
RANDOM = 1  # has a temperature
SORTED = 2  # and a top-k or a top-p
MIN_P = 4
PENALTY = 8
BIAS = 16
MINIMUM = 32  # of new tokens
GRAMMAR = 64
LOGPROB = 128

# As SGLang: below this, dividing by the temperature would only lose the order of the logits.
_GREEDY_BELOW = 1e-6


_NOTHING = np.zeros(0, np.int64)


def _nothing() -> np.ndarray:
    return _NOTHING


@dataclass(slots=True)
class Extras:
    """What only some rows have.

    limit: max_new_tokens.  banned: int64 ids kept out until `minimum` tokens are there.  bias: int64 ids and values,
    float32 if there are any.  forced: int32, tokens its matcher has taken and the row was not given yet.  failure: why
    the row cannot be sampled any more.
    """

    request: int
    top_logprobs: int = 0
    limit: int = 0
    minimum: int = 0
    banned: np.ndarray = field(default_factory=_nothing)
    bias_tokens: np.ndarray = field(default_factory=_nothing)
    bias_values: np.ndarray = field(default_factory=_nothing)
    matcher: LLMatcher | None = None
    forced: np.ndarray | None = None
    failure: str = ""


@dataclass(slots=True)
class Rows:
    """All rows' state.

    lengths, generated: int64 [rows], tokens in the KV pool and tokens sampled.  counting: 0, 1, 2, ... on the host.
    shifts: int64 [rows], how far a row's positions are ahead of its table's columns.
    tables and last_tokens have one line more, number max_rows, which belongs to nobody: padding is written there.
    temperature, top_p, min_p, top_k: on the host too: they are gathered only when another set of rows samples.
    prefixes: where `staged`, the cached slots that wait to travel with the step that begins their rows.
    version: changes whenever a row begins or ends, so that what was gathered for a set of rows is known to be old.
    """

    max_rows: int
    context_length: int
    vocabulary: int
    device: torch.device
    staged: bool = False
    version: int = 0
    prefixes: Prefixes = field(default_factory=Prefixes)
    extras: list[Extras | None] = field(init=False)
    features: np.ndarray = field(init=False)
    lengths: np.ndarray = field(init=False)
    shifts: np.ndarray = field(init=False)
    generated: np.ndarray = field(init=False)
    keys: np.ndarray = field(init=False)
    top_k: np.ndarray = field(init=False)
    counting: Tensor = field(init=False)
    tables: Tensor = field(init=False)
    last_tokens: Tensor = field(init=False)
    temperature: np.ndarray = field(init=False)
    top_p: np.ndarray = field(init=False)
    min_p: np.ndarray = field(init=False)
    penalties: Penalties | DevicePenalties = field(init=False)

    def __post_init__(self) -> None:
        rows, device = self.max_rows, self.device
        self.extras = [None] * rows
        self.features = np.zeros(rows, np.int64)
        self.lengths = np.zeros(rows, np.int64)
        self.shifts = np.zeros(rows, np.int64)
        self.generated = np.zeros(rows, np.int64)
        self.keys = np.zeros(rows, np.int64)
        self.top_k = np.zeros(rows, np.int64)
        self.counting = torch.arange(rows + 2, dtype=torch.int32)
        self.tables = torch.zeros((rows + 1, self.context_length), dtype=torch.int32, device=device)
        self.last_tokens = torch.zeros(rows + 1, dtype=torch.int64, device=device)
        self.temperature = np.ones(rows, np.float32)
        self.top_p = np.ones(rows, np.float64)
        self.min_p = np.zeros(rows, np.float32)
        self.penalties = (DevicePenalties if self.staged else Penalties)(self.vocabulary, device)

    def live(self, row: int) -> Extras:
        extras = self.extras[row]
        assert extras is not None, f"row {row} has not begun"
        return extras

    def begin(self, row: int, begin: Begin, prefix_slots: bytes) -> Extras:
        """Set a row up; its matcher is the caller's to give.  prefix_slots: int32."""
        assert self.extras[row] is None, f"row {row} is in use"
        sampling = begin.sampling
        extras = self.extras[row] = Extras(begin.request, sampling.top_logprobs_num, sampling.max_new_tokens)
        self.version += 1
        self.lengths[row] = known = len(prefix_slots) // 4
        self.shifts[row] = begin.shift
        self.generated[row] = len(begin.output) // 4
        self.keys[row] = key_of(begin.seed)
        features = self._begin_sampling(row, sampling) | self._begin_extras(extras, begin)
        self.features[row] = features
        if features & PENALTY:
            output, context = (np.frombuffer(tokens, np.int32) for tokens in (begin.output, begin.context))
            self.penalties.begin(row, sampling, output, context)
        if known and self.staged:
            self.prefixes.add(row, prefix_slots)
        elif known:
            self.tables[row, :known] = self._tensor(np.frombuffer(prefix_slots, np.int32))
        return extras

    def _begin_sampling(self, row: int, sampling: SamplingParams) -> int:
        features = LOGPROB if sampling.return_logprob or sampling.top_logprobs_num else 0
        if sampling.frequency_penalty or sampling.presence_penalty or sampling.repetition_penalty != 1.0:
            features |= PENALTY
        if sampling.temperature < _GREEDY_BELOW or sampling.top_k == 1:
            return features
        self.temperature[row] = sampling.temperature
        self.top_p[row] = sampling.top_p
        self.min_p[row] = sampling.min_p
        self.top_k[row] = top_k = self.vocabulary if sampling.top_k < 1 else min(sampling.top_k, self.vocabulary)
        if top_k < self.vocabulary or sampling.top_p < 1.0:
            features |= SORTED
        return features | RANDOM | (MIN_P if sampling.min_p > 0.0 else 0)

    def _begin_extras(self, extras: Extras, begin: Begin) -> int:
        features, sampling = 0, begin.sampling
        if sampling.min_new_tokens > 0:
            eos = np.frombuffer(begin.eos, np.int32)
            banned = np.union1d(eos, np.asarray(sampling.stop_token_ids, np.int32))
            extras.minimum = sampling.min_new_tokens
            extras.banned = banned[banned < self.vocabulary].astype(np.int64)
            features |= MINIMUM
        if sampling.logit_bias:
            extras.bias_tokens = np.fromiter(sampling.logit_bias.keys(), np.int64)
            extras.bias_values = np.fromiter(sampling.logit_bias.values(), np.float32)
            features |= BIAS
        return features | (GRAMMAR if sampling.constraint is not None else 0)

    def retire(self, row: int) -> None:
        """Forget a row; one that never began is no error, as a scheduler may retire before its step ran."""
        if self.extras[row] is None:
            return
        if self.features[row] & PENALTY:
            self.penalties.retire(row)
        self.extras[row] = None
        self.features[row] = 0
        self.lengths[row] = 0
        self.version += 1

    def clear(self) -> None:
        for row in range(self.max_rows):
            self.retire(row)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return to_device(array, self.device)
