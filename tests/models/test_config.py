"""What config.json and generation_config.json say, in transformers' words of yesterday and today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from callboard.models.config import ModelConfig, read_config
from callboard.models.registry import family
from callboard.models.rope import Rope

SMALLEST: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def read(folder: Path, generation: dict[str, Any] | None = None, **changes: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(SMALLEST | changes))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return read_config(folder)


def test_what_is_left_out_is_as_in_transformers(tmp_path: Path) -> None:
    assert read(tmp_path) == ModelConfig(
        architecture="LlamaForCausalLM",
        layers=2,
        heads=4,
        kv_heads=4,
        head_dim=16,
        hidden=64,
        intermediate=96,
        vocabulary=100,
        context_length=512,
        norm_epsilon=1e-6,
        rope=Rope(context_length=512, trained_length=512),
    )


def test_everything_that_can_be_said_is_heard(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        num_key_value_heads=2,
        head_dim=24,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        attention_bias=True,
        mlp_bias=True,
        torch_dtype="bfloat16",
        bos_token_id=1,
        eos_token_id=[2, 3],
    )
    assert (config.kv_heads, config.head_dim, config.norm_epsilon) == (2, 24, 1e-5)
    assert (config.tied, config.qkv_bias, config.output_bias, config.mlp_bias) == (True, True, True, True)
    assert (config.dtype, config.bos_id, config.eos_ids) == ("bfloat16", 1, (2, 3))


def test_model_type_stands_in_for_a_missing_architecture(tmp_path: Path) -> None:
    assert read(tmp_path, architectures=None, model_type="llama").architecture == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [("mistral", "MistralForCausalLM"), ("qwen2", "Qwen2ForCausalLM"), ("qwen3", "Qwen3ForCausalLM")],
)
def test_a_family_brings_its_conventions(tmp_path: Path, model_type: str, architecture: str) -> None:
    changes: dict[str, Any] = {"hidden_size": 8192, "num_attention_heads": 64}
    (tmp_path / "config.json").write_text(
        json.dumps(
            {name: value for name, value in SMALLEST.items() if name != "max_position_embeddings"}
            | {"architectures": None, "model_type": model_type, "attention_bias": True}
            | changes
        )
    )
    config, peer = read_config(tmp_path), AutoConfig.for_model(model_type, **changes)
    assert config.architecture == architecture
    assert (config.kv_heads, config.head_dim, config.context_length) == (
        peer.num_key_value_heads,
        peer.head_dim if hasattr(peer, "head_dim") else 128,
        peer.max_position_embeddings,
    )
    assert (config.qkv_bias, config.output_bias, config.qk_norm) == {
        "mistral": (False, False, False),
        "qwen2": (True, False, False),
        "qwen3": (True, True, True),
    }[model_type]
    assert config.windows == ((4096, 4096) if model_type == "mistral" else ())


QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "use_sliding_window": True,
    "sliding_window": 100,
    "num_key_value_heads": 4,
}


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        (QWEN | {"max_window_layers": 1}, (None, 100)),
        (QWEN | {"max_window_layers": 0}, (100, 100)),
        (QWEN | {"max_window_layers": 2}, ()),
        (QWEN, ()),
        (QWEN | {"max_window_layers": 0, "use_sliding_window": False}, ()),
        (QWEN | {"max_window_layers": 0, "sliding_window": None}, ()),
        (QWEN | {"max_window_layers": 0, "sliding_window": 512}, ()),
        (QWEN | {"layer_types": ["sliding_attention", "full_attention"]}, (100, None)),
        (QWEN | {"architectures": ["MistralForCausalLM"]}, (100, 100)),
        (QWEN | {"architectures": ["MistralForCausalLM"], "sliding_window": None}, ()),
        (QWEN | {"architectures": ["LlamaForCausalLM"]}, ()),
    ],
    ids=str,
)
def test_each_layer_has_its_window(tmp_path: Path, changes: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert read(tmp_path, **changes).windows == windows


@pytest.mark.parametrize(
    ("generation", "eos_ids", "bos_id"),
    [
        ({"eos_token_id": [7, 8], "bos_token_id": 5}, (7, 8), 5),
        ({"eos_token_id": 7}, (7,), 1),
        ({"eos_token_id": 0}, (0,), 1),
        ({}, (2,), 1),
        ({"eos_token_id": None}, (2,), 1),
        (None, (2,), 1),
    ],
)
def test_generation_config_counts_before_config(
    tmp_path: Path, generation: dict[str, Any] | None, eos_ids: tuple[int, ...], bos_id: int
) -> None:
    config = read(tmp_path, generation, eos_token_id=2, bos_token_id=1)
    assert (config.eos_ids, config.bos_id) == (eos_ids, bos_id)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 5e5, "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 128}},
        {"rope_theta": 5e5, "rope_scaling": LLAMA3, "original_max_position_embeddings": 128},
        {"rope_parameters": LLAMA3 | {"rope_theta": 5e5, "original_max_position_embeddings": 128}},
    ],
    ids=["before transformers 5", "with the length outside", "transformers 5"],
)
def test_rope_is_read_wherever_it_stands(tmp_path: Path, changes: dict[str, Any]) -> None:
    rope = read(tmp_path, **changes).rope
    assert rope == Rope(scaling="llama3", theta=5e5, context_length=512, trained_length=128, factor=8.0)


@pytest.mark.parametrize(
    ("scaling", "context_length"),
    [
        ({"type": "linear", "factor": 4.0}, 2048),
        ({"type": "dynamic", "factor": 2.0}, 1024),
        ({"type": "linear", "factor": 0.5}, 512),
        (LLAMA3 | {"original_max_position_embeddings": 128}, 512),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}, 2048),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}, 512),
        ({"type": "yarn", "original_max_position_embeddings": 128}, 512),
    ],
    ids=str,
)
def test_the_context_length_counts_the_scaling_in(tmp_path: Path, scaling: dict[str, Any], context_length: int) -> None:
    assert read(tmp_path, rope_scaling=scaling).context_length == context_length


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"architectures": ["MambaForCausalLM"]}, r"architectures is \['Mamba.*allowed: one of LlamaForCausalLM"),
        ({"architectures": None}, "architectures is missing; allowed: one of LlamaForCausalLM"),
        ({"hidden_size": None}, "hidden_size is missing; it must be an integer of at least 1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; it must be an integer of at least 1"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True; it must be an integer"),
        ({"vocab_size": "many"}, "vocab_size is 'many'; it must be an integer"),
        ({"num_key_value_heads": 3}, r"num_key_value_heads is 3; it must divide num_attention_heads \(4\)"),
        ({"hidden_size": 66}, "hidden_size is 66; without head_dim it must be a multiple"),
        ({"head_dim": 15}, "head_dim is 15; it must be even"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0; it must be a number above 0"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; allowed: silu"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'; it must be true or false"),
        ({"torch_dtype": "int8"}, "torch_dtype is 'int8'; allowed: float32, bfloat16, float16"),
        ({"eos_token_id": 100}, "eos_token_id is 100; it must be a token id, or a list of them, from 0 to 99"),
        ({"bos_token_id": [1, "x"]}, r"bos_token_id is \[1, 'x'\]; it must be a token id"),
        ({"quantization_config": {"bits": 4}}, "quantised weights are not supported"),
        ({"rope_scaling": {"type": "longrope"}}, "rope_scaling: type is 'longrope'; allowed: default, linear"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling: factor is missing; it must be a number above 0"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'; it must be an object"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 0.5}}, "high_freq_factor is 0.5; it must be above low_freq_"),
        ({"rope_scaling": {"type": "yarn", "factor": 2, "beta_fast": 0.5}}, "beta_fast is 0.5; it must be at least"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; only 1 is supported"),
        (QWEN | {"sliding_window": 0}, "sliding_window is 0; it must be an integer of at least 1"),
        (QWEN | {"use_sliding_window": 1}, "use_sliding_window is 1; it must be true or false"),
        (QWEN | {"layer_types": ["full_attention"]}, r"layer_types is \['full.*it must be a list of 2, each 'sliding"),
        (QWEN | {"layer_types": ["full_attention", {}]}, "layer_types is .*; it must be a list of 2, each 'sliding"),
        ({"rope_theta": -1}, "rope_theta is -1; it must be a number above 0"),
    ],
    ids=str,
)
def test_a_complaint_names_the_field_what_is_given_and_what_is_allowed(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        read(tmp_path, **changes)
    assert str(tmp_path / "config.json") in str(caught.value)


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config\.json does not exist; a model folder"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json does not hold a JSON object"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"config\.json does not hold a JSON object"):
        read_config(tmp_path)


def test_a_complaint_about_the_generation_config_names_that_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"generation_config\.json: eos_token_id is -1"):
        read(tmp_path, {"eos_token_id": -1})


def test_an_architecture_without_a_family_is_refused() -> None:
    with pytest.raises(ValueError, match="architecture is 'Mamba'; allowed: LlamaForCausalLM"):
        family("Mamba")
