"""A row says at once what its grammar leaves no choice about; it is the same text, in fewer steps."""

from __future__ import annotations

from typing import Any

import pytest

from callboard.actors.messages import StepDone
from callboard.actors.sampling import SamplingParams

from .driver import EOS, Driver, read
from .test_grammar_rows import CHARACTER, PROMPT

FRUIT = r"fruit: (apple|banana), count: [0-9]{2}\."


def told(done: StepDone) -> list[int]:
    (forced,) = done.forced
    return read(forced.tokens)


def generate(driver: Driver, sampling: SamplingParams, *, late: bool, free: SamplingParams | None = None) -> list[int]:
    """Run row 0 to its end as a scheduler would; its tokens.

    late: whether a step is always on its way when the tokens of the one before come back, so that one is surplus.
    free: decode a row beside it.
    """
    beside = () if free is None else (driver.extend(1, PROMPT, free),)
    done = driver.step(driver.extend(0, PROMPT, sampling), *beside)
    others = () if free is None else (1,)
    tokens = read(done.tokens)[:1]
    while tokens[-1] not in EOS and len(tokens) < 200:
        waiting = told(done) if done.forced else []
        tokens += waiting
        if waiting and late:
            surplus = driver.step(decode=(0, *others))
            assert not surplus.forced
            assert not surplus.failures
        rest = waiting if late else tokens[-len(waiting) - 1 :]
        start = len(PROMPT) + len(tokens) - len(rest)
        if waiting:
            done = driver.step(driver.extend(0, rest, start=start), decode=others)
        else:
            done = driver.step(decode=(0, *others))
        assert not done.failures
        tokens += read(done.tokens)[:1]
    driver.step(retire=(0, *others))
    return tokens


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "changes",
    [{"temperature": 0.0}, {"temperature": 1.5}, {"temperature": 1.0, "min_p": 0.1, "top_k": 20}],
    ids=["greedy", "random", "cuts"],
)
@pytest.mark.parametrize("regex", [FRUIT, CHARACTER, "a+(bcd)?e{4}"])
def test_the_tokens_are_those_of_every_step_by_itself(
    driver: Driver, ahead: Driver, regex: str, changes: dict[str, Any], late: bool
) -> None:
    # a tokenizer of single bytes has one spelling only; penalties that count a token twice or not at all would show
    sampling = SamplingParams(regex=regex, min_new_tokens=20, frequency_penalty=0.5, repetition_penalty=1.2, **changes)
    plain = generate(driver, sampling, late=False)
    assert generate(ahead, sampling, late=late) == plain
    assert ahead.number < driver.number
    free = SamplingParams(temperature=1.0, presence_penalty=0.3)
    assert generate(ahead, sampling, late=late, free=free) == plain


def test_a_step_tells_what_is_forced_behind_its_token(ahead: Driver) -> None:
    done = ahead.step(ahead.extend(0, PROMPT, SamplingParams(temperature=0.0, regex="[xy]ab-[0-9]")))
    assert told(done) == [ord(letter) - 33 for letter in "ab-"]  # the ids of the byte alphabet
    assert not read(done.accepting)


def test_what_ends_a_text_may_be_forced_too(ahead: Driver) -> None:
    sampling = SamplingParams(temperature=0.0, regex="[xy]abc", max_new_tokens=4)
    done = ahead.step(ahead.extend(0, PROMPT, sampling))
    assert len(told(done)) == 3
    assert read(done.accepting) == [0]


def test_one_forced_token_is_sampled_like_any_other(ahead: Driver) -> None:
    assert not ahead.step(ahead.extend(0, PROMPT, SamplingParams(temperature=0.0, regex="[xy]a[xy]"))).forced


@pytest.mark.parametrize("changes", [{"return_logprob": True}, {"logit_bias": {3: 1.0}}])
def test_rows_with_log_probabilities_or_a_bias_take_every_step(ahead: Driver, changes: dict[str, Any]) -> None:
    sampling = SamplingParams(temperature=0.0, regex="[xy]abc", **changes)
    assert not ahead.step(ahead.extend(0, PROMPT, sampling)).forced


def test_a_row_that_begins_again_behind_forced_tokens_goes_on_as_before(ahead: Driver) -> None:
    sampling = SamplingParams(temperature=1.5, regex=FRUIT)
    tokens = generate(ahead, sampling, late=True)
    for cut in range(1, len(tokens) - 1):
        done = ahead.step(ahead.extend(0, PROMPT + tokens[:cut], sampling, output=tokens[:cut]))
        following = read(done.tokens) + (told(done) if done.forced else [])
        assert following == tokens[cut : cut + len(following)]
        ahead.step(retire=(0,))


def test_two_rows_may_be_forced_in_one_step(ahead: Driver) -> None:
    first, second = (SamplingParams(temperature=0.0, regex=regex) for regex in ("[xy]abc", "[pq]defg"))
    done = ahead.step(ahead.extend(0, PROMPT, first), ahead.extend(1, PROMPT, second))
    assert [(forced.row, len(read(forced.tokens))) for forced in done.forced] == [(0, 3), (1, 4)]
