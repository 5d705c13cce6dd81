"""Products of one token with a weight, where a step is bound by the weights' bytes and by the number of kernels.

One kernel norms x, multiplies, and adds to the residual stream or gates; a layer of a decode step of one request is
then six kernels.  Shape suffixes:  T tokens, one    I inputs    O outputs    F gated outputs, O / 2
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["SkinnyTuning", "skinny_linear", "takes"]

# A program's tile wants this many programs before it is made larger: two for each multiprocessor of an H200.
_PROGRAMS = 256


@dataclass(frozen=True, slots=True)
class SkinnyTuning:
    """How a product is cut into programs.

    block_outputs: outputs a program computes (for a gated product, of each half).  block_inputs: inputs it multiplies
    at a time, a power of two as block_outputs is.
    dependent: launch before the kernel before has ended and load weights meanwhile (programmatic dependent launch);
    every kernel launched so waits for its predecessor before it touches what another kernel wrote.
    """

    block_outputs: int
    block_inputs: int
    warps: int = 4
    dependent: bool = False

    @classmethod
    def of(cls, inputs: int, outputs: int, *, gated: bool) -> SkinnyTuning:
        """Choose for a shape.  outputs: the weight's, both halves if gated."""
        halves = 2 if gated else 1
        wide = 1 << (inputs - 1).bit_length()
        rows = next((rows for rows in (8, 4) if outputs >= rows * _PROGRAMS), 2)
        # With few programs a step's latency would count as often as there are steps: then take all inputs at once.
        block_inputs = max(8, min(1024 if rows == 8 else 4096, wide))
        return cls(max(1, rows // halves), block_inputs, max(4, block_inputs // 512), dependent=True)


def takes(x_TI: Tensor, weight_IO: Tensor) -> bool:
    """Tell whether `skinny_linear` computes this product: one token, half precision, a GPU, weight rows [O, I]."""
    return (
        x_TI.is_cuda
        and x_TI.shape[0] == 1
        and x_TI.dtype in {torch.bfloat16, torch.float16}
        and weight_IO.dtype == x_TI.dtype
        and weight_IO.stride() == (1, weight_IO.shape[0])
        and weight_IO.shape[0] % 16 == 0
        and weight_IO.shape[1] % 16 == 0
        and x_TI.is_contiguous()
    )


def skinny_linear(
    x_TI: Tensor,
    weight_IO: Tensor,
    *,
    bias_O: Tensor | None = None,
    norm_I: Tensor | None = None,
    epsilon: float = 0.0,
    residual_TO: Tensor | None = None,
    gated: bool = False,
    dtype: torch.dtype | None = None,
    tuning: SkinnyTuning | None = None,
) -> Tensor:
    """Multiply by a weight, summing in float32, after a norm and before an addition or a gate, in one kernel.

    norm_I: weight of an RMSNorm of x, with its epsilon; None for none.  residual_TO: contiguous; the result is added to
    it in place, and it is returned.  gated: the weight's first half of outputs are gates, and silu(gate) * up is
    returned, [T, F].  dtype: of the result where there is no residual; x's if None.  Ask `takes` before.
    """
    tokens, inputs = x_TI.shape
    outputs = weight_IO.shape[1]
    tuning = tuning or SkinnyTuning.of(inputs, outputs, gated=gated)
    if tokens != 1:
        raise ValueError(f"skinny_linear: x has {tokens} tokens; it must have one")
    if weight_IO.shape[0] != inputs:
        raise ValueError(f"skinny_linear: x has {inputs} inputs, the weight {weight_IO.shape[0]}; they must be equal")
    if residual_TO is None:
        width = outputs // 2 if gated else outputs
        out_TO = torch.empty(tokens, width, dtype=dtype or x_TI.dtype, device=x_TI.device)
    elif gated or residual_TO.shape != (tokens, outputs) or not residual_TO.is_contiguous():
        raise ValueError(
            f"skinny_linear: the residual is {tuple(residual_TO.shape)}; it must be contiguous, "
            f"{(tokens, outputs)}, and the product not gated"
        )
    else:
        out_TO = residual_TO
    from .fused import skinny

    skinny.multiply(
        x_TI,
        weight_IO,
        out_TO,
        bias_O=bias_O,
        norm_I=norm_I,
        epsilon=epsilon,
        add=residual_TO is not None,
        gated=gated,
        tuning=tuning,
    )
    return out_TO
