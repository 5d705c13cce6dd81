"""Which class runs which architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from .config import ModelConfig
from .decoder import Decoder
from .families import ARCHITECTURES
from .kv_scales import KVScales
from .model import Model
from .parameters import Parameter

__all__ = ["Family", "family"]


class Family(Protocol):
    """Build the models of a family."""

    def parameters(self, config: ModelConfig) -> list[Parameter]:
        """List what a checkpoint must hold and what becomes of it."""
        ...

    def __call__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        *,
        deterministic: bool = False,
        kv_scales: KVScales | None = None,
    ) -> Model:
        """Build a model around its parameters, by their names.

        deterministic: a token's bits depend on no other's.  kv_scales: by what keys and values come out divided.
        """
        ...


def family(architecture: str) -> Family:
    """Return the class for an architecture as config.json names it.  Raises ValueError if there is none."""
    match architecture:
        case "LlamaForCausalLM" | "MistralForCausalLM" | "Qwen2ForCausalLM" | "Qwen3ForCausalLM":
            return Decoder
        case _:
            raise ValueError(f"architecture is {architecture!r}; allowed: {', '.join(ARCHITECTURES)}")
