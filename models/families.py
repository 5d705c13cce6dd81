"""Where the families of decoders differ: what their names imply, and what their config.json leaves out."""

from __future__ import annotations

from typing import Literal

import msgspec

from .fields import Fields

__all__ = ["ARCHITECTURES", "FAMILIES", "Conventions", "read_windows"]


class Conventions(msgspec.Struct, frozen=True, kw_only=True):
    """What an architecture stands for.

    model_type: its name in a config.json without `architectures`.  positions, kv_heads, head_dim, window: what
    transformers takes where config.json is silent; None is what follows from the other fields.  qkv_bias: whether the
    query, key and value projections have a bias; "asked": if attention_bias is set, and then the output projection too.
    mlp_bias: "asked": if mlp_bias is set.  qk_norm: whether each head of queries and keys is normed.  windows:
    "switched" slide from layer max_window_layers on if use_sliding_window is set, "every" slides in each layer.
    """

    model_type: str
    positions: int
    kv_heads: int | None = None
    head_dim: int | None = None
    window: int | None = None
    qkv_bias: Literal["never", "asked", "always"] = "never"
    mlp_bias: Literal["never", "asked"] = "never"
    qk_norm: bool = False
    windows: Literal["never", "switched", "every"] = "never"


FAMILIES = {
    "LlamaForCausalLM": Conventions(model_type="llama", positions=2048, qkv_bias="asked", mlp_bias="asked"),
    "MistralForCausalLM": Conventions(
        model_type="mistral", positions=131_072, kv_heads=8, window=4096, windows="every"
    ),
    "Qwen2ForCausalLM": Conventions(
        model_type="qwen2", positions=32_768, kv_heads=32, window=4096, qkv_bias="always", windows="switched"
    ),
    "Qwen3ForCausalLM": Conventions(
        model_type="qwen3",
        positions=32_768,
        kv_heads=32,
        head_dim=128,
        window=4096,
        qkv_bias="asked",
        qk_norm=True,
        windows="switched",
    ),
}
ARCHITECTURES = tuple(FAMILIES)
SLIDING, FULL = "sliding_attention", "full_attention"


def read_windows(fields: Fields, conventions: Conventions, layers: int, context_length: int) -> tuple[int | None, ...]:
    """Tell how many keys a query of each layer sees, itself included; None is all.  () if no window hides anything."""
    if conventions.windows == "never":
        return ()
    if conventions.windows == "switched" and not fields.flag("use_sliding_window", default=False):
        return ()
    # null says that there is no window, silence that it is the family's own.
    silent = "sliding_window" not in fields.content
    if not silent and not fields.has("sliding_window"):
        return ()
    window = fields.integer("sliding_window", conventions.window)
    if window >= context_length:
        return ()
    windows = tuple(window if slides else None for slides in _sliding(fields, conventions, layers))
    return windows if any(windows) else ()


def _sliding(fields: Fields, conventions: Conventions, layers: int) -> list[bool]:
    """Tell which layers have a window."""
    if conventions.windows == "every":
        return [True] * layers
    if not fields.has("layer_types"):
        first = fields.integer("max_window_layers", 28, minimum=0)
        return [layer >= first for layer in range(layers)]
    types = fields.content["layer_types"]
    if (
        not isinstance(types, list)
        or len(types) != layers
        or any(kind not in {SLIDING, FULL} for kind in map(str, types))
    ):
        raise fields.refuse("layer_types", f"it must be a list of {layers}, each {SLIDING!r} or {FULL!r}")
    return [kind == SLIDING for kind in types]
