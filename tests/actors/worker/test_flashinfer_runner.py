"""Steps over flashinfer's attention: replayed graphs give, to the bit, what kernels launched one by one give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from callboard.actors.sampling import SamplingParams
from callboard.kernels.attention.flashinfer_tools import flashinfer_lacks

from .driver import Driver, floats, read

needs_it = pytest.mark.skipif(
    not torch.cuda.is_available() or flashinfer_lacks() is not None, reason="needs a CUDA device and flashinfer"
)
DEVICE = torch.device("cuda")
SIZES: dict[str, Any] = {
    "vocab_size": 32_000,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 3,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 2048,
    "eos_token_id": 1,
    "tie_word_embeddings": True,
    "architectures": ["LlamaForCausalLM"],
}
ASKED = SamplingParams(temperature=0.0, max_new_tokens=200, ignore_eos=True, return_logprob=True)


def make_driver(folder: Path, *, capture: bool) -> Driver:
    from callboard.actors.worker.device_draw import DeviceDraw
    from callboard.actors.worker.device_runner import DeviceRunner
    from callboard.actors.worker.rows import Rows
    from callboard.kernels.attention.flashinfer_attention import FlashInferAttention
    from callboard.kernels.kv_pool import KVPool
    from callboard.models.loader import load

    model = load(folder, device=DEVICE, dtype=torch.bfloat16, load_format="dummy")
    config = model.config
    shape = config.heads, config.kv_heads, config.head_dim
    pool = KVPool(
        layers=config.layers,
        slots=4096,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        dtype=torch.bfloat16,
        device=DEVICE,
    )
    rows = Rows(8, 2048, config.vocabulary, DEVICE, staged=True)
    attention = FlashInferAttention(*shape, max_rows=8, context_length=2048, device=DEVICE, dtype=torch.bfloat16)
    return Driver(DeviceRunner(model, pool, attention, rows, draw=DeviceDraw(rows), capture=capture), 4096)


def tell(driver: Driver) -> list[tuple[list[int], list[float]]]:
    """Run prompts in chunks, beside rows that decode, then decoding rows that begin and end; their logprobs."""
    told = [driver.step(driver.extend(0, list(range(2, 700)), ASKED), driver.extend(1, [5, 6, 7], ASKED))]
    told += [driver.step(decode=(0, 1)) for _ in range(5)]
    told.append(driver.step(driver.extend(2, list(range(9, 300)), ASKED, sample=False), decode=(1, 0)))
    told.append(driver.step(driver.extend(2, list(range(400, 411)), start=291), decode=(0, 1)))
    told += [driver.step(decode=(0, 1, 2)) for _ in range(40)]
    told.append(driver.step(decode=(2, 1), retire=(0,)))
    told += [driver.step(decode=(2, 1)) for _ in range(5)]
    assert not any(done.failures for done in told)
    return [(read(done.tokens), floats(done.logprobs)) for done in told]


@pytest.mark.gpu
@needs_it
@torch.inference_mode()
def test_a_replayed_step_is_planned_for_its_own_lengths(tmp_path: Path) -> None:
    LlamaConfig(**SIZES).save_pretrained(tmp_path)
    captured = tell(make_driver(tmp_path, capture=True))
    assert captured == tell(make_driver(tmp_path, capture=False))
    assert all(logprobs for _, logprobs in captured[1:])
