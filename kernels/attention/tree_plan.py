"""Who attends to which shared prefix: groups cut into items, on the host, once for as long as the groups stay.

What is packed, all int32, for R decoding rows:

    [0, 4)            how many items, and 3 of nothing
    [4, 4 + 3 R)      of each row: how many keys its groups attend to; its first part, and how many it has; R times each
    [.., + 8 I)       the items: line, first key, end, where its members stand, how many they are, part of the prefix
    [.., + 2 M)       the members: a row, and its first part in this group

Of rows that extend each new token is a row here: all of them see what their row shares.

Shape suffixes:  N groups    M memberships    R rows    I items    S ways to cut    C tiles to choose among
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .row_groups import PackedGroups, RowGroups
from .tree_tuning import TreeTile, TreeTuning

__all__ = ["HEADER", "TreePlanner"]

HEADER = 4  # words before those of the rows
_EXTEND_BYTES = 256 << 20  # of parts that extends leave to merge, at most
_CUTS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64])


@dataclass(frozen=True, slots=True)
class TreePlanner:
    """Decide which groups pay and how they are cut.

    size_bytes: of one number in the pool.  What is bounded by the rows, whatever the groups: memberships, items, and
    the parts that are left for rows to merge.  extend_lines, short_lines: of a tile of new tokens that attend alone, in
    steps with prompts and in those with nothing but short extends.
    """

    heads: int
    kv_heads: int
    head_dim: int
    size_bytes: int
    tuning: TreeTuning
    extend_lines: int = 128
    short_lines: int = 32

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
        groups = _bounded(groups, self.memberships_at_most(rows))
        alone_N = groups.counts_N * self._keys_ns(groups, self._key_bytes / self.tuning.rates.cached)
        return self._pack(groups, rows, alone_N, self.parts_at_most(rows))

    def pack_extends(self, groups: RowGroups, queries_R: np.ndarray) -> PackedGroups | None:
        """Pack the groups of extending rows that pay, token by token; None if all together do not.

        Tiles of many new tokens are full of one row's, and sharing saves them nothing: groups pay where rows are short.
        """
        first_N = groups.counts_N.cumsum() - groups.counts_N
        if not len(first_N):
            return None
        group = self.heads // self.kv_heads
        short = queries_R[groups.members_M].max() * group <= self.short_lines
        lines = self.short_lines if short else self.extend_lines
        tile_rows = max(1, lines // group)
        products = max(tile.products for tile in self.tuning.tiles)
        tile_ns = self._tile_ns(np.array([lines]), np.array([products]))[0]
        tiles_N = np.add.reduceat(-(-queries_R // tile_rows)[groups.members_M], first_N)
        alone_N = tiles_N * self._keys_ns(groups, tile_ns)
        tokens, most = int(queries_R.sum()), _EXTEND_BYTES // (self.heads * self.head_dim * 4)
        by_token = _by_token(groups, queries_R)
        fits_N = by_token.counts_N.cumsum() <= min(most, self.memberships_at_most(tokens))
        packed = self._pack(_kept(by_token, fits_N), tokens, alone_N[fits_N], most)
        if packed is None:
            return None
        parts_T = packed.words_W[HEADER + 2 * tokens : HEADER + 3 * tokens]
        return replace(packed, parts=int(parts_T.sum()))

    def _pack(self, groups: RowGroups, rows: int, alone_N: np.ndarray, most: int) -> PackedGroups | None:
        """Pack the groups that save some of the nanoseconds that their keys take alone, into at most `most` parts."""
        if not len(groups.counts_N):
            return None
        kind, pays_N = self._choose(groups, alone_N)
        if not pays_N.any():
            return None
        groups = _kept(groups, _with_outer(groups, pays_N, rows))
        tile = self.tuning.tiles[kind]
        tiles_N = -(-groups.counts_N // self._tile_rows(tile))
        parts_N, sizes_N = self._cut(groups, tile, tiles_N, self.items_at_most(rows), most)
        words_W = self._lay_out(groups, rows, self._tile_rows(tile), tiles_N, parts_N, sizes_N)
        saved = int(((groups.counts_N - 1) * (groups.ends_N - groups.starts_N)).sum())
        return PackedGroups(words_W, self.words_at_most(rows), kind, saved)

    @property
    def _key_bytes(self) -> int:
        return 2 * self.head_dim * self.size_bytes

    def _keys_ns(self, groups: RowGroups, key_ns: float) -> np.ndarray:
        """Tell how long groups' keys take if each does so long."""
        return (groups.ends_N - groups.starts_N) * (self.kv_heads * key_ns)

    def _tile_ns(self, lines_C: np.ndarray, products_C: np.ndarray) -> np.ndarray:
        """Tell how long tiles take a key: they read it, mostly after another tile has, and multiply it twice."""
        return np.maximum(self._key_bytes / self.tuning.rates.cached, 4 * lines_C * self.head_dim / products_C)

    def _tile_rows(self, tile: TreeTile) -> int:
        return tile.lines // (self.heads // self.kv_heads)

    # --- which groups ----------------------------------------------------------------------------------------------

    def _choose(self, groups: RowGroups, alone_N: np.ndarray) -> tuple[int, np.ndarray]:
        """Choose the tile at which groups save most, and tell which groups save anything, if all save a launch."""
        rates, tiles = self.tuning.rates, self.tuning.tiles
        group = self.heads // self.kv_heads
        lines_C = np.array([tile.lines for tile in tiles])
        rows_C = np.maximum(lines_C // group, 1)
        tile_ns_C = self._tile_ns(lines_C, np.array([tile.products for tile in tiles]))
        tiles_CN = -(-groups.counts_N // rows_C[:, None])
        together_CN = self._keys_ns(groups, 1) * np.maximum(self._key_bytes / rates.copy, tiles_CN * tile_ns_C[:, None])
        part_ns = 2 * self.heads * self.head_dim * 4 / rates.copy
        saved_CN = alone_N - groups.counts_N * part_ns - together_CN
        saved_CN[lines_C < group] = -1
        saved_C = np.maximum(saved_CN, 0).sum(1)
        kind = int(saved_C.argmax())
        return kind, (saved_CN[kind] > 0) & (saved_C[kind] > rates.launch_ns)

    # --- into how many parts ---------------------------------------------------------------------------------------

    def _cut(
        self, groups: RowGroups, tile: TreeTile, tiles_N: np.ndarray, most_items: int, most_parts: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Choose each group's number of parts, and how many keys they have: so that the device is full, and evenly.

        All are cut to about the same size, the one at which all would be done soonest.
        """
        rates, key_bytes = self.tuning.rates, self._key_bytes
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
        fits_S = (items_S <= most_items) & (left_S <= most_parts)
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


def _bounded(groups: RowGroups, most: int) -> RowGroups:
    """Leave out the last groups, which are the inner ones of others, if memberships are too many."""
    return groups if len(groups.members_M) <= most else _kept(groups, np.cumsum(groups.counts_N) <= most)


def _by_token(groups: RowGroups, queries_R: np.ndarray) -> RowGroups:
    """Put every row's new tokens in its place among a group's members."""
    sizes_M = queries_R[groups.members_M]
    ends_M = sizes_M.cumsum()
    # Token number i of all members' is i, moved by where its row's tokens begin and how many members' stand before.
    moved_M = (queries_R.cumsum() - queries_R)[groups.members_M] - (ends_M - sizes_M)
    members = np.arange(ends_M[-1]) + np.repeat(moved_M, sizes_M)
    counts_N = np.add.reduceat(sizes_M, groups.counts_N.cumsum() - groups.counts_N)
    return replace(groups, counts_N=counts_N.astype(np.int32), members_M=members.astype(np.int32))


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
