"""Steps compute what transformers computes, however a scheduler cuts the work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from callboard.actors.sampling import SamplingParams

from .driver import VOCABULARY, Driver, floats, read

GREEDY = SamplingParams(temperature=0.0)
PROMPT = [5, 7, 9, 200, 31, 64, 65, 2, 2, 90, 11]


def greedy(peer: Any, prompt: list[int], count: int) -> list[int]:
    tokens = torch.tensor([prompt])
    every = torch.ones_like(tokens)  # else transformers takes the prompt's zeros for padding
    out = peer.generate(
        tokens, attention_mask=every, max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    return out[0, len(prompt) :].tolist()


def log_softmax(peer: Any, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return peer(torch.tensor([tokens])).logits[0].log_softmax(-1)


def test_greedy_decoding_matches_transformers(driver: Driver, peer: Any) -> None:
    assert driver.generate(PROMPT, GREEDY, 30) == greedy(peer, PROMPT, 30)


def test_rows_of_all_lengths_decode_together(driver: Driver, peer: Any) -> None:
    prompts = {row: [*PROMPT[: 3 + 2 * row], row] for row in (0, 1, 2, 4)}
    done = driver.step(*(driver.extend(row, prompt, GREEDY) for row, prompt in prompts.items()))
    assert read(done.rows) == [0, 1, 2, 4]
    tokens = {row: [token] for row, token in zip(prompts, read(done.tokens), strict=True)}
    for order in [(0, 1, 2, 4), (4, 1, 0, 2), (2, 4)] * 4:
        done = driver.step(decode=order)
        assert read(done.rows) == list(order)
        for row, token in zip(order, read(done.tokens), strict=True):
            tokens[row].append(token)
    for row, prompt in prompts.items():
        assert tokens[row] == greedy(peer, prompt, len(tokens[row]))


def test_a_prompt_in_chunks_beside_decoding_rows(driver: Driver, peer: Any) -> None:
    first = read(driver.step(driver.extend(3, [8, 9], GREEDY)).tokens)
    done = driver.step(driver.extend(0, PROMPT[:4], GREEDY, sample=False), decode=(3,))
    assert read(done.rows) == [3]
    first += read(done.tokens)
    done = driver.step(driver.extend(0, PROMPT[4:5], start=4, sample=False), decode=(3,))
    first += read(done.tokens)
    done = driver.step(driver.extend(0, PROMPT[5:], start=5), decode=(3,))
    assert read(done.rows) == [0, 3]
    chunked, token = read(done.tokens)
    first.append(token)
    for _ in range(3):
        done = driver.step(decode=(3, 0))
        first.append(read(done.tokens)[0])
    assert first == greedy(peer, [8, 9], 7)
    assert chunked == greedy(peer, PROMPT, 1)[0]


def test_a_step_of_chunks_alone_samples_nothing(driver: Driver) -> None:
    done = driver.step(driver.extend(0, PROMPT[:4], GREEDY, sample=False))
    assert (done.rows, done.tokens, done.logprobs, done.failures) == (b"", b"", b"", ())


def test_a_cached_prefix_is_read_where_another_row_wrote_it(driver: Driver, peer: Any) -> None:
    driver.step(driver.extend(0, PROMPT, GREEDY))
    shared = driver.slots[0][:6]
    driver.step(retire=(0,))
    other = [*PROMPT[:6], 99, 98]
    done = driver.step(driver.extend(5, other[6:], GREEDY, start=6, prefix_slots=shared))
    tokens = read(done.tokens) + read(driver.step(decode=(5,)).tokens)
    assert tokens == greedy(peer, other, 2)


def test_a_row_index_is_used_again_in_the_step_that_retires_it(driver: Driver, peer: Any) -> None:
    driver.step(driver.extend(0, PROMPT, SamplingParams(temperature=1.0, frequency_penalty=1.0, logit_bias={4: 50.0})))
    driver.step(decode=(0,))
    done = driver.step(driver.extend(0, [1, 2, 3], GREEDY), retire=(0,))
    assert read(done.tokens) == greedy(peer, [1, 2, 3], 1)


def test_a_second_step_can_be_launched_before_the_first_is_read(driver: Driver, peer: Any) -> None:
    first = driver.runner.forward(driver.make(driver.extend(0, PROMPT, GREEDY)))
    driver.runner.sample(first)
    second = driver.runner.forward(driver.make(decode=(0,)))
    tokens = read(driver.runner.collect(first).tokens)
    driver.runner.sample(second)
    tokens += read(driver.runner.collect(second).tokens)
    assert tokens == greedy(peer, PROMPT, 2)


def test_an_empty_step_retires_and_is_answered(driver: Driver) -> None:
    driver.step(driver.extend(0, PROMPT, GREEDY))
    done = driver.step(retire=(0, 3))
    assert (done.number, done.rows, done.tokens) == (2, b"", b"")


def test_logprobs_of_chosen_and_top_tokens_are_of_the_raw_logits(driver: Driver, peer: Any) -> None:
    wanting = SamplingParams(
        temperature=0.7, return_logprob=True, top_logprobs_num=3, logit_bias={7: 100.0}, frequency_penalty=1.0
    )
    done = driver.step(driver.extend(0, PROMPT, GREEDY), driver.extend(1, PROMPT[:5], wanting))
    rows = read(done.tokens)
    assert rows[1] == 7  # the bias decided
    expected = log_softmax(peer, PROMPT[:5])[-1]
    assert floats(done.logprobs) == pytest.approx([0.0, expected[7].item()], abs=1e-4)
    values, tokens = expected.topk(3)
    assert read(done.top_tokens) == [-1] * 3 + tokens.tolist()
    assert floats(done.top_logprobs)[3:] == pytest.approx(values.tolist(), abs=1e-4)


def test_logprobs_of_a_prompts_own_tokens(driver: Driver, peer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver.runner.scorer, "at_once", 2)
    expected = log_softmax(peer, PROMPT)
    none = SamplingParams(max_new_tokens=0, logprob_start=1, top_logprobs_num=2)
    # Two chunks: targets of tokens 2..5 behind positions 1..4, then of the rest.
    done = driver.step(
        driver.extend(0, PROMPT[:5], none, sample=False, targets=PROMPT[2:6], targets_start=1),
        driver.extend(1, [4, 4], GREEDY),
    )
    rest = driver.step(driver.extend(0, PROMPT[5:], start=5, sample=False, targets=PROMPT[6:], targets_start=5))
    for result, first, last in ((done, 1, 5), (rest, 5, len(PROMPT) - 1)):
        (part,) = result.input_logprobs
        wanted = [expected[place, PROMPT[place + 1]].item() for place in range(first, last)]
        assert (part.row, part.start) == (0, first)
        assert floats(part.logprobs) == pytest.approx(wanted, abs=1e-4)
        values, tokens = expected[first:last].topk(2)
        assert read(part.top_tokens) == tokens.flatten().tolist()
        assert floats(part.top_logprobs) == pytest.approx(values.flatten().tolist(), abs=1e-4)


class Poisoned:
    """A model whose hidden states are NaN for one token id."""

    def __init__(self, model: Any, token: int) -> None:
        self.config = model.config
        self.logits = model.logits
        self._model = model
        self._token = token

    def forward(self, tokens_T: torch.Tensor, *rest: Any) -> torch.Tensor:
        *rest, wanted_N = rest
        hidden = self._model.forward(tokens_T, *rest)
        pool = rest[2]
        bad = tokens_T == self._token
        for entries in pool.entries:
            entries[rest[1][bad]] = torch.nan
        hidden[bad] = torch.nan
        return hidden if wanted_N is None else hidden[wanted_N]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_of_nan_harms_only_itself(driver: Driver, temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature)
    prompts = {0: [1, 2, 3, 250], 1: [4, 5], 2: [6, 7, 8, 9, 10, 11]}

    def run(poisoned: bool) -> list[list[int]]:
        driver.free = list(range(200, -1, -1))  # the sick row gets slot 0
        rows = prompts if poisoned else {row: prompt for row, prompt in prompts.items() if row}
        done = driver.step(*(driver.extend(row, prompt, sampling) for row, prompt in rows.items()))
        results = [read(done.tokens)[-2:]]
        if poisoned:
            (failure,) = done.failures
            assert (failure.row, failure.message) == (0, "the model gave logits that are not numbers")
            assert read(done.tokens)[0] == -1
        else:
            assert not done.failures
        results += [read(driver.step(decode=tuple(rows)).tokens)[-2:] for _ in range(4)]
        driver.step(retire=(0, 1, 2))
        return results

    healthy = run(poisoned=False)
    driver.runner._model = Poisoned(driver.runner._model, 250)
    assert run(poisoned=True) == healthy


def test_state_is_kept_by_row_not_by_request_order(driver: Driver) -> None:
    """The vocabulary's last id and first id are tokens like any other."""
    done = driver.step(driver.extend(7, [0, VOCABULARY - 1], SamplingParams(temperature=0.0, logit_bias={0: 100.0})))
    assert read(done.tokens) == [0]
    assert read(driver.step(decode=(7,)).tokens) == [0]
    assert np.array_equal(driver.runner.rows.lengths, [0] * 7 + [3])
