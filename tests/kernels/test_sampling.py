"""Sampling does, for all rows at once, what a plain loop over one row's tokens in float64 does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from callboard.kernels import sampling
from callboard.kernels.random import key_of, uniform
from callboard.kernels.sampling import Draw, Sorting, sample

VOCABULARY = 200


def reference(
    logits: list[float], share: float, temperature: float, top_k: int = -1, top_p: float = 1.0, min_p: float = 0.0
) -> int:
    """Draw one token the plain way: sort, cut, walk."""
    best = max(logits)
    if temperature == 0:
        return logits.index(best)
    weights = [math.exp((logit - best) / temperature) for logit in logits]
    order = list(range(len(logits)))
    if top_k > 0 or top_p < 1.0:
        order.sort(key=lambda token: (-weights[token], token))
    kept, before, total = [], 0.0, sum(weights)
    for rank, token in enumerate(order):
        if (top_k < 1 or rank < top_k) and before <= top_p * total and weights[token] >= min_p:
            kept.append(token)
        before += weights[token]
    target, walked = share * sum(weights[token] for token in kept), 0.0
    for token in kept:
        walked += weights[token]
        if walked > target:
            return token
    return kept[-1]


def draw_for(rows: list[dict[str, Any]], vocabulary: int = VOCABULARY) -> Draw | None:
    """Gather rows' parameters as a worker would."""
    random = [index for index, row in enumerate(rows) if row["temperature"] > 0]
    if not random:
        return None
    chosen = [rows[index] for index in random]
    cut = [index for index, row in enumerate(chosen) if row.get("top_k", -1) > 0 or row.get("top_p", 1.0) < 1.0]
    top_k = [chosen[index]["top_k"] if chosen[index].get("top_k", -1) > 0 else vocabulary for index in cut]
    sorting = None
    if cut:
        sorting = Sorting(
            rows_S=None if len(cut) == len(chosen) else torch.tensor(cut),
            top_k_S=torch.tensor(top_k),
            top_p_S=torch.tensor([chosen[index].get("top_p", 1.0) for index in cut], dtype=torch.float64),
            width=max(top_k),
        )
    min_p = [row.get("min_p", 0.0) for row in chosen]
    return Draw(
        rows_M=None if len(random) == len(rows) else torch.tensor(random),
        temperature_M=torch.tensor([row["temperature"] for row in chosen]),
        min_p_M=torch.tensor(min_p) if any(min_p) else None,
        sorting=sorting,
    )


def shares_for(rows: list[dict[str, Any]], position: int) -> tuple[list[float], Tensor]:
    keys = np.array([key_of(row.get("seed", index)) for index, row in enumerate(rows)])
    shares = uniform(keys, np.full(len(rows), position))
    random = [index for index, row in enumerate(rows) if row["temperature"] > 0]
    return shares.tolist(), torch.from_numpy(shares[random])


MIXES: dict[str, list[dict[str, Any]]] = {
    "greedy": [{"temperature": 0.0}] * 3,
    "temperature": [{"temperature": 0.3}, {"temperature": 1.0}, {"temperature": 2.5}],
    "top_k": [{"temperature": 1.0, "top_k": k} for k in (1, 2, 7, 60, 200)],
    "top_p": [{"temperature": 1.0, "top_p": p} for p in (1e-6, 0.1, 0.5, 0.9, 0.999)],
    "min_p": [{"temperature": 1.0, "min_p": p} for p in (0.02, 0.3, 1.0)],
    "all cuts": [{"temperature": 1.5, "top_k": 9, "top_p": 0.8, "min_p": 0.1}, {"temperature": 0.7, "top_p": 0.4}],
    "mixed": [
        {"temperature": 0.0},
        {"temperature": 1.0, "top_k": 5},
        {"temperature": 0.8},
        {"temperature": 2.0, "min_p": 0.2},
        {"temperature": 0.0},
        {"temperature": 1.2, "top_p": 0.7, "min_p": 0.05},
    ],
}


@pytest.mark.parametrize("mix", MIXES)
def test_every_row_draws_what_the_plain_loop_draws(mix: str) -> None:
    rows = MIXES[mix]
    generator = torch.Generator().manual_seed(7)
    for position in range(40):
        logits = torch.randn(len(rows), VOCABULARY, generator=generator) * 3
        shares, uniform_M = shares_for(rows, position)
        tokens, best = sample(logits.clone(), draw_for(rows), uniform_M)
        wanted = [
            reference(
                logits[index].tolist(),
                shares[index],
                row["temperature"],
                *(row.get(name, default) for name, default in (("top_k", -1), ("top_p", 1.0), ("min_p", 0.0))),
            )
            for index, row in enumerate(rows)
        ]
        assert tokens.tolist() == wanted
        assert torch.equal(best, logits.amax(-1))


def test_a_row_draws_the_same_alone_as_among_others() -> None:
    rows = MIXES["mixed"] + MIXES["top_k"] + MIXES["top_p"]
    rows = [{**row, "seed": index} for index, row in enumerate(rows)]
    logits = torch.randn(len(rows), VOCABULARY, generator=torch.Generator().manual_seed(1)) * 2
    for position in range(20):
        _, together = shares_for(rows, position)
        tokens, _ = sample(logits.clone(), draw_for(rows), together)
        for index, row in enumerate(rows):
            _, alone = shares_for([row], position)
            token, _ = sample(logits[index : index + 1].clone(), draw_for([row]), alone)
            assert token.item() == tokens[index].item()


def test_equal_logits_are_ordered_by_id() -> None:
    logits = torch.zeros(2, VOCABULARY)
    logits[:, 100] = -1.0
    rows: list[dict[str, Any]] = [{"temperature": 1.0, "top_k": 3, "seed": 5}, {"temperature": 0.0}]
    drawn = set()
    for position in range(60):
        _, uniform_M = shares_for(rows, position)
        tokens, _ = sample(logits.clone(), draw_for(rows), uniform_M)
        drawn.add(tokens[0].item())
        assert tokens[1].item() == 0
    assert drawn == {0, 1, 2}


@pytest.mark.parametrize("cuts", [{}, {"top_k": 30}, {"top_p": 0.9}, {"min_p": 0.05}], ids=str)
def test_draws_follow_the_distribution(cuts: dict[str, Any]) -> None:
    vocabulary, draws = 40, 20_000
    logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(3)) * 1.5
    row = {"temperature": 0.9, **cuts}
    rows = [row] * draws
    shares = uniform(np.full(draws, key_of(11)), np.arange(draws))
    tokens, _ = sample(logits.expand(draws, -1).clone(), draw_for(rows, vocabulary), torch.from_numpy(shares))
    observed = np.bincount(tokens.numpy(), minlength=vocabulary)
    weights = np.exp(logits.double().numpy() / 0.9)
    order = np.argsort(-weights)
    kept = np.zeros(vocabulary, bool)
    before = np.cumsum(weights[order]) - weights[order]
    kept[order] = (
        (np.arange(vocabulary) < cuts.get("top_k", vocabulary))
        & (before <= cuts.get("top_p", 1.0) * weights.sum())
        & (weights[order] >= cuts.get("min_p", 0.0) * weights.max())
    )
    expected = np.where(kept, weights, 0) / weights[kept].sum() * draws
    assert not observed[~kept].any()
    chi_square = ((observed[kept] - expected[kept]) ** 2 / expected[kept]).sum()
    freedom = kept.sum() - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)  # four deviations


def test_what_is_masked_is_never_drawn_and_big_vocabularies_lose_no_tail() -> None:
    vocabulary = 1000 * 64 + 17
    logits = torch.full((3, vocabulary), -torch.inf)
    logits[:, [5, vocabulary - 1]] = 0.0
    draw = Draw(None, torch.ones(3))
    tokens, _ = sample(logits.clone(), draw, torch.tensor([0.0, 0.4999, 1.0 - 2.0**-32], dtype=torch.float64))
    assert tokens.tolist() == [5, 5, vocabulary - 1]


def test_a_row_of_nan_or_of_nothing_shows_and_harms_no_other() -> None:
    logits = torch.randn(4, VOCABULARY, generator=torch.Generator().manual_seed(9))
    rows: list[dict[str, Any]] = [{"temperature": 1.0, "top_p": 0.9}] * 4
    _, uniform_M = shares_for(rows, 3)
    healthy, _ = sample(logits.clone(), draw_for(rows), uniform_M)
    logits[1, 17] = torch.nan
    logits[2] = -torch.inf
    for plan, shares in ((draw_for(rows), uniform_M), (Draw(None, torch.ones(4)), uniform_M), (None, None)):
        tokens, best = sample(logits.clone(), plan, shares)
        assert best[1].isnan()
        assert best[2] == -torch.inf
        assert ((tokens >= 0) & (tokens < VOCABULARY)).all()
    tokens, _ = sample(logits.clone(), draw_for(rows), uniform_M)
    assert tokens[[0, 3]].tolist() == healthy[[0, 3]].tolist()


def test_penalties_do_what_their_definitions_say() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(2, 12, generator=generator) * 3
    counts = torch.randint(0, 3, (2, 12), generator=generator)
    prompt = torch.rand(2, 12, generator=generator) < 0.3
    frequency, presence, repetition = (0.5, -1.0), (0.3, 0.0), (1.7, 0.6)
    wanted = []
    for row in range(2):
        for token in range(12):
            logit, times = logits[row, token].item(), counts[row, token].item()
            logit -= frequency[row] * times + presence[row] * (times > 0)
            if times or prompt[row, token]:
                logit = logit / repetition[row] if logit > 0 else logit * repetition[row]
            wanted.append(logit)
    taken = sampling.subtracted(counts, torch.tensor(frequency)[:, None], torch.tensor(presence)[:, None])
    divisors = torch.where((counts > 0) | prompt, torch.tensor(repetition)[:, None], torch.ones(()))
    sampling.penalize(logits, taken, divisors)
    assert logits.flatten().tolist() == pytest.approx(wanted, abs=1e-5)


def test_bias_is_added_where_it_belongs() -> None:
    logits = torch.zeros(3, 5)
    sampling.add_bias(logits, torch.tensor([0, 0, 2]), torch.tensor([1, 4, 1]), torch.tensor([2.0, -3.0, 100.0]))
    assert logits.tolist() == [[0, 2, 0, 0, -3], [0, 0, 0, 0, 0], [0, 100, 0, 0, 0]]


def test_log_probabilities_and_the_most_likely() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(4)) * 4
    logprobs, chosen = sampling.log_probabilities(logits, torch.tensor([3, 0, 49]))
    tokens, values = sampling.top(logprobs, 4)
    for row, token in enumerate((3, 0, 49)):
        exact = [math.exp(logit) for logit in logits[row].tolist()]
        log_total = math.log(sum(exact))
        assert chosen[row].item() == pytest.approx(logits[row, token].item() - log_total, abs=1e-5)
        order = sorted(range(50), key=lambda index: -exact[index])[:4]
        assert tokens[row].tolist() == order
        assert values[row].tolist() == pytest.approx([logits[row, i].item() - log_total for i in order], abs=1e-5)
