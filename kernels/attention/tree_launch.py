"""Which kernel attends rows to what they share: tree.py's, or on Hopper the one whose warps are specialised."""

# A launch takes more, and other types, than its kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import torch
import triton
from torch import Tensor

from ..hopper import has_hopper_gluon
from .tree import tree_tiles
from .tree_tuning import TreeTile

__all__ = ["attend_shared", "can_specialise", "specialised_warps"]


def can_specialise(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Tell whether the kernel with specialised warps can be had."""
    return head_dim in {64, 128} and has_hopper_gluon(device, dtype)


def specialised_warps(keys: int, stages: int) -> dict[str, int]:
    """Tell kernels on hopper_blocks.py how their warps are specialised.

    Of 65,536 registers three times four warps have 168 a thread: those that copy give theirs to those that multiply.
    """
    warps = {"COPY_WARPS": 4, "COPY_REGISTERS": 72, "REGISTERS": 216, "num_warps": 4}
    return {"BLOCK_N": keys, "STAGES": stages, **warps}


def attend_shared(
    tile: TreeTile,
    specialised: bool,
    q_RHD: Tensor,
    entries_SE: Tensor,
    table_RL: Tensor,
    words_W: Tensor,
    parts_PHD: Tensor,
    lse_PH: Tensor,
    *,
    kv_heads: int,
    scale: float,
    soft_cap: float,
    early: bool,
) -> None:
    """Attend rows to what words_W, as tree_plan packs it, says that they share; leave parts of them to merge.

    specialised: take the kernel for Hopper if the tile asks for it and queries and pool have one type; for where
    `can_specialise`.  soft_cap: 0 for none.  early: launch it before the kernel before has ended.
    """
    heads, head_dim = q_RHD.shape[1:]
    given = (q_RHD, entries_SE, table_RL, words_W, parts_PHD, lse_PH, len(q_RHD), q_RHD.stride(0), table_RL.stride(0))
    known = {"SCALE": scale, "SOFT_CAP": soft_cap, "KV_HEADS": kv_heads, "G": heads // kv_heads, "D": head_dim}
    known |= {"DEPENDENT": early, "launch_pdl": early}
    if specialised and tile.specialised and entries_SE.dtype == q_RHD.dtype:
        from .tree_hopper import specialised_tiles

        specialised_tiles[(tile.programs,)](*given, **known, **specialised_warps(tile.keys, tile.stages))
        return
    tree_tiles[(tile.programs,)](
        *given,
        **known,
        BLOCK_D=max(16, triton.next_power_of_2(head_dim)),
        BLOCK_M=tile.lines,
        BLOCK_N=tile.keys,
        UPCAST=q_RHD.device.type == "cpu",  # the interpreter cannot multiply bfloat16
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
