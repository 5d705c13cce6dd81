"""Batches for our Triton attention, what it should give, and whether it does."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from callboard.kernels.attention.interface import AttentionBatch
from callboard.kernels.attention.triton_attention import TritonAttention
from callboard.kernels.attention.tuning import DecodeTile, ExtendTile, Tuning
from callboard.kernels.kv_pool import KVPool

from ..triton_device import DEVICE

# Small blocks, so that short rows have several parts, tiles and blocks.
TILE = ExtendTile(16, 16, programs=12)
ROW = DecodeTile(keys=16, programs=12, smallest_part=16)
SMALL = Tuning(decode=ROW, own=ROW, extend=TILE, short=TILE)
MIXED = [(5, 5), (20, 41), (1, 1), (1, 70), (1, 16), (1, 33)]


@dataclass
class Case:
    """A batch over a pool that holds NaN wherever no row of the batch has a key."""

    pool: KVPool
    batch: AttentionBatch
    q_THD: Tensor
    tables: list[list[int]]


def draw(
    rows: list[tuple[int, int]],
    shape: tuple[int, int, int],
    seed: int = 0,
    *,
    extends: int | None = None,
    dtype: torch.dtype = torch.float32,
    pool_dtype: torch.dtype | None = None,
    lines: bool = True,
    fused_qkv: bool = False,
) -> Case:
    """Draw rows of (queries, keys) with shuffled tables; the first `extends` of them extend, the others decode.

    lines: rows lie anywhere in a larger table, as a worker's do.  fused_qkv: queries are a part of wider rows.
    """
    heads, kv_heads, head_dim = shape
    torch.manual_seed(seed)
    generator = random.Random(seed)
    extends = sum(1 for queries, _ in rows if queries > 1) if extends is None else extends
    slots = sum(keys for _, keys in rows) + 7
    pool = KVPool(layers=1, slots=slots, kv_heads=kv_heads, head_dim=head_dim, dtype=pool_dtype or dtype, device=DEVICE)
    free = generator.sample(range(slots), slots)
    tables = [[free.pop() for _ in range(keys)] for _, keys in rows]
    values = torch.full(pool.entries[0].shape, float("nan"), device=DEVICE)
    owned = torch.tensor([slot for table in tables for slot in table], device=DEVICE)
    values[owned] = torch.randn(len(owned), values.shape[1], device=DEVICE)
    pool.entries[0].copy_(values.to(pool.entries[0].dtype))
    places = generator.sample(range(len(rows) + 3), len(rows)) if lines else list(range(len(rows)))
    # Behind a row's length stands rubbish: nothing may look at it.
    table_RL = torch.full((len(rows) + 3, max(keys for _, keys in rows) + 5), -(10**9), dtype=torch.int32)
    for place, table in zip(places, tables, strict=True):
        table_RL[place, : len(table)] = torch.tensor(table)
    query_lengths, lengths = [queries for queries, _ in rows], [keys for _, keys in rows]
    starts_R1 = torch.tensor([0, *torch.tensor(query_lengths).cumsum(0).tolist()], dtype=torch.int32)
    slots_T = torch.tensor(
        [slot for table, queries in zip(tables, query_lengths, strict=True) for slot in table[-queries:]]
    )
    batch = AttentionBatch(
        starts_R1,
        query_lengths,
        lengths,
        table_RL.to(DEVICE),
        slots_T.to(DEVICE),
        torch.zeros_like(slots_T).to(DEVICE),
        rows_R=torch.tensor(places, dtype=torch.int32, device=DEVICE) if lines else None,
        lengths_R=torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
        starts_R1=starts_R1.to(DEVICE),
        extends=extends,
    )
    tokens = sum(query_lengths)
    if fused_qkv:
        wide = torch.randn(tokens, (heads + 2 * kv_heads) * head_dim, device=DEVICE, dtype=dtype)
        q_THD = wide[:, : heads * head_dim].unflatten(1, (heads, head_dim))
    else:
        q_THD = torch.randn(tokens, heads, head_dim, device=DEVICE, dtype=dtype)
    return Case(pool, batch, q_THD, tables)


def wanted(case: Case, scale: float, window: int | None = None, soft_cap: float | None = None) -> Tensor:
    """Attend in float64, a row at a time."""
    kv_heads = case.pool.keys[0].shape[1]
    outputs, start = [], 0
    for table, queries in zip(case.tables, case.batch.query_lengths, strict=True):
        slots = torch.tensor(table, device=DEVICE)
        # A pool of float8 is looked up as float32: torch indexes no float8.
        entries = case.pool.entries[0].float().unflatten(1, (kv_heads, 2, -1))[slots]
        ends = len(table) - queries + 1 + torch.arange(queries, device=DEVICE)[:, None]
        columns = torch.arange(len(table), device=DEVICE)
        hidden = columns >= ends
        if window:
            hidden |= columns < ends - window
        by_key_head = case.q_THD[start : start + queries].double().unflatten(1, (kv_heads, -1))
        shared = []
        for head in range(kv_heads):  # one at a time, for many queries of 100,000 keys have gigabytes of scores
            k, v = entries[:, head].double().unbind(1)
            scores = torch.einsum("ngd,ld->gnl", by_key_head[:, head], k) * scale
            if soft_cap:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), -1)
            shared.append(torch.einsum("gnl,ld->ngd", weights, v))
        outputs.append(torch.cat(shared, 1))
        start += queries
    return torch.cat(outputs)


def check(
    case: Case,
    shape: tuple[int, int, int],
    tolerance: float = 2e-5,
    *,
    scale: float | None = None,
    tuning: Tuning | None = SMALL,
    **options: Any,
) -> None:
    attention = TritonAttention(
        *shape,
        scale,
        max_rows=len(case.tables) + 1,
        device=DEVICE,
        dtype=case.q_THD.dtype,
        tuning=tuning,
        **options,
    )
    plan = attention.plan(case.batch)
    window = options.get("windows", (None,))[0]
    expected = wanted(case, attention.scale, window, options.get("soft_cap"))
    for _ in range(2):  # the second time finds the scratch as the first one left it
        result = attention.attend(case.q_THD, 0, case.pool, plan)
        assert result.shape == case.q_THD.shape
        assert result.dtype == case.q_THD.dtype
        torch.testing.assert_close(result.double(), expected, rtol=0, atol=tolerance)
