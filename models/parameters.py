"""How a family declares its parameters, so that one loader serves them all.

A checkpoint stores query, key and value weights apart, each [out, in].  A step is faster with one matrix for all
three, which it multiplies by from the right, [in, out].  A family therefore lists its parameters with the checkpoint
tensors each is made of, and the loader fills them piece by piece, straight into place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Parameter", "Source", "interleave_pairs"]


@dataclass(frozen=True, slots=True)
class Source:
    """One tensor of a checkpoint.

    shape: as stored, [out, in] or [out].  rotary_heads: how many heads its rows belong to, if they are rotated: their
    pairs are then stored next to each other (see interleave_pairs).
    """

    name: str
    shape: tuple[int, ...]
    rotary_heads: int = 0


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor of a model: its sources, stacked along their first dimension.

    transposed: given to the model as [in, sum of out] instead of [sum of out, in].
    initial: what it holds when dummy weights are asked for.
    """

    name: str
    sources: tuple[Source, ...]
    transposed: bool = False
    initial: Literal["normal", "zeros", "ones"] = "normal"

    @property
    def stacked_shape(self) -> tuple[int, ...]:
        """Tell the shape before transposing."""
        return (sum(source.shape[0] for source in self.sources), *self.sources[0].shape[1:])

    def allocate(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Reserve memory for it.

        A CPU multiplies faster by a transposed matrix that is laid out as it is read.  A GPU's kernels read an output's
        weights in one go, so there it is a transposed view: `.t()` of it is contiguous.
        """
        shape = self.stacked_shape
        if not self.transposed:
            return torch.empty(shape, device=device, dtype=dtype)
        if device.type == "cpu":
            return torch.empty(shape[::-1], device=device, dtype=dtype)
        return torch.empty(shape, device=device, dtype=dtype).t()


def interleave_pairs(rows: Tensor, heads: int) -> Tensor:
    """Reorder a projection's rows so that the two halves of each rotary pair become neighbours.

    A checkpoint in the Hugging Face layout pairs row p of a head with row p + head_dim / 2.  As queries and keys are
    reordered alike, their products stay the same, and a pair can be read as one complex number.
    """
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(rows.shape)
