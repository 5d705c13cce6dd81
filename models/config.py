"""What a model is: its shape and its conventions, read from config.json and generation_config.json."""

from __future__ import annotations

from pathlib import Path

import msgspec

from .families import ARCHITECTURES, FAMILIES, read_windows
from .fields import Fields, read_json
from .rope import Rope, read_rope

__all__ = ["DTYPES", "ModelConfig", "read_config"]

DTYPES = ("float32", "bfloat16", "float16")


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder-only language model.

    heads share key heads in groups of heads / kv_heads.  context_length: how many tokens a sequence may have, rope
    scaling counted in.  windows: how many keys a query of each layer sees, itself included, None being all of them; ()
    if no layer has a window.  qk_norm: each head of queries and keys is normed.  eos_ids end a generation; bos_id, if
    any, begins a prompt.  tied: the output head is the embedding.  dtype: what the weights were saved as.
    """

    architecture: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int
    vocabulary: int
    context_length: int
    norm_epsilon: float
    rope: Rope
    tied: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int | None, ...] = ()
    mlp_bias: bool = False
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    dtype: str = "float32"


def read_config(folder: Path) -> ModelConfig:
    """Read what a model folder says about its model.

    eos_ids come from generation_config.json if it names any, else from config.json.  Raises ValueError that names the
    file, the field, what it holds and what is allowed.
    """
    fields = Fields(str(folder / "config.json"), read_json(folder / "config.json"))
    architecture = _architecture(fields)
    if fields.has("quantization_config") and not _cache_alone(fields.object("quantization_config")):
        raise ValueError(f"{fields.where}: quantization_config is set; quantised weights are not supported")
    fields.choice("hidden_act", "silu", ("silu",))
    conventions = FAMILIES[architecture]
    layers, heads = fields.integer("num_hidden_layers"), fields.integer("num_attention_heads")
    default_kv_heads = _default(fields, "num_key_value_heads", conventions.kv_heads)
    kv_heads = fields.integer("num_key_value_heads", default_kv_heads or heads)
    hidden = fields.integer("hidden_size")
    if heads % kv_heads:
        raise fields.refuse("num_key_value_heads", f"it must divide num_attention_heads ({heads})")
    default_head_dim = _default(fields, "head_dim", conventions.head_dim)
    if hidden % heads and not fields.has("head_dim") and default_head_dim is None:
        raise fields.refuse("hidden_size", f"without head_dim it must be a multiple of num_attention_heads ({heads})")
    head_dim = fields.integer("head_dim", default_head_dim or hidden // heads, minimum=2)
    if head_dim % 2:
        raise fields.refuse("head_dim", "it must be even")
    vocabulary = fields.integer("vocab_size")
    rope = read_rope(fields, fields.integer("max_position_embeddings", conventions.positions))
    eos_ids, bos_id = _special_tokens(folder, fields, vocabulary)
    asked = conventions.qkv_bias == "asked" and fields.flag("attention_bias", default=False)
    return ModelConfig(
        architecture=architecture,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden=hidden,
        intermediate=fields.integer("intermediate_size"),
        vocabulary=vocabulary,
        context_length=rope.context_length,
        norm_epsilon=fields.number("rms_norm_eps", 1e-6),
        rope=rope,
        tied=fields.flag("tie_word_embeddings", default=False),
        qkv_bias=asked or conventions.qkv_bias == "always",
        output_bias=asked,
        qk_norm=conventions.qk_norm,
        windows=read_windows(fields, conventions, layers, rope.context_length),
        mlp_bias=conventions.mlp_bias == "asked" and fields.flag("mlp_bias", default=False),
        eos_ids=eos_ids,
        bos_id=bos_id,
        dtype=fields.choice("dtype" if fields.has("dtype") else "torch_dtype", "float32", DTYPES),
    )


def _architecture(fields: Fields) -> str:
    """Tell the architecture: the one that config.json names, or what its model_type stands for."""
    named = fields.content.get("architectures")
    by_type = {family.model_type: name for name, family in FAMILIES.items()}
    if named is None and fields.content.get("model_type") in by_type:
        return by_type[fields.content["model_type"]]
    if not isinstance(named, list) or len(named) != 1 or named[0] not in ARCHITECTURES:
        raise fields.refuse("architectures", f"allowed: one of {', '.join(ARCHITECTURES)}, in a list")
    return named[0]


def _cache_alone(quantised: Fields) -> bool:
    """Tell whether it is only the KV cache that is quantised: its scales are all that the checkpoint has more."""
    return (
        quantised.content.get("quant_method") == "compressed-tensors" and not quantised.object("config_groups").content
    )


def _default(fields: Fields, name: str, default: int | None) -> int | None:
    """Tell a family's default where config.json is silent; where it says null there is none."""
    return None if name in fields.content else default


def _special_tokens(folder: Path, fields: Fields, vocabulary: int) -> tuple[tuple[int, ...], int | None]:
    """Read the ids that end a generation and the id that begins a prompt."""
    file = folder / "generation_config.json"
    generation = Fields(str(file), read_json(file) if file.exists() else {})
    eos_ids = generation.token_ids("eos_token_id", vocabulary) or fields.token_ids("eos_token_id", vocabulary)
    bos_ids = generation.token_ids("bos_token_id", vocabulary) or fields.token_ids("bos_token_id", vocabulary)
    return eos_ids, bos_ids[0] if bos_ids else None
