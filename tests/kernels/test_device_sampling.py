"""On a device, rows are sampled as on a CPU; cuts are found without a sort, and mean the same."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from callboard.kernels.random import key_of, uniform

from .triton_device import DEVICE, GPU

import triton  # isort: skip
import triton.language as tl  # isort: skip

from callboard.kernels.sampler import draw  # isort: skip
from callboard.kernels.sampler.parameters import DeviceSampling  # isort: skip
from callboard.kernels.sampler.sampler import Sampler, Tuning  # isort: skip

NEEDS_GPU = [pytest.mark.gpu, pytest.mark.skipif(not GPU, reason="needs a GPU")]
VOCABULARY = 128_256 if GPU else 250
# Small pieces, so that a small vocabulary has many of them.
TUNING = Tuning() if GPU else Tuning(block=32, scan_blocks=4, narrow_tile=128, narrow_tiles=2, weigh_blocks=8)


@dataclass
class Outcome:
    tokens: Tensor
    best: Tensor
    last_tokens: Tensor


def parameters_of(rows: list[dict[str, Any]]) -> DeviceSampling:
    parameters = DeviceSampling.empty(len(rows), DEVICE)
    for index, row in enumerate(rows):
        parameters.temperature_R[index] = row.get("temperature", 0.0)
        parameters.top_k_R[index] = row.get("top_k", 0)
        parameters.top_p_R[index] = row.get("top_p", 1.0)
        parameters.min_p_R[index] = row.get("min_p", 0.0)
        parameters.keys_R[index] = key_of(row.get("seed", index))
    return parameters


def sample(
    logits: Tensor, rows: list[dict[str, Any]], position: int, order: list[int] | None = None, cuts: bool = True
) -> Outcome:
    """Sample a line of logits for each of `order`, which names rows; results are poisoned before."""
    order = list(range(len(rows))) if order is None else order
    count, vocabulary = logits.shape
    sampler = Sampler(count, vocabulary, DEVICE, TUNING)
    outcome = Outcome(
        torch.full((count,), -7, dtype=torch.int32, device=DEVICE),
        torch.full((count,), 7.0e7, device=DEVICE),
        torch.full((len(rows),), -7, dtype=torch.int64, device=DEVICE),
    )
    sampler.sample(
        logits.to(DEVICE),
        torch.tensor(order, dtype=torch.int32, device=DEVICE),
        torch.full((count,), position, dtype=torch.int64, device=DEVICE),
        parameters_of(rows),
        outcome.tokens,
        outcome.best,
        outcome.last_tokens,
        cuts=cuts,
    )
    return outcome


def kept_weights(logits: Tensor, row: dict[str, Any]) -> np.ndarray:
    """Cut a row the plain way, in float64: sort, then look at each token."""
    values = logits.double().numpy()
    weights = np.exp((values - values.max()) / row["temperature"])
    order = np.lexsort((np.arange(len(values)), -values))
    before = np.cumsum(weights[order]) - weights[order]
    top_p = np.float32(row.get("top_p", 1.0))
    kept = np.zeros(len(values), bool)
    kept[order] = (
        (np.arange(len(values)) < (row.get("top_k", 0) or len(values)))
        & ((before <= top_p * weights.sum()) | (top_p >= 1.0))
        & (weights[order] >= np.float32(row.get("min_p", 0.0)))
    )
    return np.where(kept, weights, 0.0)


def is_right(token: int, logits: Tensor, row: dict[str, Any], position: int, seed: int) -> bool:
    """Tell whether a token is the one to draw; where two share a bound, float32 may take it for either's."""
    if row.get("temperature", 0.0) == 0.0:
        return token == int(logits.float().numpy().argmax())
    weights = kept_weights(logits, row)
    cumulative = np.cumsum(weights) / weights.sum()
    share = uniform(np.array([key_of(row.get("seed", seed))]), np.array([position]))[0]
    before = cumulative[token - 1] if token else 0.0
    return bool(weights[token] > 0 and before - 1e-5 <= share <= cumulative[token] + 1e-5)


ROWS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.3},
    {"temperature": 2.5},
    *({"temperature": 1.0, "top_k": k} for k in (2, 60, 249)),
    *({"temperature": 1.0, "top_p": p} for p in (1e-6, 0.5, 0.999)),
    *({"temperature": 1.0, "min_p": p} for p in (0.02, 1.0)),
    {"temperature": 1.5, "top_k": 9, "top_p": 0.8, "min_p": 0.1},
    {"temperature": 0.7, "top_p": 0.4},
]


@pytest.mark.parametrize(
    ("dtype", "rows"),
    [(torch.bfloat16, ROWS), (torch.float32, [*ROWS[2:5], ROWS[7]]), (torch.float16, ROWS[-2:])],
    ids=["bfloat16", "float32", "float16"],
)
def test_every_row_draws_what_the_plain_loop_draws(dtype: torch.dtype, rows: list[dict[str, Any]]) -> None:
    generator = torch.Generator().manual_seed(7)
    vocabulary = VOCABULARY + (50 if dtype == torch.bfloat16 else 0)  # then more than one program searches a row
    for position in range(20 if GPU else 1):
        logits = (torch.randn(len(rows), vocabulary, generator=generator) * 3).to(dtype)
        outcome = sample(logits, rows, position)
        for index, (token, row) in enumerate(zip(outcome.tokens.tolist(), rows, strict=True)):
            assert is_right(token, logits[index], row, position, index), row
        assert outcome.best.tolist() == logits.float().amax(-1).tolist()
        assert outcome.last_tokens.tolist() == outcome.tokens.tolist()


# Through the interpreter 120 draws take seconds; with cuts it would be a minute.
@pytest.mark.parametrize(
    "cut",
    [{}, *(pytest.param(cut, marks=NEEDS_GPU) for cut in ({"top_k": 12, "top_p": 0.9}, {"min_p": 0.1}))],
    ids=["no cut", "joint", "min_p"],
)
def test_draws_follow_the_distribution(cut: dict[str, Any]) -> None:
    vocabulary, lines, positions = 32, 1000 if GPU else 30, 20 if GPU else 4
    row = {"temperature": 0.9, **cut}
    logits = (torch.randn(vocabulary, generator=torch.Generator().manual_seed(3)) * 1.5).bfloat16()
    rows = [{**row, "seed": seed} for seed in range(lines)]
    drawn = [
        sample(logits.expand(lines, -1).contiguous(), rows, at, cuts=bool(cut)).tokens.cpu().numpy()
        for at in range(positions)
    ]
    observed = np.bincount(np.concatenate(drawn), minlength=vocabulary)
    weights = kept_weights(logits, row)
    expected = weights / weights.sum() * lines * positions
    kept = weights > 0
    assert not observed[~kept].any()
    chi_square = ((observed[kept] - expected[kept]) ** 2 / expected[kept]).sum()
    freedom = kept.sum() - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)  # four deviations


def test_a_row_draws_the_same_alone_in_any_line_and_without_the_cuts_of_others() -> None:
    rows: list[dict[str, Any]] = [{}, {"temperature": 1.0, "top_k": 5}, {"temperature": 0.8}]
    logits = torch.randn(len(rows), VOCABULARY, generator=torch.Generator().manual_seed(1)) * 2
    together = sample(logits, rows, 5)
    order = [2, 0, 1]
    assert sample(logits[order], rows, 5, order).tokens.tolist() == together.tokens[order].tolist()
    for index, row in enumerate(rows):
        plain = set(row) <= {"temperature"}
        alone = sample(logits[index : index + 1], rows, 5, [index], cuts=not plain)
        assert alone.tokens.tolist() == together.tokens[index : index + 1].tolist()


def test_equal_logits_are_ordered_by_id() -> None:
    logits = torch.zeros(3, 250, dtype=torch.bfloat16)
    logits[:, 100] = 1.0
    logits[:, [0, 200]] = -0.0  # which is no less than 0
    rows = [
        {"temperature": 1.0, "top_k": 3},
        {"temperature": 100.0, "top_p": 0.011},  # the best, then as many as one percent has room for
        {},
    ]
    drawn = [sample(logits, rows, position).tokens.tolist() for position in range(7)]
    assert {tokens[0] for tokens in drawn} == {100, 0, 1}
    assert {tokens[1] for tokens in drawn} == {100, 0, 1}
    assert {tokens[2] for tokens in drawn} == {100}
    assert sample(torch.zeros(1, 250), [{}], 0).tokens.tolist() == [0]


def test_what_is_masked_is_never_drawn() -> None:
    logits = torch.full((5, VOCABULARY), -torch.inf)
    allowed = [5, 70, VOCABULARY - 1]
    logits[:, allowed] = torch.tensor([1.0, 0.0, 0.5])
    rows = [{"temperature": 1.0, **cut} for cut in ({}, {"top_k": 50}, {"top_p": 0.99}, {"min_p": 0.01}, {"top_k": 2})]
    for position in range(2):
        outcome = sample(logits, rows, position)
        assert set(outcome.tokens.tolist()) <= set(allowed)
        assert outcome.tokens[4].item() != 70


def test_a_row_of_nan_or_of_nothing_shows_and_harms_no_other() -> None:
    rows: list[dict[str, Any]] = [{"temperature": 1.0, "top_p": 0.9}, {}, {"temperature": 1.0}] * 3
    logits = torch.randn(len(rows), VOCABULARY, generator=torch.Generator().manual_seed(9))
    healthy = sample(logits, rows, 3).tokens
    logits[3:6, 17] = torch.nan
    logits[6:] = -torch.inf
    outcome = sample(logits, rows, 3)
    assert outcome.tokens[:3].tolist() == healthy[:3].tolist()
    assert outcome.best[3:6].isnan().all()
    assert (outcome.best[6:] == -torch.inf).all()
    assert ((outcome.tokens >= 0) & (outcome.tokens < VOCABULARY)).all()


def test_padding_gets_nothing_and_lines_may_stand_apart() -> None:
    rows: list[dict[str, Any]] = [{"temperature": 1.0}, {"temperature": 1.0, "top_k": 4}]
    wide = torch.randn(3, VOCABULARY + 24, generator=torch.Generator().manual_seed(6)).to(DEVICE)
    logits = wide[:, :VOCABULARY]
    outcome = sample(logits, rows, 2, [1, -1, 0])
    again = sample(logits[[2, 0]].contiguous(), rows, 2)
    assert outcome.tokens.tolist() == [again.tokens[1].item(), -7, again.tokens[0].item()]
    assert outcome.best[1].item() == 7.0e7
    assert outcome.last_tokens.tolist() == again.tokens.tolist()


@pytest.mark.parametrize("cuts", [False, True])
@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_a_graph_samples_with_what_stands_on_the_device_and_nothing_waits(cuts: bool) -> None:
    count, vocabulary = 5, 4000
    sampler, parameters = Sampler(count, vocabulary, DEVICE), DeviceSampling.empty(count, DEVICE)
    logits = torch.randn(count, vocabulary, device=DEVICE, dtype=torch.bfloat16) * 3
    rows, positions = torch.arange(count, device=DEVICE), torch.zeros(count, dtype=torch.int64, device=DEVICE)
    tokens, last = torch.zeros(count, dtype=torch.int32, device=DEVICE), torch.zeros_like(rows)
    best = torch.zeros(count, device=DEVICE)

    def run() -> None:
        sampler.sample(logits, rows, positions, parameters, tokens, best, last, cuts=cuts)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for position in range(3):
        row = {"temperature": 1.0 + position, "top_k": 20 if cuts else 0}
        parameters.temperature_R.fill_(row["temperature"])
        parameters.top_k_R.fill_(row["top_k"])
        parameters.keys_R.fill_(key_of(position))
        positions.fill_(position)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            graph.replay()
            replayed = tokens.clone()
            run()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert replayed.tolist() == tokens.tolist()
        for token, line in zip(tokens.tolist(), logits.cpu(), strict=True):
            assert is_right(token, line, row, position, position)


@triton.jit
def write_uniforms(keys, positions, out):
    at = tl.program_id(0)
    tl.store(out + at, draw.uniform(tl.load(keys + at), tl.load(positions + at)))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_the_uniform_numbers_have_the_bits_of_the_host_s(dtype: torch.dtype) -> None:
    keys = np.array([key_of(seed) for seed in (0, 1, 2, 12345, 2**62, 2**63 - 1)])
    positions = np.array([0, 1, 77, 100_000, 2**31 - 2, 5])
    out = torch.full((len(keys),), torch.nan, dtype=torch.float64, device=DEVICE)
    write_uniforms[len(keys),](torch.from_numpy(keys).to(DEVICE), torch.from_numpy(positions).to(DEVICE, dtype), out)
    assert out.tolist() == uniform(keys, positions).tolist()
