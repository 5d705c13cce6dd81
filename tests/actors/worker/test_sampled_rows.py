"""What a row's sampling parameters promise, step after step and life after life."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from callboard.actors.sampling import SamplingParams

from .driver import EOS, VOCABULARY, Driver, read

PROMPT = [5, 7, 9, 200, 31, 64, 65, 2, 2, 90, 11]

KINDS: dict[str, SamplingParams] = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(temperature=1.3),
    "cuts": SamplingParams(temperature=1.5, top_k=40, top_p=0.9, min_p=0.01),
    "top_p": SamplingParams(temperature=1.1, top_p=0.8),
    "penalties": SamplingParams(temperature=1.0, frequency_penalty=0.7, presence_penalty=0.4, repetition_penalty=1.3),
    "minimum": SamplingParams(temperature=2.0, min_new_tokens=9, stop_token_ids=(3,)),
    "bias": SamplingParams(temperature=1.0, logit_bias={4: 3.0, 90: -2.0}),
    "regex": SamplingParams(temperature=1.0, regex="[a-f]{2,5}-[0-9]+"),
}


def begin(sampling: SamplingParams, prompt: list[int]) -> dict[str, Any]:
    return {"context": prompt if sampling.repetition_penalty != 1.0 else None}


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_depends_on_its_request_alone(driver: Driver, kind: str) -> None:
    """Alone, among others, and with others joining and leaving: the same tokens."""
    sampling = KINDS[kind]
    alone = driver.generate(PROMPT, sampling, 12, seed=42, **begin(sampling, PROMPT))
    others = [(row, other) for row, other in enumerate(KINDS.values())]
    driver.step(*(driver.extend(row, [row, 3], other, **begin(other, [row, 3])) for row, other in others[:4]))
    done = driver.step(driver.extend(6, PROMPT, sampling, seed=42, **begin(sampling, PROMPT)), decode=(0, 1))
    tokens = [read(done.tokens)[0]]
    tokens.append(read(driver.step(decode=(2, 6)).tokens)[1])
    done = driver.step(driver.extend(5, [1], others[5][1]), decode=(3, 6, 0), retire=(1,))
    tokens.append(read(done.tokens)[2])
    while len(tokens) < 12:
        tokens.append(read(driver.step(decode=(6, 5, 0, 2)).tokens)[0])
    assert tokens == alone


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", [1, 5])
def test_a_replay_goes_on_with_the_same_tokens(driver: Driver, kind: str, cut: int) -> None:
    """A retracted row comes back with its output behind its prompt."""
    sampling = KINDS[kind]
    whole = driver.generate(PROMPT, sampling, 12, seed=9, **begin(sampling, PROMPT))
    output = whole[:cut]
    again = driver.generate(PROMPT + output, sampling, 12 - cut, seed=9, output=output, **begin(sampling, PROMPT))
    assert output + again == whole


def test_seeds_differ(driver: Driver) -> None:
    sampling = SamplingParams(temperature=1.5)
    texts = {tuple(driver.generate(PROMPT, sampling, 10, seed=seed)) for seed in range(20)}
    assert len(texts) == 20


def test_draws_along_seeds_follow_the_models_distribution(driver: Driver, peer: Any) -> None:
    with torch.no_grad():
        probabilities = (peer(torch.tensor([PROMPT])).logits[0, -1] / 1.3).softmax(-1)
    draws = 2000
    sampling = SamplingParams(temperature=1.3)
    counts = Counter[int]()
    prefix = None
    for first in range(0, draws, 8):
        extends = [
            driver.extend(row, PROMPT[10:] if prefix else PROMPT, sampling, seed=first + row, start=10 * bool(prefix),
                          prefix_slots=prefix)
            for row in range(8)
        ]  # fmt: skip
        counts.update(read(driver.step(*extends).tokens))
        if prefix is None:
            prefix = driver.slots[0][:10]
        else:
            driver.free += [slots[-1] for slots in driver.slots.values()]
        driver.step(retire=tuple(range(8)))
    likely = [token for token in range(VOCABULARY) if probabilities[token] * draws >= 8]
    expected = {token: probabilities[token].item() * draws for token in likely}
    chi_square = sum((counts[token] - wanted) ** 2 / wanted for token, wanted in expected.items())
    assert len(likely) > 10
    assert chi_square < len(likely) + 4 * (2 * len(likely)) ** 0.5


def manual(peer: Any, count: int, frequency: float, presence: float, repetition: float) -> list[int]:
    """Greedy decoding with penalties, one token at a time, by the definitions."""
    output: list[int] = []
    for _ in range(count):
        with torch.no_grad():
            logits = peer(torch.tensor([PROMPT + output])).logits[0, -1].tolist()
        had = Counter(output)
        for token in range(VOCABULARY):
            logits[token] -= frequency * had[token] + presence * (had[token] > 0)
            if had[token] or token in PROMPT:
                logits[token] = logits[token] / repetition if logits[token] > 0 else logits[token] * repetition
        output.append(max(range(VOCABULARY), key=lambda token: logits[token]))
    return output


@pytest.mark.parametrize(
    ("frequency", "presence", "repetition"), [(1.5, 0.0, 1.0), (0.0, -2.0, 1.0), (0.0, 0.0, 1.8), (0.5, 0.5, 0.7)]
)
def test_penalties_count_prompt_and_output_as_defined(
    driver: Driver, peer: Any, frequency: float, presence: float, repetition: float
) -> None:
    sampling = SamplingParams(
        temperature=0.0, frequency_penalty=frequency, presence_penalty=presence, repetition_penalty=repetition
    )
    driver.step(driver.extend(3, [9], SamplingParams(temperature=0.0, frequency_penalty=2.0)))  # holds the first line
    tokens = driver.generate(PROMPT, sampling, 20, **begin(sampling, PROMPT))
    assert tokens == manual(peer, 20, frequency, presence, repetition)


def test_transformers_agrees_on_the_repetition_penalty(driver: Driver, peer: Any) -> None:
    sampling = SamplingParams(temperature=0.0, repetition_penalty=1.4)
    out = peer.generate(
        torch.tensor([PROMPT]),
        max_new_tokens=15, do_sample=False, eos_token_id=None, pad_token_id=0, repetition_penalty=1.4,
    )  # fmt: skip
    assert driver.generate(PROMPT, sampling, 15, context=PROMPT) == out[0, len(PROMPT) :].tolist()


def test_endings_stay_out_until_the_minimum_is_there(driver: Driver) -> None:
    ending = {EOS[0]: 60.0, EOS[1]: 50.0, 33: 40.0}
    sampling = SamplingParams(temperature=0.0, min_new_tokens=4, stop_token_ids=(33,), logit_bias=ending)
    tokens = driver.generate(PROMPT, sampling, 6)
    assert not set(tokens[:4]) & {*EOS, 33}
    assert tokens[4:] == [EOS[0]] * 2


def test_a_bias_forbids_and_forces(driver: Driver) -> None:
    plain = driver.generate(PROMPT, SamplingParams(temperature=0.0), 5)
    without = driver.generate(PROMPT, SamplingParams(temperature=0.0, logit_bias=dict.fromkeys(plain, -100.0)), 5)
    assert not set(plain) & set(without)
    assert driver.generate(PROMPT, SamplingParams(temperature=1.0, logit_bias={77: 100.0}), 5) == [77] * 5


def test_a_tiny_temperature_is_greedy(driver: Driver) -> None:
    greedy = driver.generate(PROMPT, SamplingParams(temperature=0.0), 8)
    assert driver.generate(PROMPT, SamplingParams(temperature=1e-7), 8) == greedy
    assert driver.generate(PROMPT, SamplingParams(temperature=1.0, top_k=1), 8) == greedy
    assert driver.generate(PROMPT, SamplingParams(temperature=1.0, top_p=1e-9), 8) == greedy
