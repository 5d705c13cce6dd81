"""Keys and values far out of float8's range are brought into it, by a checkpoint's scales or by ours, exactly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from callboard.kernels.kv_pool import FLOAT8
from callboard.models.checkpoint import Checkpoint
from callboard.models.config import read_config
from callboard.models.decoder import Decoder
from callboard.models.kv_scales import KVScales, read_scales, round_up
from callboard.models.loader import load

from .enlarged import APART, KEYS, PREFIX, VALUES, enlarge

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama with biases": {"attention_bias": True},
    "qwen2": {"family": "qwen2"},
    "qwen3": {"family": "qwen3"},
}
# What float8's three digits behind the point cost these models; where keys are cut off it is all.
NEAR, FAR = 0.12, 0.5


def add(folder: Path, scales: dict[str, Tensor]) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | scales, folder / "model.safetensors")


def spelled(keys: str, values: str, layers: int = 3) -> dict[str, Tensor]:
    """Scales that fit what `enlarge` does, as checkpoints have them: a number a layer, no power of two."""
    told: dict[str, Tensor] = {}
    for layer in range(layers):
        told[PREFIX.format(layer) + keys] = torch.tensor(max(KEYS[layer]) * 0.02)
        told[PREFIX.format(layer) + values] = torch.tensor([max(VALUES[layer]) * 0.02])
    return told


def read(folder: Path, device: torch.device, kv_dtype: torch.dtype | None = FLOAT8) -> Decoder:
    model = load(folder, device=device, dtype=torch.float32, kv_dtype=kv_dtype)
    assert isinstance(model, Decoder)
    return model


def error(model: Decoder, drawn: Any, runner: Any, row: Any, dtype: torch.dtype = FLOAT8) -> float:
    """Run a prompt in two chunks and some tokens one by one, and tell how far its logits are from transformers'."""
    rows = runner(model, seed=1, dtype=dtype)
    sequence = row(torch.randint(97, (40,), generator=torch.Generator().manual_seed(5)).tolist())
    for count in (20, 14, *[1] * 6):
        rows.step([(sequence, count)])
    wanted = drawn.wanted(sequence.tokens)
    return float((torch.stack(sequence.logits) - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("family", FAMILIES)
def test_measured_scales_bring_every_layer_into_range(
    pair: Callable[..., Any], runner: Any, row: Any, device: torch.device, family: str
) -> None:
    drawn = pair(3, **FAMILIES[family])
    enlarge(drawn.folder)
    scaled, plain = read(drawn.folder, device), read(drawn.folder, device, None)
    assert error(scaled, drawn, runner, row) < NEAR
    assert error(plain, drawn, runner, row) > FAR
    # Folded, they are exact: in float32 nothing differs from weights that are as they were.
    assert error(scaled, drawn, runner, row, torch.float32) < 1e-5
    assert plain.kv_scales is None
    assert scaled.kv_scales is not None
    assert scaled.kv_scales.source == "measured"
    assert len(set(scaled.kv_scales.keys)) == len(set(scaled.kv_scales.values)) == 3


@pytest.mark.parametrize("family", FAMILIES)
def test_folding_changes_no_bit(
    pair: Callable[..., Any], runner: Any, row: Any, device: torch.device, family: str
) -> None:
    folder = pair(3, **FAMILIES[family]).folder
    enlarge(folder, values=APART)
    logits: list[Tensor] = []
    for kv_dtype in (None, FLOAT8):
        model = load(folder, device=device, dtype=torch.bfloat16, kv_dtype=kv_dtype)
        rows, sequence = runner(model, seed=1, dtype=torch.bfloat16), row(list(range(30)))
        for count in (25, 3, 1, 1):
            rows.step([(sequence, count)])
        logits.append(torch.stack(sequence.logits))
    assert torch.equal(*logits)


def test_each_key_head_has_scales_of_its_own(
    pair: Callable[..., Any], runner: Any, row: Any, device: torch.device
) -> None:
    drawn = pair(4)
    enlarge(drawn.folder, APART, APART)
    model = read(drawn.folder, device)
    assert error(model, drawn, runner, row) < NEAR
    assert model.kv_scales is not None
    assert all(max(heads) / min(heads) > 2**12 for heads in model.kv_scales.keys + model.kv_scales.values)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize(
    ("keys", "values"),
    [
        ("k_scale", "v_scale"),
        ("attn.k_scale", "attn.v_scale"),
        ("k_proj.k_scale", "v_proj.v_scale"),
        ("k_proj.output_scale", "v_proj.output_scale"),
    ],
)
def test_a_checkpoints_scales_are_taken(
    pair: Callable[..., Any], runner: Any, row: Any, device: torch.device, family: str, keys: str, values: str
) -> None:
    drawn = pair(5, **FAMILIES[family])
    enlarge(drawn.folder)
    without = error(read(drawn.folder, device, None), drawn, runner, row, torch.float32)
    add(drawn.folder, spelled(keys, values))
    model = read(drawn.folder, device)
    assert model.kv_scales == KVScales(
        "checkpoint",
        tuple((round_up(max(heads) * 0.02),) * 2 for heads in KEYS),
        tuple((round_up(max(heads) * 0.02),) * 2 for heads in VALUES),
    )
    assert error(model, drawn, runner, row, torch.float32) < 1e-5
    assert error(model, drawn, runner, row) < NEAR
    # Where the pool is not of float8 they are there, and change nothing.
    assert read(drawn.folder, device, None).kv_scales is None
    assert error(read(drawn.folder, device, None), drawn, runner, row, torch.float32) == without


def test_old_checkpoints_have_one_scale_for_both(pair: Callable[..., Any], device: torch.device) -> None:
    drawn = pair(6)
    add(drawn.folder, {PREFIX.format(layer) + "kv_scale": torch.tensor(2.0**-layer) for layer in range(3)})
    scales = read(drawn.folder, device).kv_scales
    assert scales is not None
    assert scales.keys == scales.values == ((1.0, 1.0), (0.5, 0.5), (0.25, 0.25))


def test_a_scale_for_each_key_head(pair: Callable[..., Any], device: torch.device) -> None:
    drawn = pair(6)
    told = {
        PREFIX.format(layer) + name: torch.tensor([0.3, 5]) for layer in range(3) for name in ("k_scale", "v_scale")
    }
    add(drawn.folder, told)
    scales = read(drawn.folder, device).kv_scales
    assert scales is not None
    assert scales.keys == scales.values == ((0.5, 8.0),) * 3


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (torch.tensor(0.0), "v_scale is 0; a scale must be a number above 0"),
        (torch.tensor([-2.0]), "v_scale is -2; a scale must be a number above 0"),
        (torch.tensor(float("nan")), "v_scale is nan; a scale must be a number above 0"),
        (torch.tensor([1.0, float("inf")]), "v_scale is inf; a scale must be a number above 0"),
        (torch.ones(3), r"v_scale has the shape \[3\]; a scale is one number, or one for each of the 2 key heads"),
        (torch.ones(1, 1), r"v_scale has the shape \[1, 1\]"),
        (torch.ones(1, dtype=torch.int64), r"v_scale is stored as I64; allowed: F32, BF16, F16"),
        (None, r"lacks model\.layers\.1\.self_attn\.v_scale, though it holds other scales"),
    ],
)
def test_bad_scales_are_named(pair: Callable[..., Any], scale: Tensor | None, message: str) -> None:
    drawn = pair(6)
    told = spelled("k_scale", "v_scale")
    name = PREFIX.format(1) + "v_scale"
    told.pop(name)
    add(drawn.folder, told if scale is None else told | {name: scale})
    with pytest.raises(ValueError, match=message):
        read(drawn.folder, torch.device("cpu"))
    assert read(drawn.folder, torch.device("cpu"), None).kv_scales is None


def test_scales_of_no_layer_are_unknown_tensors(pair: Callable[..., Any]) -> None:
    drawn = pair(6)
    add(drawn.folder, {PREFIX.format(3) + "k_scale": torch.tensor(1.0)})
    with pytest.raises(ValueError, match=r"holds model\.layers\.3\.self_attn\.k_scale, which this Llama"):
        read(drawn.folder, torch.device("cpu"))


def test_a_config_that_quantises_the_cache_alone_is_read(pair: Callable[..., Any]) -> None:
    folder = pair(6).folder
    file = folder / "config.json"
    content = json.loads(file.read_text())
    told = {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": {"num_bits": 8}}
    file.write_text(json.dumps(content | {"quantization_config": told}))
    assert read_config(folder).layers == 3
    file.write_text(json.dumps(content | {"quantization_config": told | {"config_groups": {"group_0": {}}}}))
    with pytest.raises(ValueError, match="quantised weights are not supported"):
        read_config(folder)


def test_without_scales_none_are_read(pair: Callable[..., Any]) -> None:
    folder = pair(6).folder
    assert read_scales(Checkpoint(folder), read_config(folder)) is None


@pytest.mark.parametrize(
    ("scale", "wanted"), [(1.0, 1.0), (1.0001, 2.0), (0.75, 1.0), (0.25, 0.25), (300.0, 512.0), (1e-9, 2.0**-10)]
)
def test_a_scale_is_rounded_up_to_a_power_of_two(scale: float, wanted: float) -> None:
    assert round_up(scale) == wanted


def test_dummy_weights_are_measured(pair: Callable[..., Any], device: torch.device) -> None:
    folder = pair(6).folder
    models = [load(folder, device=device, load_format="dummy", kv_dtype=FLOAT8) for _ in range(2)]
    assert models[0].kv_scales is not None
    assert models[0].kv_scales.source == "measured"
    assert models[0].kv_scales == models[1].kv_scales  # a restart caches as before


def test_keys_that_are_no_numbers_are_refused(pair: Callable[..., Any]) -> None:
    drawn = pair(6)
    add(drawn.folder, {PREFIX.format(1) + "k_proj.weight": torch.full((16, 48), float("inf"))})
    with pytest.raises(ValueError, match="layer 1 of the model computes keys or values that are not finite in float32"):
        read(drawn.folder, torch.device("cpu"))


def test_float16_that_overflows_is_named(pair: Callable[..., Any]) -> None:
    drawn = pair(6)
    add(drawn.folder, spelled("k_scale", "v_scale") | {PREFIX.format(1) + "k_scale": torch.tensor(1e6)})
    with pytest.raises(ValueError, match=r"1\.qkv\.weight: .* leave the range of torch\.float16"):
        load(drawn.folder, dtype=torch.float16, kv_dtype=FLOAT8)
