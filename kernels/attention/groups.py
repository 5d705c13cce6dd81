"""Which rows of a step are attended together.

A group is padded to its longest member, so grouping saves calls and wastes arithmetic; this file weighs the two.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Piece", "cut", "group", "is_uniform"]

# A call costs about as much as this many query-key pairs of all heads (measured, see bench/LOG.md).
CALL_PAIRS = 4096
# Query-key pairs of one mask: 16 MiB in float32.
MASK_PAIRS = 4 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """Queries [first, first + queries) of a row's new tokens; the last of them sees `keys` keys."""

    row: int
    first: int
    queries: int
    keys: int


def is_uniform(query_lengths: list[int], lengths: list[int], keys_at_once: int) -> bool:
    """Tell whether every row decodes one token and all can be one group: the common step, judged without a loop."""
    rows = len(lengths)
    if max(query_lengths) > 1:
        return False
    padded = rows * max(lengths)
    return padded <= keys_at_once and padded <= 1.5 * sum(lengths) + CALL_PAIRS


def cut(query_lengths: list[int], lengths: list[int], *, windowed: bool = False) -> list[Piece]:
    """Cut rows into pieces whose masks stay small.

    A row without cached tokens needs no mask and stays whole, however long it is, unless a window hides keys.
    """
    pieces: list[Piece] = []
    for row, (queries, keys) in enumerate(zip(query_lengths, lengths, strict=True)):
        step = queries if queries == keys and not windowed else max(16, MASK_PAIRS // keys)
        for first in range(0, queries, step):
            size = min(step, queries - first)
            pieces.append(Piece(row, first, size, keys - queries + first + size))
    return pieces


def group(pieces: list[Piece], keys_at_once: int) -> list[list[Piece]]:
    """Put pieces of similar shape together, as long as padding costs less than another call would.

    keys_at_once: how many padded keys one group may gather; a piece with more is a group of its own.
    """
    groups: list[list[Piece]] = []
    pairs = queries = keys = 0
    for piece in sorted(pieces, key=lambda piece: (piece.queries, piece.keys)):
        own_pairs = piece.queries * piece.keys
        wider, longer = max(queries, piece.queries), max(keys, piece.keys)
        if groups:
            size = len(groups[-1]) + 1
            affordable = size * wider * longer <= 1.5 * (pairs + own_pairs) + CALL_PAIRS
            if affordable and size * longer <= keys_at_once and size * wider * longer <= MASK_PAIRS:
                groups[-1].append(piece)
                pairs, queries, keys = pairs + own_pairs, wider, longer
                continue
        groups.append([piece])
        pairs, queries, keys = own_pairs, piece.queries, piece.keys
    return groups
