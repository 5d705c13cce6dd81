"""What our Triton attention prepares once a step: lists of work that kernels of one program make on the device.

Shape suffixes:  R rows    W items of the decode list    C its shares    X tiles of the extend list
"""

# A launch takes more, and other types, than its kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from .flash_extend import FlashPlan
from .interface import AttentionBatch
from .row_groups import Groups
from .tuning import Tuning
from .work_list import list_decode_items, list_extend_tiles

__all__ = ["Items", "Tiles", "TritonPlan", "decode_items_at_most", "list_items", "list_tiles"]


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of new tokens, see work_list.py, and in how many parts each takes its keys."""

    tiles_X8: Tensor
    parts: int


@dataclass(frozen=True, slots=True)
class Items:
    """Parts of decoding rows, and which of them each share has: see work_list.py."""

    items_W8: Tensor
    firsts_C1: Tensor


@dataclass(frozen=True, slots=True)
class TritonPlan:
    """A step's work lists.  Tokens [0, extend_tokens) belong to extends, the rest to one decoding row each.

    items: one list for each window that layers have (0: none); empty if no row decodes.
    extends: for our kernel, or for a library's; None if no row extends.
    groups: of the decoding rows, in layers without a window.  extend_groups: of the extending ones.
    """

    table_RL: Tensor
    extend_tokens: int
    extends: Tiles | FlashPlan | None
    items: dict[int, Items]
    groups: Groups | None = None
    extend_groups: Groups | None = None


def decode_items_at_most(rows: int, kv_heads: int, tuning: Tuning) -> int:
    """Tell how many items the decode list of this many rows has, whatever their lengths."""
    return rows + _shares(kv_heads, tuning)


def list_items(batch: AttentionBatch, window: int, kv_heads: int, tuning: Tuning) -> Items:
    """List the parts of the decoding rows for layers with this window (0: none, and groups come before)."""
    groups_W = None if batch.groups is None or window else batch.groups.words_W
    rows, lengths_R = len(batch.lengths) - batch.extends, batch.lengths_R
    assert lengths_R is not None
    shares = _shares(kv_heads, tuning)
    items_W8 = torch.empty(rows + shares, 8, dtype=torch.int32, device=lengths_R.device)
    firsts_C1 = torch.empty(shares + 1, dtype=torch.int32, device=lengths_R.device)
    block_r, block_p = _block(rows)
    list_decode_items[(1,)](
        lengths_R,
        batch.rows_R,
        groups_W,
        items_W8,
        firsts_C1,
        batch.extends,
        rows,
        shares,
        -(-tuning.smallest_part // tuning.decode_keys),
        WINDOW=window,
        HAS_ROWS=batch.rows_R is not None,
        HAS_GROUPS=groups_W is not None,
        BLOCK_N=tuning.decode_keys,
        BLOCK_R=block_r,
        BLOCK_P=block_p,
    )
    return Items(items_W8, firsts_C1)


def list_tiles(batch: AttentionBatch, queries: int, kv_heads: int, tuning: Tuning) -> Tiles:
    """List the tiles of `queries` new tokens of the extending rows; in a padded step, as many as they may need."""
    extends, starts_R1 = batch.extends, batch.starts_R1
    assert starts_R1 is not None
    if batch.room:
        tiles = (batch.room + extends * (queries - 1)) // queries
        tiles_X8 = torch.zeros(tiles, 8, dtype=torch.int32, device=starts_R1.device)  # no queries: nothing to do
    else:
        tiles = sum(-(-count // queries) for count in batch.query_lengths[:extends])
        tiles_X8 = torch.empty(tiles, 8, dtype=torch.int32, device=starts_R1.device)
    block_r, block_p = _block(extends)
    list_extend_tiles[(1,)](
        starts_R1,
        batch.lengths_R,
        batch.rows_R,
        tiles_X8,
        extends,
        HAS_ROWS=batch.rows_R is not None,
        QUERIES=queries,
        BLOCK_R=block_r,
        BLOCK_P=block_p,
    )
    groups = batch.extend_groups
    longest = max(batch.lengths[:extends]) if groups is None else groups.own_keys
    return Tiles(tiles_X8, _parts(tiles * kv_heads, longest, tuning))


def _shares(kv_heads: int, tuning: Tuning) -> int:
    """Tell in how many shares rows' keys are cut: a share is as many programs as there are key heads."""
    return max(1, tuning.programs // kv_heads)


def _parts(programs: int, longest: int, tuning: Tuning) -> int:
    """Choose in how many parts tiles take their keys: several if the tiles are too few to fill the device."""
    parts = 1
    while parts < 16 and 2 * parts * programs <= tuning.extend_programs and 2 * parts * tuning.extend_part <= longest:
        parts *= 2
    return parts


def _block(rows: int) -> tuple[int, int]:
    """Give the block of rows and of their parts for a list's kernel: few kinds, so that few are compiled."""
    for block_rows, block_parts in ((16, 64), (128, 16)):
        if rows <= block_rows:
            return block_rows, block_parts
    return max(512, triton.next_power_of_2(rows)), 4
