"""What flashinfer is told is right, what it cannot do is refused, and on a GPU it gives what float64 gives."""

from __future__ import annotations

from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ..triton_device import DEVICE, GPU

pytest.importorskip("triton")

from callboard.actors.worker.attention import choose_attention
from callboard.actors.worker.options import WorkerOptions
from callboard.kernels.attention.flashinfer_attention import FlashInferAttention
from callboard.kernels.attention.flashinfer_sizes import row_starts, scratch_bytes, window_left
from callboard.kernels.attention.flashinfer_tools import flashinfer_lacks
from callboard.kernels.attention.row_groups import RowGroups

from .triton_cases import Case, draw, wanted

# --- what it is told ---


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40))
def test_rows_start_where_those_before_them_end(lengths: list[int]) -> None:
    starts = row_starts(np.array(lengths, np.int32))
    assert starts.dtype == np.int32
    assert starts.tolist() == [sum(lengths[:row]) for row in range(len(lengths) + 1)]


def test_a_window_counts_the_keys_before_the_query() -> None:
    assert [window_left(window) for window in (None, 1, 4096)] == [-1, 0, 4095]


@pytest.mark.parametrize(("heads", "kv_heads"), [(32, 8), (16, 8), (64, 1), (8, 8), (128, 1)])
@pytest.mark.parametrize("rows", [1, 33, 256])
def test_the_scratch_holds_every_part_of_a_decoding_step(heads: int, kv_heads: int, rows: int) -> None:
    """Lengths vary, but a graph's tiles of queries do not: this counts them row by row."""
    group, tile = heads // kv_heads, 16
    while tile < heads // kv_heads:
        tile = {16: 64, 64: 128}[tile]
    tiles = max(rows * -(-group // tile), 2 * 132 // kv_heads)
    parts = heads * tiles * tile
    assert scratch_bytes(heads, kv_heads, 128, rows, 132) >= parts * 128 * 4 + parts * 4


# --- what it lacks ---


def found(name: str, *present: str) -> ModuleSpec | None:
    return ModuleSpec(name, None, origin=f"/nowhere/{name}/__init__.py") if name in present else None


@pytest.mark.parametrize(
    ("packages", "tools", "environment", "told"),
    [
        ((), ("nvcc", "ninja"), {}, r"not installed: pip install 'callboard\[flashinfer\]'"),
        (("flashinfer",), ("ninja",), {}, "nvcc, which is not found: install CUDA's toolkit"),
        (("flashinfer",), ("nvcc", "ninja"), {"CUDA_HOME": "/none"}, "name its folder in CUDA_HOME"),
        (("flashinfer",), ("nvcc",), {}, "ninja, which is not on the PATH: pip install ninja, and add /"),
    ],
    ids=str,
)
def test_it_says_what_is_missing_and_what_to_do(
    packages: tuple[str, ...], tools: tuple[str, ...], environment: dict[str, str], told: str
) -> None:
    lacking = flashinfer_lacks(
        lambda name: found(name, *packages), lambda name: name if name in tools else None, environment
    )
    assert lacking is not None
    with pytest.raises(ValueError, match=told):
        raise ValueError(lacking)


def test_nothing_is_missing_where_it_can_compile_or_came_compiled(tmp_path: Path) -> None:
    def which(name: str) -> str | None:
        return name if name in {"/cuda/bin/nvcc", "ninja"} else None

    assert flashinfer_lacks(lambda name: found(name, "flashinfer"), which, {"CUDA_HOME": "/cuda"}) is None
    assert (
        flashinfer_lacks(lambda name: found(name, "flashinfer"), which, {"FLASHINFER_NVCC": "/cuda/bin/nvcc"}) is None
    )
    cached = ("flashinfer", "flashinfer_jit_cache")
    assert flashinfer_lacks(lambda name: found(name, *cached), lambda _: None, {}) is None
    kernel = tmp_path / "data" / "aot" / "prefill" / "prefill.so"
    kernel.parent.mkdir(parents=True)
    here = ModuleSpec("flashinfer", None, origin=str(tmp_path / "__init__.py"))
    assert flashinfer_lacks(lambda name: here if name == "flashinfer" else None, lambda _: None, {}) is not None
    kernel.touch()
    assert flashinfer_lacks(lambda name: here if name == "flashinfer" else None, lambda _: None, {}) is None


GOOD: dict[str, Any] = {"heads": 4, "kv_heads": 2, "head_dim": 64, "max_rows": 3, "context_length": 100}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heads": 5}, r"heads is 5; it must be a multiple of kv_heads \(2\)"),
        ({"head_dim": 80}, "head_dim is 80; it must be 64, 128 or 256"),
        ({"dtype": torch.float32}, r"dtype is torch\.float32; it must be bfloat16 or float16"),
        ({"max_rows": 0}, "max_rows is 0; it must be at least 1"),
        ({"context_length": 0}, "context_length is 0; it must be at least 1"),
        ({"max_rows": 1 << 12, "context_length": 1 << 19}, "is 2147483648; it must be below 2147483648"),
        ({"scale": -1.0}, r"scale is -1\.0; it must be above 0"),
        ({"windows": (None, 0)}, r"windows is \(None, 0\); each must be at least 1, or None"),
        ({"soft_cap": -1.0}, r"soft_cap is -1\.0; it must be above 0, or None"),
        ({"device": torch.device("cpu")}, "device is cpu; it must be a GPU"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FlashInferAttention(**{**GOOD, "dtype": torch.bfloat16, "device": torch.device("cuda"), **arguments})


def test_a_worker_asks_for_it_by_name() -> None:
    options = WorkerOptions(folder="none", attention="flashinfer")
    options.verify()
    config: Any = type("Config", (), {"head_dim": 64, "heads": 4, "kv_heads": 2, "windows": (), "context_length": 9})
    with pytest.raises(ValueError, match="attention is 'flashinfer', which needs a GPU; the device is cpu"):
        choose_attention(options, config, torch.device("cpu"), torch.float32, torch.float32)
    if flashinfer_lacks() is not None:
        with pytest.raises(ValueError, match="attention is 'flashinfer'; flashinfer "):
            choose_attention(options, config, torch.device("cuda"), torch.bfloat16, torch.bfloat16)


def test_its_results_depend_on_the_batch() -> None:
    options = WorkerOptions(folder="none", device="cuda", attention="flashinfer", deterministic=True)
    with pytest.raises(ValueError, match="attention is 'flashinfer'; with deterministic=True it must be 'auto'"):
        options.verify()


# --- on a GPU ---

needs_it = pytest.mark.skipif(not GPU or flashinfer_lacks() is not None, reason="needs a CUDA device and flashinfer")
SHAPE = (32, 8, 128)
LONGEST = 100_000
WINDOW_AND_CAP = {"windows": (4096,), "soft_cap": 30.0}
ROWS = [
    [(1, keys) for keys in (1, 2, 63, 64, 65, 500, 8192, LONGEST)],
    [(1, 1000 + 7 * row) for row in range(200)],
    [(1, 5000)],
    [(1, 1)] * 130,
    [(300, 300), (77, 4000), (2000, 2000), (1, 16), (1, 8192), (1, LONGEST)],
    [(300, LONGEST), (1, 50)],
    [(5, 30_000), (64, 64), (1, 1), (1, 50)],
    [(1, 900), (1, 70)],
]


def made(case: Case, shape: tuple[int, int, int] = SHAPE, **options: Any) -> FlashInferAttention:
    longest = case.batch.table_RL.shape[1]
    return FlashInferAttention(
        *shape, max_rows=len(case.tables), context_length=longest, device=DEVICE, dtype=case.q_THD.dtype, **options
    )


def check(case: Case, attention: FlashInferAttention, result: torch.Tensor, **options: Any) -> None:
    expected = wanted(case, attention.scale, options.get("windows", (None,))[0], options.get("soft_cap"))
    assert result.dtype == case.q_THD.dtype
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=2e-2)


@pytest.mark.gpu
@needs_it
@pytest.mark.parametrize("rows", ROWS, ids=lambda rows: f"{len(rows)} rows to {max(keys for _, keys in rows)}")
@pytest.mark.parametrize("shape", [SHAPE, (16, 8, 128), (28, 4, 128), (8, 8, 128)], ids=str)
@pytest.mark.parametrize("options", [{}, WINDOW_AND_CAP], ids=str)
def test_rows_of_any_length_in_bfloat16(
    rows: list[tuple[int, int]], shape: tuple[int, int, int], options: dict[str, Any]
) -> None:
    case = draw(rows, shape, dtype=torch.bfloat16, fused_qkv=True)
    attention = made(case, shape, **options)
    plan = attention.plan(case.batch)
    for _ in range(2):  # the second time finds the scratch as the first one left it
        check(case, attention, attention.attend(case.q_THD, 0, case.pool, plan), **options)


@pytest.mark.gpu
@needs_it
def test_one_new_token_may_come_as_an_extend() -> None:
    case = draw([(1, 1), (1, 900), (7, 70), (1, 33)], SHAPE, extends=3, dtype=torch.bfloat16)
    attention = made(case)
    check(case, attention, attention.attend(case.q_THD, 0, case.pool, attention.plan(case.batch)))


@pytest.mark.gpu
@needs_it
def test_layers_with_and_without_a_window_share_a_step() -> None:
    case = draw([(200, 700), (1, 3000), (1, 40)], SHAPE, dtype=torch.bfloat16)
    case.pool.keys *= 2
    case.pool.values *= 2
    attention = made(case, windows=(None, 512))
    plan = attention.plan(case.batch)
    check(case, attention, attention.attend(case.q_THD, 0, case.pool, plan))
    check(case, attention, attention.attend(case.q_THD, 1, case.pool, plan), windows=(512,))


@pytest.mark.gpu
@needs_it
@pytest.mark.parametrize("windows", [(), (None, 512)], ids=str)
def test_a_captured_step_is_replayed_with_other_lengths_ahead_of_the_device(windows: tuple[int | None, ...]) -> None:
    """The host plans several steps before the device begins the first: no plan is written over one not yet read."""
    case = draw([(1, 3000)] * 5, SHAPE, dtype=torch.bfloat16)
    case.pool.keys *= 2
    case.pool.values *= 2
    attention, lengths_R = made(case, windows=windows), case.batch.lengths_R
    assert lengths_R is not None
    layer = max(0, len(windows) - 1)
    attention.attend(case.q_THD, layer, case.pool, attention.plan(case.batch))
    graph, upper = torch.cuda.CUDAGraph(), replace(case.batch, lengths=[3005] * 5)
    with torch.cuda.graph(graph):
        out_THD = attention.attend(case.q_THD, layer, case.pool, attention.plan(upper))
    steps = [[3000, 1, 2999, 64, 700], [5] * 5, [1, 1, 1, 1, 3000], [3000] * 5, [17, 600, 2000, 2, 900]]
    told = [torch.tensor(lengths, dtype=torch.int32, device=DEVICE) for lengths in steps]
    torch.cuda._sleep(100_000_000)
    results: list[torch.Tensor] = []
    for lengths, given_R in zip(steps, told, strict=True):
        lengths_R.copy_(given_R)
        attention.replay(np.array(lengths, np.int32))
        graph.replay()
        results.append(out_THD.clone())
    for lengths, result in zip(steps, results, strict=True):
        tables = [table[:length] for table, length in zip(case.tables, lengths, strict=True)]
        check(Case(case.pool, case.batch, case.q_THD, tables), attention, result, windows=windows[-1:] or (None,))


@pytest.mark.gpu
@needs_it
def test_nothing_waits_for_the_device() -> None:
    case = draw([(200, 700), (1, 3000), (1, 40)], SHAPE, dtype=torch.bfloat16)
    attention = made(case)
    attention.plan(case.batch)  # the first step of so many rows makes what plans them
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = attention.attend(case.q_THD, 0, case.pool, attention.plan(case.batch))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    check(case, attention, result)


@pytest.mark.gpu
@needs_it
def test_rows_attend_alone_and_to_their_own_precision() -> None:
    case = draw([(1, 40)] * 4, SHAPE, dtype=torch.bfloat16, pool_dtype=torch.float8_e4m3fn)
    attention = made(case)
    ints = [np.array(values, np.int32) for values in ([0], [0], [20], [2], [0, 1])]
    assert attention.pack(RowGroups(*ints), 4) is None
    with pytest.raises(ValueError, match=r"it holds torch\.float8_e4m3fn; with attention 'flashinfer' it must be"):
        attention.attend(case.q_THD, 0, case.pool, attention.plan(case.batch))


@pytest.mark.gpu
@needs_it
def test_more_than_it_was_made_for_is_refused() -> None:
    attention = made(draw([(1, 40)] * 2, SHAPE, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="3 rows decode; FlashInferAttention was made for 2"):
        attention.plan(draw([(1, 3)] * 3, SHAPE, dtype=torch.bfloat16).batch)
    with pytest.raises(ValueError, match="have 102 keys; FlashInferAttention was made for 90"):
        attention.plan(draw([(1, 51)] * 2, SHAPE, dtype=torch.bfloat16).batch)
