"""The reference attention gives what a loop over queries gives in float64, for any mix of rows."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from callboard.kernels.attention.interface import AttentionBatch
from callboard.kernels.attention.reference import ReferenceAttention
from callboard.kernels.kv_pool import KVPool

CPU = torch.device("cpu")


@dataclass
class Case:
    """A batch over a pool of random keys and values, and its queries."""

    pool: KVPool
    batch: AttentionBatch
    q_THD: Tensor


def draw(
    rows: list[tuple[int, int]], heads: int, kv_heads: int, head_dim: int, seed: int, dtype: torch.dtype = torch.float32
) -> Case:
    """Draw a case with rows of (queries, keys).  Rows share random prefixes of one another; tables are shuffled."""
    torch.manual_seed(seed)
    generator = random.Random(seed)
    slots = sum(keys for _, keys in rows) + 5
    pool = KVPool(layers=2, slots=slots, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, device=CPU)
    for entries in pool.entries:
        entries.normal_()
    free = generator.sample(range(slots), slots)
    tables: list[list[int]] = []
    for queries, keys in rows:
        parent = generator.choice(tables) if tables else []
        shared = parent[: generator.randrange(min(len(parent), keys - queries) + 1)]
        tables.append(shared + [free.pop() for _ in range(keys - len(shared))])
    # Behind a row's length stands rubbish: nothing may look at it.
    table_RL = torch.full((len(rows), max(keys for _, keys in rows) + 2), -(10**9), dtype=torch.int32)
    for number, table in enumerate(tables):
        table_RL[number, : len(table)] = torch.tensor(table)
    queries_R = [queries for queries, _ in rows]
    starts_R1 = torch.tensor([0, *torch.tensor(queries_R).cumsum(0).tolist()], dtype=torch.int32)
    slots_T = torch.tensor(
        [slot for table, (queries, _) in zip(tables, rows, strict=True) for slot in table[-queries:]]
    )
    batch = AttentionBatch(
        starts_R1, queries_R, [keys for _, keys in rows], table_RL, slots_T, torch.zeros_like(slots_T)
    )
    return Case(pool, batch, torch.randn(len(slots_T), heads, head_dim, dtype=dtype))


def naive(case: Case, layer: int, scale: float, window: int | None) -> Tensor:
    """Attend in float64, one query and one head at a time."""
    batch, outputs = case.batch, []
    heads_per_key_head = case.q_THD.shape[1] // case.pool.keys[layer].shape[1]
    for row, (queries, keys) in enumerate(zip(batch.query_lengths, batch.lengths, strict=True)):
        for number in range(queries):
            end = keys - queries + number + 1
            seen = batch.table_RL[row, max(0, end - (window or end)) : end].long()
            k = case.pool.keys[layer][seen].double()
            v = case.pool.values[layer][seen].double()
            q = case.q_THD[int(batch.query_starts_R1[row]) + number].double()
            heads = [
                torch.softmax(k[:, head // heads_per_key_head] @ q[head] * scale, 0) @ v[:, head // heads_per_key_head]
                for head in range(len(q))
            ]
            outputs.append(torch.stack(heads))
    return torch.stack(outputs)


def check(case: Case, attention: ReferenceAttention, tolerance: float = 2e-5) -> None:
    plan = attention.plan(case.batch)
    for layer in range(2):
        result = attention.attend(case.q_THD, layer, case.pool, plan)
        assert result.shape == case.q_THD.shape
        assert result.dtype == case.q_THD.dtype
        window = attention.windows[layer] if attention.windows else None
        wanted = naive(case, layer, attention.scale, window)
        torch.testing.assert_close(result.double(), wanted, rtol=0, atol=tolerance)


rows_of_a_step = st.lists(
    st.tuples(st.integers(1, 12) | st.just(1), st.integers(0, 40)).map(lambda pair: (pair[0], pair[0] + pair[1])),
    min_size=1,
    max_size=9,
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    rows=rows_of_a_step,
    shape=st.sampled_from([(1, 1, 2), (4, 4, 8), (6, 2, 4), (5, 1, 6), (10, 2, 32)]),
    seed=st.integers(0, 2**31),
    gather_bytes=st.sampled_from([1, 4096, 1 << 20]),
    windows=st.just(()) | st.tuples(*[st.none() | st.integers(1, 60)] * 2),
)
def test_any_mix_of_rows(
    rows: list[tuple[int, int]],
    shape: tuple[int, int, int],
    seed: int,
    gather_bytes: int,
    windows: tuple[int | None, ...],
) -> None:
    check(draw(rows, *shape, seed), ReferenceAttention(*shape, gather_bytes=gather_bytes, windows=windows))


@pytest.mark.parametrize(
    "rows",
    [
        [(1, 1)],
        [(1, 300)],
        [(1, 64)] * 8,
        [(1, keys) for keys in (1, 2, 3, 90, 400)],
        [(30, 30)] * 3,
        [(30, 50)] * 3,
        [(7, 7), (7, 9), (9, 9), (1, 9), (1, 1)],
        [(200, 200), (1, 700), (3, 500)],
    ],
    ids=str,
)
def test_shapes_with_paths_of_their_own(rows: list[tuple[int, int]]) -> None:
    check(draw(rows, 6, 2, 8, seed=7), ReferenceAttention(6, 2, 8))


@pytest.mark.parametrize("windows", [(1, None), (7, 7), (None, 64), (100, 701)], ids=str)
@pytest.mark.parametrize(
    "rows", [[(1, 300)], [(1, 64)] * 8, [(30, 30)] * 3, [(7, 7), (7, 90), (1, 9), (1, 1), (3, 200)]], ids=str
)
def test_a_layer_sees_its_window(rows: list[tuple[int, int]], windows: tuple[int | None, ...]) -> None:
    check(draw(rows, 6, 2, 8, seed=13), ReferenceAttention(6, 2, 8, windows=windows))


def test_a_window_bounds_the_mask_of_a_long_new_row() -> None:
    case = draw([(2300, 2300)], 1, 1, 2, seed=14)
    attention = ReferenceAttention(1, 1, 2, windows=(None, 50))
    plan = attention.plan(case.batch)
    assert [len(plan.parts(window)) for window in (None, 2300, 50)] == [1, 1, 2]
    check(case, attention)


def test_a_long_extension_of_a_long_prefix_is_cut_into_blocks() -> None:
    case = draw([(2300, 4000)], 1, 1, 2, seed=8)
    attention = ReferenceAttention(1, 1, 2)
    assert len(attention.plan(case.batch).parts(None)) > 1
    check(case, attention)


def test_the_scale_is_what_was_asked_for() -> None:
    case = draw([(1, 20), (5, 20)], 4, 2, 8, seed=9)
    check(case, ReferenceAttention(4, 2, 8, 0.9))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [[(1, 60), (1, 50)], [(1, 60)] * 4, [(20, 20)], [(9, 60), (1, 3), (8, 55)]], ids=str)
def test_half_precision_keeps_its_digits(dtype: torch.dtype, rows: list[tuple[int, int]]) -> None:
    check(draw(rows, 4, 2, 16, seed=10, dtype=dtype), ReferenceAttention(4, 2, 16), tolerance=2e-2)


def test_a_row_full_of_nan_spoils_no_other() -> None:
    case = draw([(1, 40), (1, 30), (6, 20), (9, 35)], 4, 2, 8, seed=11)
    attention = ReferenceAttention(4, 2, 8)
    clean = attention.attend(case.q_THD, 0, case.pool, attention.plan(case.batch))
    owned = {int(slot) for row, keys in enumerate(case.batch.lengths) for slot in case.batch.table_RL[row, :keys]}
    others = [slot for slot in range(case.pool.slots + 1) if slot not in owned]
    case.pool.entries[0][others] = float("nan")
    again = attention.attend(case.q_THD, 0, case.pool, attention.plan(case.batch))
    assert torch.equal(clean, again)


def test_slots_of_another_row_may_hold_nan() -> None:
    case = draw([(1, 40), (1, 30)], 4, 2, 8, seed=12)
    table_RL = torch.arange(70).view(1, 70).repeat(2, 1)
    table_RL[1] = torch.arange(40, 110)
    batch = AttentionBatch(
        case.batch.query_starts_R1, [1, 1], [40, 30], table_RL, case.batch.slots_T, case.batch.positions_T
    )
    case.pool.entries[0][:40] = float("nan")
    attention = ReferenceAttention(4, 2, 8)
    result = attention.attend(case.q_THD, 0, case.pool, attention.plan(batch))
    assert result[0].isnan().all()
    assert not result[1].isnan().any()


@pytest.mark.parametrize(("heads", "kv_heads"), [(5, 2), (2, 4), (4, 0)])
def test_heads_that_cannot_share_are_refused(heads: int, kv_heads: int) -> None:
    with pytest.raises(ValueError, match=rf"heads is {heads}; it must be a multiple of kv_heads \({kv_heads}\)"):
        ReferenceAttention(heads, kv_heads, 8)
