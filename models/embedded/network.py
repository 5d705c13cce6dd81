"""The network that `train.py` trains: a Llama, with parameters named as Hugging Face names them.

B: rows, T: tokens of a row, H: heads, D: head width, E: hidden width.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 -- its usual name
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

__all__ = ["Llama", "Shape", "document_mask"]


@dataclass(frozen=True)
class Shape:
    """The sizes of the network."""

    vocabulary: int = 4096
    hidden: int = 320
    layers: int = 6
    heads: int = 10
    kv_heads: int = 2
    intermediate: int = 896
    positions: int = 2048
    rope_theta: float = 10000.0

    def config(self) -> dict[str, Any]:
        """Return the Hugging Face config.json of this shape."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.hidden // self.heads,
            "intermediate_size": self.intermediate,
            "max_position_embeddings": self.positions,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": 1e-5,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": [2, 0],
            "pad_token_id": 0,
            "torch_dtype": "bfloat16",
            "use_cache": True,
        }

    def record(self) -> dict[str, Any]:
        """Return the sizes by name."""
        return asdict(self)


def document_mask(documents_BT: Tensor, create: Callable[..., BlockMask] | None) -> Any:
    """Return the mask under which a token sees its own document up to itself.

    documents_BT: int32, the number of each token's document in its row.  create: flex attention's
    `create_block_mask`, compiled or not; without it the mask is dense.
    """
    rows, tokens = documents_BT.shape
    if create is None:
        same = documents_BT[:, None, :, None] == documents_BT[:, None, None, :]
        return same & torch.ones(tokens, tokens, dtype=torch.bool, device=documents_BT.device).tril()

    def visible(b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (documents_BT[b, q] == documents_BT[b, k])

    return create(visible, rows, None, tokens, tokens, device=documents_BT.device.type)


class Norm(nn.Module):
    """Root-mean-square norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Scale each vector to unit root mean square, in float32."""
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight.float(), 1e-5).to(x.dtype)


def _rotate(x_BHTD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """Turn the two halves of each head by the position's angles."""
    low, high = x_BHTD.chunk(2, dim=-1)
    return (x_BHTD * cos_TD + torch.cat((-high, low), dim=-1) * sin_TD).to(x_BHTD.dtype)


class Attention(nn.Module):
    """Grouped-query attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.width = shape.heads, shape.kv_heads, shape.hidden // shape.heads
        self.q_proj = nn.Linear(shape.hidden, shape.heads * self.width, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * self.width, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * self.width, bias=False)
        self.o_proj = nn.Linear(shape.heads * self.width, shape.hidden, bias=False)

    def forward(self, x_BTE: Tensor, cos: Tensor, sin: Tensor, mask: Any) -> Tensor:
        """Attend under the mask."""
        rows, tokens, _ = x_BTE.shape

        def split(y: Tensor, heads: int) -> Tensor:
            return y.view(rows, tokens, heads, self.width).transpose(1, 2)

        q = _rotate(split(self.q_proj(x_BTE), self.heads), cos, sin)
        k = _rotate(split(self.k_proj(x_BTE), self.kv_heads), cos, sin)
        v = split(self.v_proj(x_BTE), self.kv_heads)
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        if isinstance(mask, BlockMask):
            mixed: Any = flex_attention(q, k, v, block_mask=mask)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(mixed.transpose(1, 2).reshape(rows, tokens, -1))


class Feed(nn.Module):
    """Gated feed-forward layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply SiLU(gate) * up, then project back."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape.hidden)
        self.mlp = Feed(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Any) -> Tensor:
        """Add attention, then the feed-forward layer."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Embeddings, layers and the last norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden)


class Llama(nn.Module):
    """The language model; the output layer is the embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # outputs into the residual stream start smaller the more of them there are
                deep = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * shape.layers) ** 0.5 if deep else 0.02)

    def angles(self, tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines of every position, [tokens, head width]."""
        width = self.shape.hidden // self.shape.heads
        rates = self.shape.rope_theta ** -(torch.arange(0, width, 2, device=device).float() / width)
        turns = torch.arange(tokens, device=device).float()[:, None] * rates[None]
        turns = torch.cat((turns, turns), dim=-1)
        return turns.cos(), turns.sin()

    def forward(self, tokens_BT: Tensor, cos: Tensor, sin: Tensor, mask: Any) -> Tensor:
        """Return the hidden states before the output layer."""
        x = self.model.embed_tokens(tokens_BT)
        for layer in self.model.layers:
            x = layer(x, cos, sin, mask)
        return self.model.norm(x)

    def loss(
        self, tokens_BT: Tensor, targets_BT: Tensor, weights_BT: Tensor, cos: Tensor, sin: Tensor, mask: Any
    ) -> Tensor:
        """Return the mean cross-entropy of each next token, weighted; `targets_BT[b, t]` is predicted at t - 1."""
        hidden = self.forward(tokens_BT, cos, sin, mask)[:, :-1]
        logits = F.linear(hidden, self.model.embed_tokens.weight).float()
        losses = F.cross_entropy(logits.flatten(0, 1), targets_BT[:, 1:].flatten().long(), reduction="none")
        weights = weights_BT[:, 1:].flatten()
        return (losses * weights).sum() / weights.sum()
