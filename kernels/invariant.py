"""Products whose result for a token is the same, to the bit, whatever other tokens are multiplied beside it.

A library chooses by the number of tokens how it cuts and adds up the inputs, so a token's bits change with its batch.
Here each output is one sum, taken 16 inputs at a time from the first to the last by one kind of instruction, and a
tile says only which outputs a program computes.  Shape suffixes:  T tokens    I inputs    O outputs
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Tuning", "invariant_linear"]

_PROCESSORS = 132  # of an H200
_SHARED_BYTES = 200 << 10  # of a multiprocessor's shared memory, what tiles under way may take
# Tokens and outputs of a tile.  A multiple of 64 tokens, which is what a warp group's instruction takes: with fewer the
# compiler would choose another instruction, which may round otherwise.
_TILES = ((64, 32), (64, 64), (64, 128), (64, 256), (128, 64), (128, 128), (128, 256))


@dataclass(frozen=True, slots=True)
class Tuning:
    """How a product is cut into programs; none of it changes a bit of the result, so it may depend on the tokens.

    block_tokens: a multiple of 64.  block_outputs, block_inputs: of a tile, powers of two from 16 on.  stages: tiles of
    inputs under way.  group: so many tiles of tokens take the same weights at about the same time.  programs: at most
    this many, each taking tiles in turn; 0 is one a tile.  descriptors: tiles are fetched whole, by the hardware
    (tensor memory access), where the tensors' strides allow it.
    """

    block_tokens: int
    block_outputs: int
    block_inputs: int = 64
    warps: int = 4
    stages: int = 4
    group: int = 8
    programs: int = 0
    descriptors: bool = True

    def __post_init__(self) -> None:
        for name, least in (("block_tokens", 64), ("block_outputs", 16), ("block_inputs", 16), ("warps", 4)):
            value = getattr(self, name)
            if value < least or value & (value - 1):
                raise ValueError(f"Tuning: {name} is {value}; it must be a power of two and at least {least}")

    @classmethod
    def of(cls, tokens: int, outputs: int) -> Tuning:
        """Choose for a shape: the tile with which the busiest multiprocessor has least to fetch or to multiply."""

        def cycles(tile: tuple[int, int]) -> float:
            """Estimate what an input costs: 40 bytes fetched and 2048 products a cycle."""
            rows, columns = tile
            tiles = -(-tokens // rows) * -(-outputs // columns)
            fetched = 2 * (min(rows, tokens) + columns) / 40
            return -(-tiles // _PROCESSORS) * max(fetched, rows * columns / 2048)

        rows, columns = min(_TILES, key=cycles)
        large = rows * columns > 128 * 64
        block_inputs = 64 if large else 128
        stages = min(6, _SHARED_BYTES // (2 * (rows + columns) * block_inputs))
        many = -(-tokens // rows) * -(-outputs // columns) > 2 * _PROCESSORS
        return cls(
            rows,
            columns,
            block_inputs,
            warps=8 if rows * columns > 128 * 64 and rows == 128 else 4,
            stages=min(stages, 3 if rows * columns > 128 * 128 else 4) if large else stages,
            programs=_PROCESSORS if many and large else 0,
        )


def invariant_linear(
    x_TI: Tensor,
    weight_IO: Tensor,
    *,
    bias_O: Tensor | None = None,
    residual_TO: Tensor | None = None,
    dtype: torch.dtype | None = None,
    tuning: Tuning | None = None,
) -> Tensor:
    """Multiply by a weight laid out [out, in], summing in float32; a token's result depends on nothing but the token.

    residual_TO: contiguous; the result is added to it in place, rounded once, and it is returned.  dtype: of the result
    where there is no residual; x's if None.  Needs triton.  Raises ValueError for shapes or a layout it cannot take.
    """
    tokens, inputs = x_TI.shape
    outputs = weight_IO.shape[1]
    if weight_IO.shape[0] != inputs:
        raise ValueError(
            f"invariant_linear: x has {inputs} inputs, the weight {weight_IO.shape[0]}; they must be equal"
        )
    if weight_IO.stride(0) != 1 or weight_IO.dtype != x_TI.dtype:
        raise ValueError(
            f"invariant_linear: the weight is {weight_IO.dtype} with strides {weight_IO.stride()}; it must be a "
            f"transposed view of [{outputs}, {inputs}], {x_TI.dtype} as x is"
        )
    if residual_TO is None:
        out_TO = torch.empty(tokens, outputs, dtype=dtype or x_TI.dtype, device=x_TI.device)
    elif residual_TO.shape != (tokens, outputs) or not residual_TO.is_contiguous():
        raise ValueError(
            f"invariant_linear: the residual is {tuple(residual_TO.shape)}; it must be contiguous, {(tokens, outputs)}"
        )
    else:
        out_TO = residual_TO
    if tokens:
        from .fused import invariant

        tuning = tuning or Tuning.of(tokens, outputs)
        invariant.multiply(x_TI, weight_IO, out_TO, bias_O=bias_O, add=residual_TO is not None, tuning=tuning)
    return out_TO
