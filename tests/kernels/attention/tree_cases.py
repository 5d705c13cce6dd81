"""Decoding rows on random trees: what they share, and what they should see."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from callboard.kernels.attention.interface import AttentionBatch
from callboard.kernels.attention.row_groups import Groups, PackedGroups, RowGroups
from callboard.kernels.attention.tree_tuning import DeviceRates, TreeTile, TreeTuning
from callboard.kernels.attention.triton_attention import TritonAttention
from callboard.kernels.attention.tuning import Tuning
from callboard.kernels.kv_pool import KVPool

from ..triton_device import DEVICE
from .triton_cases import SMALL, Case, wanted

# Every group pays: only bytes that are not shared cost anything.
EAGER = DeviceRates(copy=1e9, cached=1.0, launch_ns=0.0, item_ns=0.0, part_ns=0.0)
SMALL_TREE = TreeTuning((TreeTile(16, 16, 4, 2, 3, 1e9),), smallest_part=16, rates=EAGER)


@dataclass(frozen=True)
class Level:
    """`keys` that everything below shares: levels, or rows by the number of keys of their own."""

    keys: int
    below: tuple[Level | int, ...]


@dataclass
class TreeCase:
    """A batch of decoding rows, and its groups."""

    case: Case
    groups: RowGroups


def draw_tree(
    tops: tuple[Level | int, ...],
    shape: tuple[int, int, int],
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.float32,
    pool_dtype: torch.dtype | None = None,
    padding: int = 0,
) -> TreeCase:
    """Draw keys and queries; slots that no row has hold NaN, and the step's rows are in no order.

    padding: so many rows of one key, in the slot that is nobody's, stand behind the others.
    """
    heads, kv_heads, head_dim = shape
    torch.manual_seed(seed)
    generator = random.Random(seed)
    slots = sum(_slots(top) for top in tops) + 7
    free = generator.sample(range(slots), slots)
    tables: list[list[int]] = []
    found: list[tuple[int, int, list[int]]] = []  # start, end, the rows
    for top in tops:
        _grow(top, [], free, tables, found)
    count = len(tables)
    order = generator.sample(range(count), count)  # row order[i] of the step is the i-th that grew
    ordered = [table for _, table in sorted(zip(order, tables, strict=True))] + [[slots]] * padding
    places = generator.sample(range(count + 3), count) + [count + 3] * padding
    pool = KVPool(layers=1, slots=slots, kv_heads=kv_heads, head_dim=head_dim, dtype=pool_dtype or dtype, device=DEVICE)
    values = torch.full(pool.entries[0].shape, float("nan"), device=DEVICE)
    owned = torch.tensor(sorted({slot for table in ordered for slot in table}), device=DEVICE)
    values[owned] = torch.randn(len(owned), values.shape[1], device=DEVICE)
    pool.entries[0].copy_(values.to(pool.entries[0].dtype))
    lengths = [len(table) for table in ordered]
    table_RL = torch.full((count + 4, max(lengths) + 5), -(10**9), dtype=torch.int32)
    for place, table in zip(places, ordered, strict=True):
        table_RL[place, : len(table)] = torch.tensor(table)
    rows = len(ordered)
    batch = AttentionBatch(
        torch.arange(rows + 1, dtype=torch.int32),
        [1] * rows,
        lengths,
        table_RL.to(DEVICE),
        torch.zeros(rows, dtype=torch.int64, device=DEVICE),
        torch.zeros(rows, dtype=torch.int64, device=DEVICE),
        rows_R=torch.tensor(places, dtype=torch.int32, device=DEVICE),
        lengths_R=torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
    )
    q_THD = torch.randn(rows, heads, head_dim, device=DEVICE, dtype=dtype)
    named = [(start, end, [order[row] for row in members]) for start, end, members in found]
    groups = RowGroups(
        _int32(places[members[0]] for _, _, members in named),
        _int32(start for start, _, _ in named),
        _int32(end for _, end, _ in named),
        _int32(len(members) for _, _, members in named),
        _int32(row for _, _, members in named for row in members),
    )
    return TreeCase(Case(pool, batch, q_THD, ordered), groups)


def attention_for(
    tree: TreeCase,
    shape: tuple[int, int, int],
    tuning: TreeTuning = SMALL_TREE,
    *,
    own_tuning: Tuning = SMALL,
    extra_rows: int = 0,
    **options: Any,
) -> TritonAttention:
    """Make the attention that is tested; own_tuning: of what rows attend to alone."""
    rows, dtype = len(tree.case.tables) + extra_rows, tree.case.q_THD.dtype
    return TritonAttention(*shape, max_rows=rows, device=DEVICE, dtype=dtype, tuning=own_tuning, tree=tuning, **options)


def packed_batch(tree: TreeCase, packed: PackedGroups, spare: int = 0) -> AttentionBatch:
    """Hand the groups to the batch as a step does: in a part of a larger transfer, with room behind them."""
    words_W = np.concatenate((_int32([7]), packed.words_W, np.full(spare, -(10**9), np.int32)))
    return replace(tree.case.batch, groups=Groups(torch.from_numpy(words_W).to(DEVICE)[1:], packed.kind))


def together(tree: TreeCase, attention: TritonAttention) -> Tensor:
    """Attend with the groups; every one must have been taken."""
    packed = attention.pack(tree.groups, len(tree.case.tables))
    assert packed is not None
    plan = attention.plan(packed_batch(tree, packed, spare=3))
    attention.attend(tree.case.q_THD, 0, tree.case.pool, plan)  # the second time finds the scratch as this one left it
    return attention.attend(tree.case.q_THD, 0, tree.case.pool, plan)


def check_tree(
    tree: TreeCase,
    shape: tuple[int, int, int],
    tolerance: float = 2e-5,
    tuning: TreeTuning = SMALL_TREE,
    **options: Any,
) -> None:
    attention = attention_for(tree, shape, tuning, **options)
    window = options.get("windows", (None,))[0]
    result = together(tree, attention)
    assert result.dtype == tree.case.q_THD.dtype
    expected = wanted(tree.case, attention.scale, window, options.get("soft_cap"))
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=tolerance)


def _slots(top: Level | int) -> int:
    return top if isinstance(top, int) else top.keys + sum(_slots(below) for below in top.below)


def _grow(
    top: Level | int,
    prefix: list[int],
    free: list[int],
    tables: list[list[int]],
    found: list[tuple[int, int, list[int]]],
) -> None:
    if isinstance(top, int):
        tables.append(prefix + [free.pop() for _ in range(top)])
        return
    begin, place = len(tables), len(found)
    longer = prefix + [free.pop() for _ in range(top.keys)]
    for below in top.below:
        _grow(below, longer, free, tables, found)
    found.insert(place, (len(prefix), len(longer), list(range(begin, len(tables)))))


def _int32(values: Any) -> np.ndarray:
    return np.array(list(values), np.int32)
