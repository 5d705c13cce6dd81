"""Root-mean-square normalisation in one kernel, with or without the addition before it.

Shape suffixes:  T tokens    C hidden size    P parts of a sum
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..early import launches_early

__all__ = ["add_rms_norm_", "rms_norm"]


@triton.jit(do_not_specialize=["tokens"])
def _norm(
    x_ptr, parts_ptr, weight_ptr, out_ptr, tokens, x_stride, epsilon,
    C: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < C
    weight = tl.load(weight_ptr + column, inside, 0.0).to(tl.float32)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    x = tl.load(x_ptr + token * x_stride + column, inside, 0.0)
    if PARTS > 0:
        total = x.to(tl.float32)
        for part in tl.static_range(PARTS):  # pyright: ignore[reportGeneralTypeIssues]: for the compiler
            total += tl.load(parts_ptr + (part * tokens + token) * C + column, inside, 0.0)
        # The norm is of what the stream holds afterwards, rounded, as if these were two kernels.
        x = total.to(x.dtype)
        tl.store(x_ptr + token * x_stride + column, x, inside)
    wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / C + epsilon)
    tl.store(out_ptr + token * C + column, (wide * scale * weight).to(out_ptr.dtype.element_ty), inside)


def rms_norm(x_TC: Tensor, weight_C: Tensor, epsilon: float) -> Tensor:
    """Do what `kernels.norm.rms_norm` promises, on a device.  x may have more dimensions than two."""
    rows_TC = x_TC.reshape(-1, x_TC.shape[-1])
    return _launch(rows_TC, None, weight_C, epsilon).view(x_TC.shape)


def add_rms_norm_(x_TC: Tensor, parts_PTC: Tensor, weight_C: Tensor, epsilon: float) -> Tensor:
    """Do what `kernels.norm.add_rms_norm_` promises, on a device."""
    return _launch(x_TC, parts_PTC, weight_C, epsilon)


def _launch(x_TC: Tensor, parts_PTC: Tensor | None, weight_C: Tensor, epsilon: float) -> Tensor:
    tokens, width = x_TC.shape
    out_TC = torch.empty(tokens, width, dtype=x_TC.dtype, device=x_TC.device)
    block = triton.next_power_of_2(width)
    early = launches_early(x_TC.device, tokens)
    _norm[(tokens,)](
        x_TC, x_TC if parts_PTC is None else parts_PTC, weight_C, out_TC, tokens, x_TC.stride(0), epsilon,
        C=width, BLOCK=block, PARTS=0 if parts_PTC is None else len(parts_PTC), DEPENDENT=early,
        num_warps=min(16, max(1, block // 512)), launch_pdl=early,  # pyright: ignore[reportCallIssue]: the launcher's
    )  # fmt: skip
    return out_TC
