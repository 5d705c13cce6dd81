"""Products of few tokens on Hopper, where a step is bound by the weights' bytes and by how soon they are asked for.

A kernel asks for its first weights while the kernel before it still runs.  A product that a norm follows may be left in
parts, each of some of the inputs, so that all multiprocessors read weights of few outputs too; the norm adds them up.
Shape suffixes:  T tokens    I inputs    O outputs    P parts
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .hopper import copied_by_descriptors

__all__ = ["StreamTuning", "stream_linear", "stream_parts", "streams"]

# With more tokens cuBLAS is as fast or faster (bench/LOG.md): sooner with large weights, of which it reads a share near
# the limit anyway, unless they have more inputs than outputs, where its programs are few.
_TOKENS, _MORE_TOKENS = 128, 256
_SMALL = 8 << 20  # numbers
_PROCESSORS = 132
# Two programs of the smaller ring fit on a multiprocessor: one waits there for the other's end, its weights under way.
_RING, _SMALL_RING = 192 << 10, 96 << 10


@dataclass(frozen=True, slots=True)
class StreamTuning:
    """How a product is cut into programs.

    block_outputs: outputs of a program, 64 or 128; of a gated product, half of them gates.  block_tokens: a power of
    two from 8 to 256.  block_inputs: 64 or 128, multiplied at a time.  stages: blocks of inputs under way, at least
    three.  parts: programs that share the inputs of a block of outputs.
    """

    block_outputs: int
    block_tokens: int
    block_inputs: int
    stages: int
    parts: int = 1
    warps: int = 4

    @classmethod
    def of(cls, tokens: int, inputs: int, outputs: int, *, divided: bool = False) -> StreamTuning:
        """Choose for a shape.  outputs: the weight's, both halves if gated.  divided: parts are allowed."""
        block_tokens = max(8, 1 << (tokens - 1).bit_length())
        if block_tokens > 128 and not divided and outputs <= 64 * _PROCESSORS // 2:
            block_tokens = 128
        wide = outputs >= 128 * _PROCESSORS or (block_tokens == 256 and outputs >= 4096)
        block_outputs = 128 if wide else 64
        block_inputs = 128 if block_tokens <= 64 else 64
        blocks = -(-inputs // block_inputs)
        parts = min(blocks, max(1, _PROCESSORS // -(-outputs // block_outputs))) if divided else 1
        steps = -(-blocks // parts)
        stage_bytes = (block_outputs + block_tokens) * block_inputs * 2
        ring = _SMALL_RING if steps <= 8 and (divided or 5 * stage_bytes <= _SMALL_RING) else _RING
        stages = max(3, min(ring // stage_bytes, steps + 1))
        warps = 8 if block_outputs * block_tokens > 128 * 128 else 4
        return cls(block_outputs, block_tokens, block_inputs, stages, parts, warps)


def streams(x_TI: Tensor, weight_IO: Tensor, *, divided: bool = False) -> bool:
    """Tell whether the kernel computes this product: few tokens, half precision, Hopper, weight rows [O, I].

    divided: whether it computes its parts.
    """
    tokens, inputs = x_TI.shape
    more = weight_IO.numel() <= _SMALL or (divided and inputs > weight_IO.shape[1])
    return 1 <= tokens <= (_MORE_TOKENS if more else _TOKENS) and copied_by_descriptors(x_TI, weight_IO)


def stream_linear(
    x_TI: Tensor,
    weight_IO: Tensor,
    *,
    bias_O: Tensor | None = None,
    gated: bool = False,
    tuning: StreamTuning | None = None,
) -> Tensor:
    """Multiply by a weight and add the bias, summing in float32 and rounding once: [T, O] of x's type.

    gated: the weight's first half of outputs are gates, and silu(gate) * up is returned, [T, O / 2].  Ask `streams`
    before.
    """
    tokens, inputs = x_TI.shape
    outputs = weight_IO.shape[1]
    tuning = tuning or StreamTuning.of(tokens, inputs, outputs)
    if tuning.parts != 1:
        raise ValueError(f"stream_linear: tuning.parts is {tuning.parts}; only stream_parts leaves parts")
    width = outputs // 2 if gated else outputs
    out_PTO = torch.empty(1, tokens, width, dtype=x_TI.dtype, device=x_TI.device)
    from .fused.streamed import multiply

    multiply(x_TI, weight_IO, out_PTO, bias_O, gated=gated, tuning=tuning)
    return out_PTO[0]


def stream_parts(
    x_TI: Tensor, weight_IO: Tensor, *, bias_O: Tensor | None = None, tuning: StreamTuning | None = None
) -> Tensor:
    """Multiply by a weight and add the bias, left as parts whose sum is the product: float32, [P, T, O].

    Each part is of inputs of its own; their sum in order is the same each time.  Ask `streams` before.
    """
    tokens, inputs = x_TI.shape
    outputs = weight_IO.shape[1]
    tuning = tuning or StreamTuning.of(tokens, inputs, outputs, divided=True)
    parts_PTO = torch.empty(tuning.parts, tokens, outputs, dtype=torch.float32, device=x_TI.device)
    from .fused.streamed import multiply

    multiply(x_TI, weight_IO, parts_PTO, bias_O, gated=False, tuning=tuning)
    return parts_PTO
