"""Tiny random models, in transformers' hands and in ours."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from callboard.kernels.attention.interface import AttentionBatch
from callboard.kernels.attention.reference import ReferenceAttention
from callboard.kernels.kv_pool import KVPool
from callboard.models.decoder import Decoder
from callboard.models.loader import load

GPU = torch.cuda.is_available()


@dataclass
class Row:
    """A sequence in the making: its tokens, the slots of those computed, and the logits behind each."""

    tokens: list[int]
    slots: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)


class Runner:
    """Run rows through a model over one pool, whose slots are handed out in random order."""

    def __init__(self, model: Decoder, seed: int, slots: int = 600, dtype: torch.dtype = torch.float32) -> None:
        config = model.config
        self.model = model
        self.device = model.embedding_VC.device
        self.pool = KVPool(
            layers=config.layers,
            slots=slots,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            dtype=dtype,
            device=self.device,
        )
        self.attention = ReferenceAttention(config.heads, config.kv_heads, config.head_dim, windows=config.windows)
        self.free = random.Random(seed).sample(range(slots), slots)

    def share(self, row: Row, length: int, tokens: list[int]) -> Row:
        """Begin a row whose first `length` tokens another row has computed."""
        return Row(row.tokens[:length] + tokens, row.slots[:length], row.logits[:length])

    @torch.inference_mode()
    def step(self, work: list[tuple[Row, int]]) -> None:
        """Compute the next n tokens of each of these rows, in one forward pass."""
        tokens: list[int] = []
        positions: list[int] = []
        new_slots: list[int] = []
        starts = [0]
        for row, count in work:
            done = len(row.slots)
            tokens += row.tokens[done : done + count]
            positions += range(done, done + count)
            row.slots += [self.free.pop() for _ in range(count)]
            new_slots += row.slots[done:]
            starts.append(starts[-1] + count)
        lengths = [len(row.slots) for row, _ in work]
        # Behind a row's length stands rubbish: nothing may look at it.
        table_RL = torch.full((len(work), max(lengths) + 3), -(10**6))
        for number, (row, _) in enumerate(work):
            table_RL[number, : len(row.slots)] = torch.tensor(row.slots)
        table_RL = table_RL.to(self.device)
        slots_T, positions_T, tokens_T = (
            torch.tensor(each, device=self.device) for each in (new_slots, positions, tokens)
        )
        starts_R1 = torch.tensor(starts, dtype=torch.int32)
        batch = AttentionBatch(starts_R1, [count for _, count in work], lengths, table_RL, slots_T, positions_T)
        plan = self.attention.plan(batch)
        hidden = self.model.forward(tokens_T, positions_T, slots_T, self.pool, self.attention, plan)
        logits = self.model.logits(hidden).cpu()
        for number, (row, _) in enumerate(work):
            row.logits += logits[starts[number] : starts[number + 1]].unbind(0)


@dataclass
class Pair:
    """The same weights twice."""

    folder: Path
    peer: PreTrainedModel
    model: Decoder

    @torch.inference_mode()
    def wanted(self, tokens: list[int]) -> Tensor:
        """What transformers computes for a whole sequence at once: [tokens, vocabulary]."""
        return self.peer(torch.tensor([tokens])).logits[0]

    def check(self, row: Row) -> None:
        """Hold a row's logits against transformers'."""
        assert len(row.logits) == len(row.slots) > 0
        torch.testing.assert_close(
            torch.stack(row.logits), self.wanted(row.tokens[: len(row.slots)]), rtol=0, atol=1e-4
        )


TINY: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    # Far larger than in training, so that logits spread and a wrong one shows.
    "initializer_range": 0.15,
}


FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


@pytest.fixture(
    params=["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not GPU, reason="no GPU")])]
)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture
def pair(tmp_path: Path, device: torch.device) -> Callable[..., Pair]:
    """Return a function that draws a model from a seed; arguments change its config."""

    def draw(seed: int, saved_as: torch.dtype = torch.float32, family: str = "llama", **changes: Any) -> Pair:
        torch.manual_seed(seed)
        config_class, model_class = FAMILIES[family]
        peer = model_class(config_class(**(TINY | changes))).eval()
        with torch.no_grad():
            for name, parameter in peer.named_parameters():
                if name.endswith("bias") or "norm" in name:
                    parameter.add_(torch.randn_like(parameter) * 0.2)
        peer.to(saved_as).save_pretrained(tmp_path)
        if saved_as != torch.float32:
            # Read back, not cast back: casting a module cuts its rope frequencies too.
            peer = model_class.from_pretrained(tmp_path, dtype=torch.float32)
        return Pair(tmp_path, peer, _load(tmp_path, device))

    return draw


def _load(folder: Path, device: torch.device) -> Decoder:
    model = load(folder, device=device, dtype=torch.float32)
    assert isinstance(model, Decoder)
    return model


@pytest.fixture
def runner() -> type[Runner]:
    return Runner


@pytest.fixture
def row() -> type[Row]:
    return Row
