"""What every model family offers."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from ..kernels.attention.interface import Attention, Plan
from ..kernels.kv_pool import KVPool
from .config import ModelConfig
from .kv_scales import KVScales

__all__ = ["Model"]


class Model(Protocol):
    """A language model over paged keys and values."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def kv_scales(self) -> KVScales | None:
        """Tell what keys and values are stored divided by; None is by nothing."""
        ...

    def forward(
        self,
        tokens_T: Tensor,
        positions_T: Tensor,
        slots_T: Tensor,
        pool: KVPool,
        attention: Attention,
        plan: Plan,
        wanted_N: Tensor | None = None,
    ) -> Tensor:
        """Run a step's new tokens through all layers and store their keys and values in slots_T.

        tokens_T, positions_T, slots_T: int64 [T], on the model's device.  Returns hidden states, [T, hidden], normed.
        wanted_N: int64, whose hidden states are wanted, [N, hidden] then; None for all.  The others may leave the last
        layer when it has stored their keys and values.
        """
        ...

    def logits(self, hidden_NC: Tensor) -> Tensor:
        """Score the vocabulary behind some of the tokens: [N, hidden] -> float32 [N, vocabulary]."""
        ...
