"""A pool of float8 keeps what is near, saturates at what it can hold, and is read alike by every attention."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from callboard.kernels import rope
from callboard.kernels.attention.reference import ReferenceAttention
from callboard.kernels.attention.row_groups import RowGroups
from callboard.kernels.attention.tree_tuning import TreeTuning
from callboard.kernels.kv_pool import FLOAT8, KVPool, saturated

from .triton_device import DEVICE, GPU  # before what imports triton

# isort: split
from callboard.kernels.attention.invariant_attention import InvariantAttention
from callboard.kernels.attention.triton_attention import Extend, TritonAttention
from callboard.kernels.fused import rope as fused_rope

from .attention.triton_cases import SMALL, draw, wanted

CPU = torch.device("cpu")
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8
STORES = pytest.mark.parametrize(
    "store", [rope.rotate_and_store_, fused_rope.rotate_and_store_], ids=["torch", "triton"]
)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
MIXED = [(9, 30), (4, 4), (1, 50), (1, 2), (1, 17)]
SHAPE = (4, 2, 16)


def kept(qkv_TXD: Tensor, store: Callable[..., None]) -> Tensor:
    """Store tokens that are not rotated in a pool of float8; returns [T, 2 * KV_HEADS, HEAD_DIM]: keys, then values."""
    device = DEVICE if store is fused_rope.rotate_and_store_ else CPU
    tokens = len(qkv_TXD)
    pool = KVPool(layers=1, slots=2 * tokens, kv_heads=KV_HEADS, head_dim=HEAD_DIM, dtype=FLOAT8, device=device)
    rotations_LP = torch.ones(1, HEAD_DIM // 2, dtype=torch.complex64, device=device)
    positions_T = torch.zeros(tokens, dtype=torch.int64, device=device)
    slots_T = torch.randperm(2 * tokens, device=device)[:tokens]
    store(qkv_TXD.to(device), rotations_LP, positions_T, slots_T, pool.entries[0], HEADS, KV_HEADS)
    entries = pool.entries[0].float()
    empty = torch.ones(2 * tokens + 1, dtype=torch.bool, device=device).index_fill_(0, slots_T, False)
    assert not entries[empty].any()
    return entries[slots_T].unflatten(1, (KV_HEADS, 2, HEAD_DIM)).transpose(1, 2).flatten(1, 2).cpu()


def tokens_of(values: Tensor) -> Tensor:
    """Repeat values, [T, HEAD_DIM], as every head of a token's queries, keys and values."""
    return values.unsqueeze(1).repeat(1, HEADS + 2 * KV_HEADS, 1)


@DTYPES
@STORES
def test_what_is_stored_is_the_nearest_there_is(store: Callable[..., None], dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    # Four significant bits; near one of their steps but never past the last: there the interpreter rounds wrongly.
    steps = torch.randint(0, 7, (12, HEAD_DIM)) / 8
    powers = 2.0 ** torch.arange(-5, 7).unsqueeze(1) * torch.tensor([1, -1]).repeat(HEAD_DIM // 2)
    near = steps + (torch.rand(12, HEAD_DIM) * 0.9) / 16
    result = kept(tokens_of(((1 + near) * powers).to(dtype)), store)
    assert torch.equal(result, tokens_of((1 + steps) * powers)[:, HEADS:])


@DTYPES
@STORES
def test_what_is_out_of_range_saturates(store: Callable[..., None], dtype: torch.dtype) -> None:
    # 464 is the middle between 448 and what would be next; 480 has the pattern that stands for NaN.
    beyond = torch.tensor([[448, 456, 464, 465, 480, 500, 3e4, 6e4]])
    result = kept(tokens_of(torch.cat((beyond, -beyond)).to(dtype)), store)
    assert torch.equal(result[0], torch.full_like(result[0], 448))
    assert torch.equal(result[1], torch.full_like(result[1], -448))


@pytest.mark.parametrize(
    "store",
    [
        rope.rotate_and_store_,
        # The interpreter's own conversion makes a number of it.
        pytest.param(
            fused_rope.rotate_and_store_,
            marks=[pytest.mark.gpu, pytest.mark.skipif(not GPU, reason="no GPU")],
        ),
    ],
)
def test_what_is_no_number_stays_so(store: Callable[..., None]) -> None:
    values = torch.zeros(2, HEAD_DIM)
    values[0, 2:4] = float("nan")  # a rotary pair
    assert torch.equal(kept(tokens_of(values), store).isnan(), tokens_of(values)[:, HEADS:].isnan())


@DTYPES
@pytest.mark.parametrize("device", [CPU, pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)], ids=str)
def test_torch_converts_as_the_kernel_does(dtype: torch.dtype, device: torch.device) -> None:
    if device.type == "cuda" and not GPU:
        pytest.skip("no GPU")
    given = torch.tensor([0.3, 448, 465, -480, 1e4, float("inf"), -float("inf"), float("nan")])
    result = saturated(given.to(device, dtype), FLOAT8).float().cpu()
    wanted = torch.tensor([0.3125, 448, 448, -448, 448, 448, -448, float("nan")])
    torch.testing.assert_close(result, wanted, rtol=0, atol=0, equal_nan=True)


def test_other_pools_keep_what_they_are_given() -> None:
    x = torch.randn(3, 4) * 1e4
    assert saturated(x, torch.float32) is x


def test_tokens_are_written_by_slot() -> None:
    torch.manual_seed(2)
    pool = KVPool(layers=1, slots=5, kv_heads=KV_HEADS, head_dim=HEAD_DIM, dtype=FLOAT8, device=CPU)
    keys, values = torch.randn(2, 3, KV_HEADS, HEAD_DIM) * torch.tensor([1.0, 1e3]).view(2, 1, 1, 1)
    slots = torch.tensor([4, 0, 2])
    pool.write(0, slots, keys, values)
    assert torch.equal(pool.keys[0].float()[slots], keys.to(FLOAT8).float())
    assert torch.equal(pool.values[0].float()[slots], values.clamp(-448, 448).to(FLOAT8).float())
    assert not pool.entries[0].float()[[1, 3, 5]].any()


def attentions(
    dtype: torch.dtype,
) -> dict[str, Callable[[], ReferenceAttention | TritonAttention | InvariantAttention]]:
    more = {"device": DEVICE, "dtype": dtype}
    return {
        "reference": lambda: ReferenceAttention(*SHAPE),
        "triton": lambda: TritonAttention(*SHAPE, max_rows=len(MIXED), tuning=SMALL, **more),
        "invariant": lambda: InvariantAttention(*SHAPE, **more),
    }


@pytest.mark.parametrize("name", ["reference", "triton", "invariant"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
def test_every_attention_reads_it(name: str, dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(3)
    case = draw(MIXED, SHAPE, dtype=dtype, pool_dtype=FLOAT8)
    attention = attentions(dtype)[name]()
    result = attention.attend(case.q_THD, 0, case.pool, attention.plan(case.batch))
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), wanted(case, attention.scale), rtol=0, atol=tolerance)


def test_a_prefix_of_half_as_many_bytes_is_shared_from_twice_as_many_tokens_on() -> None:
    def shared(keys: int, kv_dtype: torch.dtype | None) -> bool:
        lines, starts, ends, counts, members = (np.array(x, np.int32) for x in ([0], [0], [keys], [16], range(16)))
        more = {"max_rows": 16, "device": DEVICE, "dtype": torch.bfloat16, "kv_dtype": kv_dtype, "tree": TreeTuning()}
        return TritonAttention(32, 8, 128, **more).pack(RowGroups(lines, starts, ends, counts, members), 16) is not None

    assert [shared(keys, None) for keys in (320, 640, 1280)] == [False, True, True]
    assert [shared(keys, FLOAT8) for keys in (320, 640, 1280)] == [False, False, True]


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="no GPU")
@pytest.mark.parametrize(("extend", "rows"), [("flash", [(70, 300), (1, 50)]), ("cudnn", [(2048, 2048), (1, 50)])])
def test_a_librarys_extend_reads_it(extend: Extend, rows: list[tuple[int, int]]) -> None:
    shape = (8, 2, 64)
    case = draw(rows, shape, dtype=torch.bfloat16, pool_dtype=FLOAT8)
    attention = TritonAttention(*shape, max_rows=3, device=DEVICE, dtype=torch.bfloat16, extend=extend)
    result = attention.attend(case.q_THD, 0, case.pool, attention.plan(case.batch))
    torch.testing.assert_close(result.double(), wanted(case, attention.scale), rtol=0, atol=2e-2)
