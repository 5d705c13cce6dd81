"""Folders of true shapes are models: their sizes are their namesakes', and an engine starts from one."""

from __future__ import annotations

from math import prod
from pathlib import Path

import anyio
import pytest

from callboard.actors.engine import Engine
from callboard.actors.sampling import SamplingParams
from callboard.bench.shapes import SHAPES, write_shape
from callboard.models.config import read_config
from callboard.models.registry import family

SHRUNKEN = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 3000,
    "max_position_embeddings": 256,
}


# Parameters as transformers counts those of the models on the hub.
@pytest.mark.parametrize(
    ("name", "parameters"),
    [("Llama-3.1-8B", 8_030_261_248), ("Llama-3.2-1B", 1_235_814_400), ("Qwen3-0.6B", 596_049_920)],
)
def test_a_shape_is_as_large_as_its_namesake(tmp_path: Path, name: str, parameters: int) -> None:
    config = read_config(write_shape(tmp_path, name))
    listed = family(config.architecture).parameters(config)
    assert sum(prod(parameter.stacked_shape) for parameter in listed) == parameters


@pytest.mark.anyio
@pytest.mark.parametrize("name", SHAPES)
async def test_an_engine_starts_from_a_shrunken_shape(tmp_path: Path, name: str) -> None:
    folder = write_shape(tmp_path, name, **SHRUNKEN)
    with anyio.fail_after(60):
        async with Engine(str(folder), load_format="dummy", kv_slots=300, max_rows=4) as engine:
            done = await engine.complete("Any text: ümlaut", SamplingParams(max_new_tokens=20, temperature=1.0, seed=1))
    assert len(done.tokens) == 20
    assert len(done.text) > 40, "tokens are words"


def test_an_unknown_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shape is 'GPT-9'; allowed: Llama-3.1-8B, "):
        write_shape(tmp_path, "GPT-9")
    with pytest.raises(ValueError, match="vocab_size is 100; it must be at least 256"):
        write_shape(tmp_path, "Qwen3-0.6B", vocab_size=100)
