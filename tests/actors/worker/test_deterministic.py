"""With deterministic=True a request's tokens are the same whatever is beside it, however it is cut and cached.

Without a GPU the kernels run in Triton's interpreter, on a tiny model and a few trials.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Qwen3Config

from callboard.actors.engine_options import EngineOptions
from callboard.actors.errors import InvalidRequest
from callboard.actors.sampling import SamplingParams
from callboard.actors.worker.build import build_runner
from callboard.actors.worker.runner import Runner

from ...kernels.triton_device import DEVICE, GPU
from .driver import Driver, options, read

pytest.importorskip("triton")

SLOTS = 1 << 16 if GPU else 1024
OURS = {
    "greedy": SamplingParams(temperature=0.0),
    "sampled": SamplingParams(temperature=1.0),
    "cut": SamplingParams(temperature=0.9, top_k=50, top_p=0.95),
}
STRANGERS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=0.7, top_p=0.9, min_p=0.01),
    SamplingParams(temperature=0.0, frequency_penalty=0.5),
]


class Trial:
    """One request on row 0, cut at random and beside random others on rows 1 to 5; row 7 may have cached its prefix."""

    def __init__(self, runner: Runner, seed: int, vocabulary: int, longest: int) -> None:
        self.driver, self.random = Driver(runner, SLOTS), random.Random(seed)
        self.vocabulary, self.longest = vocabulary, longest
        self.strangers: set[int] = set()

    def run(self, prompt: list[int], sampling: SamplingParams, count: int) -> list[int]:
        driver, chance, tokens = self.driver, self.random, list[int]()
        begun = done = chance.choice([0, 0, chance.randrange(1, len(prompt))])
        if begun:
            driver.step(driver.extend(7, prompt[:begun], sampling, sample=False))
        while len(tokens) < count:
            extends, decodes, retired = self._strangers()
            if done < len(prompt):
                end = chance.randrange(done, len(prompt)) + 1
                first: dict[str, Any] = {"prefix_slots": driver.slots[7][:begun] if begun else None, "seed": 11}
                mine = driver.extend(
                    0,
                    prompt[done:end],
                    sampling if done == begun else None,
                    start=done,
                    sample=end == len(prompt),
                    **(first if done == begun else {}),
                )
                extends.insert(chance.randrange(len(extends) + 1), mine)
                done = end
            else:
                decodes.insert(chance.randrange(len(decodes) + 1), 0)
            told = driver.step(*extends, decode=tuple(decodes), retire=tuple(retired))
            assert not told.failures
            tokens += [token for row, token in zip(read(told.rows), read(told.tokens), strict=True) if row == 0]
        driver.step(retire=(0, *self.strangers, *([7] if begun else [])))
        return tokens

    def _strangers(self) -> tuple[list[Any], list[int], list[int]]:
        """Let others begin, decode or end."""
        chance = self.random
        extends, decodes, retired = list[Any](), list[int](), list[int]()
        for row in range(1, 6):
            if row not in self.strangers:
                if chance.random() < 0.4:
                    prompt = [chance.randrange(self.vocabulary) for _ in range(chance.randrange(1, self.longest))]
                    extends.append(self.driver.extend(row, prompt, chance.choice(STRANGERS), seed=chance.randrange(99)))
                    self.strangers.add(row)
            elif chance.random() < 0.15:
                retired.append(row)
                self.strangers.remove(row)
            elif chance.random() < 0.8:
                decodes.append(row)
        return extends, decodes, retired


def check(runner: Runner, vocabulary: int, sampling: SamplingParams, *, prompt: int, count: int, trials: int) -> None:
    chance = random.Random(prompt)
    tokens = [chance.randrange(vocabulary) for _ in range(prompt)]
    unique = {tuple(Trial(runner, seed, vocabulary, prompt).run(tokens, sampling, count)) for seed in range(trials)}
    assert len(unique) == 1


@pytest.fixture
def tiny_runner(tiny: Path) -> Runner:
    from callboard.actors.worker.device_draw import DeviceDraw
    from callboard.actors.worker.device_runner import DeviceRunner
    from callboard.actors.worker.rows import Rows
    from callboard.kernels.attention.invariant_attention import InvariantAttention, InvariantTuning
    from callboard.kernels.kv_pool import KVPool
    from callboard.models.loader import load

    with torch.inference_mode():
        model = load(tiny, device=DEVICE, dtype=torch.float32, deterministic=True)
        shape = (model.config.heads, model.config.kv_heads, model.config.head_dim)
        pool = KVPool(
            layers=2, slots=SLOTS, kv_heads=shape[1], head_dim=shape[2], dtype=torch.float32, device=DEVICE
        )  # fmt: skip
        tuning = InvariantTuning(keys=16, part=16, lines=64)
        attention = InvariantAttention(*shape, dtype=torch.float32, device=DEVICE, tuning=tuning)
        rows = Rows(8, 64, model.config.vocabulary, DEVICE, staged=True)
        return DeviceRunner(model, pool, attention, rows, draw=DeviceDraw(rows), capture=GPU)


@torch.inference_mode()
def test_a_tiny_model_gives_one_output(tiny_runner: Runner) -> None:
    check(tiny_runner, 256, OURS["sampled"], prompt=14, count=2, trials=50 if GPU else 2)


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Runner]:
    """Return a function that makes a runner of random weights, as a worker is made."""

    def make(config: Any) -> Runner:
        config.save_pretrained(tmp_path)
        runner, _ = build_runner(
            options(
                tmp_path, device="cuda", dtype="bfloat16", load_format="dummy", deterministic=True, kv_slots=SLOTS,
                context_length=2048,
            ),
            None,
        )  # fmt: skip
        return runner

    return make


SIZES: dict[str, Any] = {
    "vocab_size": 32_000,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 2048,
    "eos_token_id": 1,
    "tie_word_embeddings": True,
}


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3ForCausalLM"])
@torch.inference_mode()
def test_fifty_mixed_batches_give_one_output(made: Callable[..., Runner], architecture: str) -> None:
    kind = LlamaConfig if architecture.startswith("Llama") else Qwen3Config
    runner = made(kind(**SIZES, architectures=[architecture]))
    for sampling in OURS.values():
        check(runner, 32_000, sampling, prompt=400, count=12, trials=50)


def test_a_cpu_and_the_reference_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="deterministic.*needs a GPU"):
        EngineOptions(deterministic=True).on("cpu")
    with pytest.raises(InvalidRequest, match="attention.*must be 'auto' or 'triton'"):
        EngineOptions(deterministic=True, attention="reference").on("cuda")
    assert EngineOptions(deterministic=True).on("cuda").deterministic
    with pytest.raises(ValueError, match="deterministic is True; that needs a GPU"):
        options(tmp_path, deterministic=True).verify()
    with pytest.raises(ValueError, match="attention is 'reference'; with deterministic=True"):
        options(tmp_path, device="cuda", deterministic=True, attention="reference").verify()


def test_a_large_gpu_computes_more_rows_at_once_unless_told() -> None:
    assert [EngineOptions().on("cuda", size << 30).max_rows for size in (24, 80)] == [256, 1024]
    assert EngineOptions(max_rows=8).on("cuda", 80 << 30).max_rows == 8
    assert EngineOptions().on("cpu").max_rows == 64
