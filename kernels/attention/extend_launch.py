"""Which kernel attends tiles of new tokens: extend.py's, or on Hopper the one whose warps are specialised."""

# A launch takes more, and other types, than its kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from .extend import extend_tiles
from .merging import merge_tiles
from .tree_launch import specialised_warps
from .triton_plan import Tiles, extend_shares
from .tuning import ExtendTile

__all__ = ["SharedParts", "TileScratch", "attend_tiles"]


class TileScratch:
    """Room for parts of tiles, of several kinds in turn: as many parts, and as many lines of parts, as any may have."""

    def __init__(self, tiles: tuple[ExtendTile, ...], kv_heads: int, head_dim: int, device: torch.device) -> None:
        parts = [2 * extend_shares(kv_heads, tile) * kv_heads for tile in tiles]
        lines = max(count * tile.lines for count, tile in zip(parts, tiles, strict=True))
        self.parts_XD = torch.empty(lines, head_dim, dtype=torch.float32, device=device)
        self.lse_X = torch.empty(lines, dtype=torch.float32, device=device)
        self.arrived_X = torch.zeros(max(parts), dtype=torch.int32, device=device)

    @property
    def size_bytes(self) -> int:
        """Tell how much memory it takes."""
        return self.parts_XD.nbytes + self.lse_X.nbytes + self.arrived_X.nbytes


@dataclass(frozen=True, slots=True)
class SharedParts:
    """What groups of new tokens have found, as attend_shared leaves it; words_W as tree_plan packs it."""

    words_W: Tensor
    parts_PHD: Tensor
    lse_PH: Tensor


def attend_tiles(
    tile: ExtendTile,
    specialised: bool,
    q_THD: Tensor,
    entries_SE: Tensor,
    table_RL: Tensor,
    tiles: Tiles,
    out_THD: Tensor,
    scratch: TileScratch,
    shared: SharedParts | None,
    tokens: int,
    *,
    kv_heads: int,
    scale: float,
    soft_cap: float,
    window: int,
    short: bool,
    early: bool,
) -> None:
    """Attend the first `tokens` tokens, whose tiles are listed, to their rows' keys.

    specialised: take the kernel for Hopper if the tile asks for it, queries, pool and results have one type, there is
    no window, and groups have found nothing; for where `can_specialise`.  soft_cap, window: 0 for none.
    early: launch merging before attending has ended, and if tiles are `short` attending before what is before it.
    """
    heads, head_dim = q_THD.shape[1:]
    parts = (scratch.parts_XD, scratch.lse_X)
    given = (q_THD, entries_SE, table_RL, tiles.parts_X8, out_THD, *parts, scratch.arrived_X)
    strides = (q_THD.stride(0), table_RL.stride(0))
    known = {"KV_HEADS": kv_heads, "G": heads // kv_heads, "D": head_dim}
    block_d = max(16, triton.next_power_of_2(head_dim))
    alike = q_THD.dtype == entries_SE.dtype == out_THD.dtype
    if specialised and tile.specialised and alike and not window and shared is None:
        from .extend_hopper import specialised_extends

        works = len(tiles.parts_X8) * kv_heads
        specialised_extends[(min(works, tile.programs),)](
            *given,
            works,
            *strides,
            SCALE=scale,
            SOFT_CAP=soft_cap,
            **known,
            **specialised_warps(tile.keys, tile.stages),
        )
    else:
        extend_tiles[(len(tiles.parts_X8), kv_heads)](
            *given,
            *((None, None, None) if shared is None else (shared.words_W, shared.parts_PHD, shared.lse_PH)),
            tokens,
            *strides,
            SCALE=scale,
            SOFT_CAP=soft_cap,
            WINDOW=window,
            **known,
            BLOCK_D=block_d,
            BLOCK_M=tile.lines,
            BLOCK_N=tile.keys,
            FEW=tile.few,
            HAS_GROUPS=shared is not None,
            DEPENDENT=early and short,
            UPCAST=q_THD.device.type == "cpu",  # the interpreter cannot multiply bfloat16
            num_warps=tile.warps,
            num_stages=tile.stages,
            launch_pdl=early and short,
        )
    if len(tiles.many_V8):
        merge_tiles[(len(tiles.many_V8), kv_heads, tile.lines // 2)](
            tiles.many_V8,
            *parts,
            out_THD,
            **known,
            BLOCK_D=block_d,
            BLOCK_M=tile.lines,
            LINES=2,
            AT_ONCE=16,
            DEPENDENT=early,
            num_warps=2,
            launch_pdl=early,
        )
