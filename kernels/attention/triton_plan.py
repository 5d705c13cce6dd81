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
from .tuning import DecodeTile, ExtendTile, Tuning
from .work_list import list_decode_items, list_extend_tiles

__all__ = ["Items", "Tiles", "TritonPlan", "decode_items_at_most", "extend_shares", "list_items", "list_tiles"]


@dataclass(frozen=True, slots=True)
class Items:
    """Parts of decoding rows, and which of them each share has: see work_list.py."""

    items_W8: Tensor
    firsts_C1: Tensor
    tile: DecodeTile


@dataclass(frozen=True, slots=True)
class Tiles:
    """Parts of tiles of new tokens, and once more the first ones of tiles in many parts: see work_list.py."""

    parts_X8: Tensor
    many_V8: Tensor


@dataclass(frozen=True, slots=True)
class TritonPlan:
    """A step's work lists.  Tokens [0, extend_tokens) belong to extends, the rest to one decoding row each.

    items: one list for each window that layers have (0: none); empty if no row decodes.
    extends: for our kernel, in tiles of `tile`, or for a library's; None if no row extends.
    groups: of the decoding rows, in layers without a window.  extend_groups: of the extending ones.
    """

    table_RL: Tensor
    extend_tokens: int
    extends: Tiles | FlashPlan | None
    tile: ExtendTile
    items: dict[int, Items]
    groups: Groups | None = None
    extend_groups: Groups | None = None


def decode_items_at_most(rows: int, kv_heads: int, tuning: Tuning) -> int:
    """Tell how many items the decode list of this many rows has, whatever their lengths."""
    return rows + max(_shares(kv_heads, tuning.decode), _shares(kv_heads, tuning.own))


def list_items(batch: AttentionBatch, window: int, kv_heads: int, tuning: Tuning) -> Items:
    """List the parts of the decoding rows for layers with this window (0: none, and groups come before)."""
    groups_W = None if batch.groups is None or window else batch.groups.words_W
    rows, lengths_R = len(batch.lengths) - batch.extends, batch.lengths_R
    assert lengths_R is not None
    tile = tuning.decode if groups_W is None else tuning.own
    shares = _shares(kv_heads, tile)
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
        -(-tile.smallest_part // tile.keys),
        WINDOW=window,
        HAS_ROWS=batch.rows_R is not None,
        HAS_GROUPS=groups_W is not None,
        BLOCK_N=tile.keys,
        BLOCK_R=block_r,
        BLOCK_P=block_p,
    )
    return Items(items_W8, firsts_C1, tile)


def list_tiles(batch: AttentionBatch, queries: int, shares: int, smallest: int, few: int = 0) -> Tiles:
    """List the tiles of `queries` new tokens of the extending rows, and their parts: int32 [X, 8], see work_list.py.

    shares: in how many their keys are cut, of `smallest` keys or more; 0 if tiles stay whole.
    X is at least their number, in a padded step as many as they may need; what is not needed is zeros.
    few: if not 0, tiles of more parts are told again, of which there are shares // few at most.
    """
    extends, starts_R1 = batch.extends, batch.starts_R1
    assert starts_R1 is not None
    if batch.room:
        tiles = (batch.room + extends * (queries - 1)) // queries
    else:
        tiles = sum(-(-count // queries) for count in batch.query_lengths[:extends])
    again = shares // few if few and _may_split(batch, queries, shares, smallest, few) else 0
    tiles_X8 = torch.zeros(tiles + shares + again, 8, dtype=torch.int32, device=starts_R1.device)
    block_r, block_p = _block(extends)
    list_extend_tiles[(1,)](
        starts_R1,
        batch.lengths_R,
        batch.rows_R,
        None if batch.extend_groups is None else batch.extend_groups.words_W,
        tiles_X8,
        extends,
        max(1, shares),
        smallest if shares else 1 << 30,
        tiles + shares,
        FEW=few,
        HAS_ROWS=batch.rows_R is not None,
        HAS_GROUPS=batch.extend_groups is not None,
        QUERIES=queries,
        BLOCK_R=block_r,
        BLOCK_P=block_p,
    )
    return Tiles(tiles_X8[: tiles + shares], tiles_X8[tiles + shares :])


def _may_split(batch: AttentionBatch, queries: int, shares: int, smallest: int, few: int) -> bool:
    """Tell whether a tile may have more than `few` parts, by what the host knows: list_extend_tiles says the same."""
    if batch.room or batch.extend_groups is not None:
        return True
    rows = list(zip(batch.query_lengths[: batch.extends], batch.lengths, strict=False))
    share = max(-(-sum(-(-count // queries) * keys for count, keys in rows) // shares), smallest)
    return any((keys + share // 2) // share > few for _, keys in rows)


def extend_shares(kv_heads: int, tile: ExtendTile) -> int:
    """Tell in how many shares tiles' keys are cut; at most twice as many parts are one of several of a tile."""
    return max(1, tile.programs // kv_heads)


def _shares(kv_heads: int, tile: DecodeTile) -> int:
    """Tell in how many shares rows' keys are cut: a share is as many programs as there are key heads."""
    return max(1, tile.programs // kv_heads)


def _block(rows: int) -> tuple[int, int]:
    """Give the block of rows and of their parts for a list's kernel: few kinds, so that few are compiled."""
    for block_rows, block_parts in ((16, 64), (128, 16)):
        if rows <= block_rows:
            return block_rows, block_parts
    return max(512, triton.next_power_of_2(rows)), 4
