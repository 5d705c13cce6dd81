"""Gated activation in one kernel.

Shape suffixes:  T tokens    F intermediate size
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..early import launches_early

__all__ = ["silu_and_multiply"]


@triton.jit
def _gate(gate_up_ptr, out_ptr, stride, F, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < F
    row = gate_up_ptr + token * stride
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    gate = tl.load(row + column, inside, 0.0).to(tl.float32)
    up = tl.load(row + F + column, inside, 0.0).to(tl.float32)
    result = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + token * F + column, result.to(out_ptr.dtype.element_ty), inside)


def silu_and_multiply(gate_up_TF: Tensor, *, block: int = 1024) -> Tensor:
    """Return silu(gate) * up, [T, F], of [T, 2 * F], computed in float32 and rounded once.

    block: columns a program; 1024 give each thread of four warps loads of 16 bytes.
    """
    tokens, width = gate_up_TF.shape[0], gate_up_TF.shape[1] // 2
    out_TF = torch.empty(tokens, width, dtype=gate_up_TF.dtype, device=gate_up_TF.device)
    grid = (tokens, triton.cdiv(width, block))
    early = launches_early(gate_up_TF.device, tokens)
    _gate[grid](
        gate_up_TF, out_TF, gate_up_TF.stride(0), width, BLOCK=block, DEPENDENT=early,
        num_warps=4, launch_pdl=early,  # pyright: ignore[reportCallIssue]: the launcher's
    )  # fmt: skip
    return out_TF
