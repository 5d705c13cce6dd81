"""Who attends to which shared prefix: groups cut into items, on the host, once for as long as the groups stay.

What is packed, all int32, for R decoding rows:

    [0, 4)            how many items, and 3 of nothing
    [4, 4 + 3 R)      of each row: how many keys its groups attend to; its first part, and how many it has; R times each
    [.., + 8 I)       the items: line, first key, end, where its members stand, how many they are, part of the prefix
    [.., + 2 M)       the members: a row, and its first part in this group

Shape suffixes:  N groups    M memberships    R rows    I items    S ways to cut    C tiles to choose among
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .row_groups import PackedGroups, RowGroups
from .tree_tuning import TreeTile, TreeTuning

__all__ = ["HEADER", "TreePlanner"]

HEADER = 4  # words before those of the rows
_CUTS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64])


@dataclass(frozen=True, slots=True)
class TreePlanner:
    """Decide which groups pay and how they are cut.

    size_bytes: of one number in the pool.  What is bounded by the rows, whatever the groups: memberships, items, and
    the parts that are left for rows to merge.
    """

    heads: int
    kv_heads: int
    head_dim: int
    size_bytes: int
    tuning: TreeTuning

    @staticmethod
    def memberships_at_most(rows: int) -> int:
        return 4 * rows

    @staticmethod
    def items_at_most(rows: int) -> int:
        return 4 * rows + 1024

    @staticmethod
    def parts_at_most(rows: int) -> int:
        return 4 * rows + 1024

    def words_at_most(self, rows: int) -> int:
        return HEADER + 3 * rows + 8 * self.items_at_most(rows) + 2 * self.memberships_at_most(rows)

    def pack(self, groups: RowGroups, rows: int) -> PackedGroups | None:
        """Pack the groups that pay, for `rows` decoding rows; None if all together do not."""
        groups = self._bounded(groups, rows)
        if not len(groups.counts_N):
            return None
        kind, pays_N = self._choose(groups)
        if not pays_N.any():
            return None
        groups = _kept(groups, _with_outer(groups, pays_N, rows))
        tile = self.tuning.tiles[kind]
        tiles_N = -(-groups.counts_N // self._tile_rows(tile))
        parts_N, sizes_N = self._cut(groups, tile, tiles_N, rows)
        words_W = self._lay_out(groups, rows, self._tile_rows(tile), tiles_N, parts_N, sizes_N)
        saved = int(((groups.counts_N - 1) * (groups.ends_N - groups.starts_N)).sum())
        return PackedGroups(words_W, self.words_at_most(rows), kind, saved)

    def _tile_rows(self, tile: TreeTile) -> int:
        return tile.lines // (self.heads // self.kv_heads)

    def _bounded(self, groups: RowGroups, rows: int) -> RowGroups:
        """Leave out the last groups, which are the inner ones of others, if they are too many."""
        if len(groups.members_M) <= self.memberships_at_most(rows):
            return groups
        fits_N = np.cumsum(groups.counts_N) <= self.memberships_at_most(rows)
        return _kept(groups, fits_N)

    # --- which groups ----------------------------------------------------------------------------------------------

    def _choose(self, groups: RowGroups) -> tuple[int, np.ndarray]:
        """Choose the tile at which groups save most, and tell which groups save anything, if all save a launch."""
        rates, tiles = self.tuning.rates, self.tuning.tiles
        key_bytes = 2 * self.head_dim * self.size_bytes
        group = self.heads // self.kv_heads
        lines_C = np.array([tile.lines for tile in tiles])
        rows_C = np.maximum(lines_C // group, 1)
        # A tile reads its keys, mostly after another tile has, and multiplies them twice.
        products_ns_C = np.array([4 * tile.lines * self.head_dim / tile.products for tile in tiles])
        tile_ns_C = np.maximum(key_bytes / rates.cached, products_ns_C)
        tiles_CN = -(-groups.counts_N // rows_C[:, None])
        keys_N = (groups.ends_N - groups.starts_N) * self.kv_heads
        together_CN = keys_N * np.maximum(key_bytes / rates.copy, tiles_CN * tile_ns_C[:, None])
        part_ns = 2 * self.heads * self.head_dim * 4 / rates.copy
        alone_N = groups.counts_N * (keys_N * (key_bytes / rates.cached) - part_ns)
        saved_CN = alone_N - together_CN
        saved_CN[lines_C < group] = -1
        saved_C = np.maximum(saved_CN, 0).sum(1)
        kind = int(saved_C.argmax())
        return kind, (saved_CN[kind] > 0) & (saved_C[kind] > rates.launch_ns)

    # --- into how many parts ---------------------------------------------------------------------------------------

    def _cut(self, groups: RowGroups, tile: TreeTile, tiles_N: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Choose each group's number of parts, and how many keys they have: so that the device is full, and evenly.

        All are cut to about the same size, the one at which all would be done soonest.
        """
        rates, key_bytes = self.tuning.rates, 2 * self.head_dim * self.size_bytes
        lengths_N = groups.ends_N - groups.starts_N
        sizes_S1 = _rounded(-(-int(lengths_N.max()) // _CUTS[:, None]), tile.keys)
        sizes_S1 = np.maximum(sizes_S1, -(-self.tuning.smallest_part // tile.keys) * tile.keys)
        parts_SN = -(-lengths_N // sizes_S1)
        sizes_SN = _rounded(-(-lengths_N // parts_SN), tile.keys)
        items_S = (tiles_N * parts_SN).sum(1)
        programs_S = items_S * self.kv_heads
        left_S = (groups.counts_N * parts_SN).sum(1)
        # With half of its programs the device reads as fast as with all.
        at_once_S = np.minimum(np.maximum(programs_S, tile.programs // 2), tile.programs)
        products_ns = 4 * tile.lines * self.head_dim * tile.programs / tile.products
        key_ns_S = np.maximum(at_once_S * (key_bytes / rates.copy), products_ns)
        rounds_S = -(-programs_S // tile.programs)
        mean_S = (tiles_N * lengths_N).sum() / items_S
        ns_S = (
            key_ns_S * np.maximum(sizes_SN.max(1), rounds_S * mean_S)
            + rates.item_ns * rounds_S
            + rates.part_ns * parts_SN.max(1)
            + left_S * (2 * self.heads * self.head_dim * 4 / rates.copy)
        )
        fits_S = (items_S <= self.items_at_most(rows)) & (left_S <= self.parts_at_most(rows))
        best = int(np.where(fits_S, ns_S, np.inf).argmin())  # uncut it always fits
        return parts_SN[best], sizes_SN[best]

    # --- and how it is written -------------------------------------------------------------------------------------

    def _lay_out(
        self,
        groups: RowGroups,
        rows: int,
        tile_rows: int,
        tiles_N: np.ndarray,
        parts_N: np.ndarray,
        sizes_N: np.ndarray,
    ) -> np.ndarray:
        members_M, counts_N = groups.members_M, groups.counts_N
        group_M = np.repeat(np.arange(len(counts_N)), counts_N)
        # A row's parts stand together, in the order of its groups; the rows', in the order of rows.
        order_M = np.argsort(members_M, kind="stable")
        parts_M = parts_N[group_M]
        sorted_M = parts_M[order_M]
        places_M = np.empty_like(sorted_M)
        places_M[order_M] = sorted_M.cumsum() - sorted_M
        merged_R = np.bincount(members_M, weights=parts_M, minlength=rows).astype(np.int32)

        items_N = tiles_N * parts_N
        group_I = np.repeat(np.arange(len(counts_N)), items_N)
        number_I = np.arange(len(group_I)) - np.repeat(items_N.cumsum() - items_N, items_N)
        part_I, first_I = number_I // tiles_N[group_I], number_I % tiles_N[group_I] * tile_rows
        start_I = groups.starts_N[group_I] + part_I * sizes_N[group_I]
        end_I = np.minimum(start_I + sizes_N[group_I], groups.ends_N[group_I])
        count_I = np.minimum(tile_rows, counts_N[group_I] - first_I)
        first_I += (counts_N.cumsum() - counts_N)[group_I]

        items, members = HEADER + 3 * rows, HEADER + 3 * rows + 8 * len(group_I)
        words_W = np.zeros(members + 2 * len(members_M), np.int32)
        words_W[0] = len(group_I)
        rows_3R = words_W[HEADER:items].reshape(3, rows)
        rows_3R[0, members_M] = groups.ends_N[group_M]  # of a row's groups the last one's end stays
        rows_3R[1] = merged_R.cumsum() - merged_R
        rows_3R[2] = merged_R
        # The longest first; parts that tiles have in common stay beside each other, so that one finds them cached.
        longest_I = np.argsort(start_I - end_I, kind="stable")
        items_I8 = words_W[items:members].reshape(-1, 8)
        columns = (groups.lines_N[group_I], start_I, end_I, members + 2 * first_I, count_I, part_I)
        for number, column in enumerate(columns):
            items_I8[:, number] = column[longest_I]
        members_M2 = words_W[members:].reshape(-1, 2)
        members_M2[:, 0] = members_M
        members_M2[:, 1] = places_M
        return words_W


def _kept(groups: RowGroups, kept_N: np.ndarray) -> RowGroups:
    if kept_N.all():
        return groups
    kept_M = np.repeat(kept_N, groups.counts_N)
    return RowGroups(
        groups.lines_N[kept_N],
        groups.starts_N[kept_N],
        groups.ends_N[kept_N],
        groups.counts_N[kept_N],
        groups.members_M[kept_M],
    )


def _with_outer(groups: RowGroups, wanted_N: np.ndarray, rows: int) -> np.ndarray:
    """Add the groups around wanted ones: a row's groups tile its beginning, and its own keys go on behind the last."""
    if wanted_N.all():
        return wanted_N
    members_M, counts_N = groups.members_M, groups.counts_N
    wanted_M = np.repeat(wanted_N, counts_N)
    reached_R = np.zeros(rows, np.int32)
    reached_R[members_M[wanted_M]] = np.repeat(groups.ends_N, counts_N)[wanted_M]
    first_N = counts_N.cumsum() - counts_N
    return wanted_N | (np.maximum.reduceat(reached_R[members_M], first_N) > groups.ends_N)


def _rounded(keys: np.ndarray, block: int) -> np.ndarray:
    return -(-keys // block) * block
