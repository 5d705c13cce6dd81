"""The decoder that Llama, Qwen2, Qwen3 and Mistral share; the config says where they differ.

Shape suffixes:  T new tokens of the step    N tokens whose logits are wanted    C hidden size
                 H query heads    K key heads    D head_dim    P = D / 2 rotary pairs    F intermediate size
                 V vocabulary
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional

from ..kernels.attention.interface import Attention, Plan
from ..kernels.kv_pool import KVPool
from ..kernels.native.step import LayerWeights, NativeStep, Shape, native_step
from ..kernels.rope import rotate_and_store_
from .config import ModelConfig
from .kv_scales import KVScales, fold_
from .layers import Linear, Norm, Residual, linear
from .parameters import Parameter, Source
from .rope import rotations

__all__ = ["Decoder"]


class Decoder:
    """A stack of layers: embed, attend and transform as often as there are layers, norm, score.

    forward and logits wait for nothing on a device and allocate by the shapes of their arguments alone, so a CUDA graph
    can hold them.
    deterministic: a token's bits depend neither on the tokens beside it nor on their number; needs Triton.
    kv_scales: what keys and values are stored divided by, for a pool of float8; folded into the weights, in place.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        *,
        deterministic: bool = False,
        kv_scales: KVScales | None = None,
    ) -> None:
        self.config, self.kv_scales = config, kv_scales
        if kv_scales is not None:
            fold_(config, weights, kv_scales)
        self.embedding_VC = weights["embedding"]
        self.layers = [Layer(config, number, weights, deterministic=deterministic) for number in range(config.layers)]
        self.norm = Norm(weights["norm"], config.norm_epsilon)
        head_CV = _head(config, weights, deterministic=deterministic)
        self.head = linear(head_CV, deterministic=deterministic)
        self.rotations_LP = rotations(config.rope, config.head_dim, self.embedding_VC.device)
        self.native = None if deterministic else _native(config, weights, head_CV, self.rotations_LP)

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
        x_TC = functional.embedding(tokens_T, self.embedding_VC)
        if self.native is not None and self.native.takes(pool, plan):
            return self.native.forward_(x_TC, positions_T, pool, plan, wanted_N)
        residual = Residual(x_TC)
        for layer in self.layers:
            attended_TX = layer.attend(residual, self.rotations_LP, positions_T, slots_T, pool, attention, plan)
            if layer is self.layers[-1] and wanted_N is not None:
                # What the others are for, their keys and values, is in the pool.
                if not len(wanted_N):
                    return x_TC[:0]
                residual.keep(wanted_N)
                attended_TX = attended_TX.index_select(0, wanted_N)
            layer.output.add_to_(residual, attended_TX)
            layer.transform_(residual)
        return residual.normed(self.norm)

    def logits(self, hidden_NC: Tensor) -> Tensor:
        if self.native is not None:
            return self.native.logits(hidden_NC)
        return self.head.scores(hidden_NC)

    @staticmethod
    def parameters(config: ModelConfig) -> list[Parameter]:
        """List what a checkpoint must hold and what becomes of it."""
        C, V = config.hidden, config.vocabulary
        listed = [
            Parameter("embedding", (Source("model.embed_tokens.weight", (V, C)),)),
            Parameter("norm", (Source("model.norm.weight", (C,)),), initial="ones"),
        ]
        if not config.tied:
            listed.append(Parameter("head", (Source("lm_head.weight", (V, C)),), transposed=True))
        for number in range(config.layers):
            listed += Layer.parameters(config, number)
        return listed


class Layer:
    """One attention and one gated transformation, each added to the residual stream x."""

    def __init__(
        self, config: ModelConfig, number: int, weights: Mapping[str, Tensor], *, deterministic: bool = False
    ) -> None:
        def projection(name: str) -> Linear:
            weight_IO, bias_O = weights[f"{number}.{name}.weight"], weights.get(f"{number}.{name}.bias")
            return linear(weight_IO, bias_O, deterministic=deterministic)

        self.number, self.deterministic = number, deterministic
        self.epsilon = config.norm_epsilon
        self.heads, self.kv_heads = config.heads, config.kv_heads
        self.attention_norm = Norm(weights[f"{number}.attention_norm"], config.norm_epsilon)
        self.q_norm_D, self.k_norm_D = weights.get(f"{number}.q_norm"), weights.get(f"{number}.k_norm")
        self.qkv = projection("qkv")
        self.output = projection("output")
        self.mlp_norm = Norm(weights[f"{number}.mlp_norm"], config.norm_epsilon)
        self.gate_up = projection("gate_up")
        self.down = projection("down")

    def attend(
        self,
        residual: Residual,
        rotations_LP: Tensor,
        positions_T: Tensor,
        slots_T: Tensor,
        pool: KVPool,
        attention: Attention,
        plan: Plan,
    ) -> Tensor:
        """Store the tokens' keys and values, and give what they attend to, before the output projection."""
        # A token's row of qkv:  [0, H) query heads    [H, H + K) key heads    [H + K, H + 2 * K) value heads
        H, K = self.heads, self.kv_heads
        qkv_TXD = self.qkv.normed(residual, self.attention_norm).unflatten(1, (H + 2 * K, -1))
        rotate_and_store_(
            qkv_TXD,
            rotations_LP,
            positions_T,
            slots_T,
            pool.entries[self.number],
            H,
            K,
            self.q_norm_D,
            self.k_norm_D,
            self.epsilon,
            invariant=self.deterministic,
        )
        fresh = qkv_TXD[:, H : H + K], qkv_TXD[:, H + K :]
        return attention.attend(qkv_TXD[:, :H], self.number, pool, plan, fresh).flatten(1)

    def transform_(self, residual: Residual) -> None:
        self.down.add_to_(residual, self.gate_up.gated(residual, self.mlp_norm))

    @staticmethod
    def parameters(config: ModelConfig, number: int) -> list[Parameter]:
        """List one layer's parameters."""
        C, H, K, D, F = config.hidden, config.heads, config.kv_heads, config.head_dim, config.intermediate
        prefix = f"model.layers.{number}"

        def norm(name: str, source: str, width: int = C, rotary_heads: int = 0) -> Parameter:
            weight = Source(f"{prefix}.{source}.weight", (width,), rotary_heads)
            return Parameter(f"{number}.{name}", (weight,), initial="ones")

        def linear(name: str, inputs: int, parts: list[tuple[str, int, int]], *, bias: bool) -> list[Parameter]:
            """Fuse projections, each (its name, its outputs, its rotary heads if any), into one."""
            weights = tuple(
                Source(f"{prefix}.{part}.weight", (outputs, inputs), heads) for part, outputs, heads in parts
            )
            biases = tuple(Source(f"{prefix}.{part}.bias", (outputs,), heads) for part, outputs, heads in parts)
            weight = Parameter(f"{number}.{name}.weight", weights, transposed=True)
            return [weight, Parameter(f"{number}.{name}.bias", biases, initial="zeros")] if bias else [weight]

        qkv = [("self_attn.q_proj", H * D, H), ("self_attn.k_proj", K * D, K), ("self_attn.v_proj", K * D, 0)]
        # All heads share these, so they are reordered like the pairs of one head.
        names = ("q_norm", "k_norm") if config.qk_norm else ()
        return [
            norm("attention_norm", "input_layernorm"),
            *linear("qkv", C, qkv, bias=config.qkv_bias),
            *(norm(name, f"self_attn.{name}", D, 1) for name in names),
            *linear("output", H * D, [("self_attn.o_proj", C, 0)], bias=config.output_bias),
            norm("mlp_norm", "post_attention_layernorm"),
            *linear("gate_up", C, [("mlp.gate_proj", F, 0), ("mlp.up_proj", F, 0)], bias=config.mlp_bias),
            *linear("down", F, [("mlp.down_proj", C, 0)], bias=config.mlp_bias),
        ]


def _native(
    config: ModelConfig, weights: Mapping[str, Tensor], head_CV: Tensor, rotations_LP: Tensor
) -> NativeStep | None:
    """Prepare steps in C, where they can be had."""
    if config.qkv_bias or config.output_bias or config.mlp_bias or config.qk_norm or config.windows:
        return None
    layers = [
        LayerWeights(
            attention_norm=weights[f"{number}.attention_norm"],
            qkv=weights[f"{number}.qkv.weight"],
            output=weights[f"{number}.output.weight"],
            mlp_norm=weights[f"{number}.mlp_norm"],
            gate_up=weights[f"{number}.gate_up.weight"],
            down=weights[f"{number}.down.weight"],
        )
        for number in range(config.layers)
    ]
    shape = Shape(
        config.hidden, config.heads, config.kv_heads, config.head_dim, config.intermediate, config.norm_epsilon
    )
    return native_step(shape, layers, weights["norm"], head_CV, rotations_LP)


def _head(config: ModelConfig, weights: Mapping[str, Tensor], *, deterministic: bool) -> Tensor:
    """Return the output head, [C, V]."""
    if not config.tied:
        return weights["head"]
    head_CV = weights["embedding"].t()
    # A CPU multiplies one row by the transposed copy three times as fast as by the view (bench/LOG.md).
    return head_CV.contiguous() if head_CV.device.type == "cpu" and not deterministic else head_CV
