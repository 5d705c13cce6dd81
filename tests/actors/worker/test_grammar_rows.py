"""A row bound by a regex says nothing but a match, whatever its model would rather say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from callboard.actors.grammar import GrammarCache
from callboard.actors.sampling import Constraint, SamplingParams
from callboard.actors.worker import masks

from .driver import EOS, VOCABULARY, Driver, read

PROMPT = [5, 7, 9, 200, 31, 64, 65, 2]
IP_ADDRESS = r"((25[0-5]|2[0-4]\d|[01]?\d\d?).){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)"
CHARACTER = (
    r"""\{\n"""
    r"""    "name": "[\w\d\s]{1,16}",\n"""
    r"""    "house": "(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)",\n"""
    r"""    "wand": \{\n"""
    r"""        "length": [0-9]{1,2}\.[0-9]{0,2}\n"""
    r"""    \},\n"""
    r"""    "alive": "(Alive|Deceased)"\n"""
    r"""\}"""
)


@pytest.fixture(autouse=True, params=["here", "beside"])
def who(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who gives matchers their tokens: the model's thread, as where there are few, or one beside it."""
    monkeypatch.setattr(masks, "_WORTH_HANDING_OVER", 1 << 30 if request.param == "here" else 0)
    return request.param


def finish(driver: Driver, row: int, first: list[int], limit: int = 250) -> list[int]:
    """Decode a row to its end-of-sequence token; its tokens before that."""
    tokens = first
    while tokens[-1] not in EOS:
        assert len(tokens) < limit
        done = driver.step(decode=(row,))
        assert not done.failures
        tokens += read(done.tokens)
    return tokens[:-1]


@pytest.mark.parametrize("regex", [IP_ADDRESS, CHARACTER, "yes|no", "[^a]{3}", r"(ab)*", r"é+x", r"\w\W\d\D\s\S", "a?"])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_random_weights_write_matches_and_end(
    driver: Driver, tokenizer: Tokenizer, regex: str, temperature: float
) -> None:
    # the bias ends loops that a greedy model would not leave
    sampling = SamplingParams(temperature=temperature, regex=regex, logit_bias=dict.fromkeys(EOS, 3.0))
    for seed in range(1 if temperature == 0.0 else 3):
        tokens = finish(driver, 0, read(driver.step(driver.extend(0, PROMPT, sampling, seed=seed)).tokens))
        text = tokenizer.decode(tokens, skip_special_tokens=False)
        assert re.fullmatch(regex, text, re.ASCII), text
        driver.step(retire=(0,))


def test_bound_and_free_rows_share_a_step(driver: Driver, tokenizer: Tokenizer) -> None:
    free = SamplingParams(temperature=0.0)
    alone = driver.generate(PROMPT, free, 6)
    digits, letters = (SamplingParams(temperature=1.0, regex=regex) for regex in ("[0-9]{6}", "[a-z]{6}"))
    done = driver.step(
        driver.extend(0, PROMPT, digits), driver.extend(1, PROMPT, free), driver.extend(2, PROMPT, letters)
    )
    columns = [[token] for token in read(done.tokens)]
    for _ in range(5):
        for column, token in zip(columns, read(driver.step(decode=(0, 1, 2)).tokens), strict=True):
            column.append(token)
    assert re.fullmatch("[0-9]{6}", tokenizer.decode(columns[0]))
    assert columns[1] == alone
    assert re.fullmatch("[a-z]{6}", tokenizer.decode(columns[2]))


@pytest.mark.parametrize("eos", EOS)
def test_every_ending_of_the_model_may_end_a_match(driver: Driver, eos: int) -> None:
    sampling = SamplingParams(temperature=0.0, regex="[0-9]+", logit_bias={eos: 80.0})
    tokens = read(driver.step(driver.extend(0, PROMPT, sampling)).tokens)
    tokens += read(driver.step(decode=(0,)).tokens)
    assert tokens[0] not in EOS  # nothing matched yet
    assert tokens[1] == eos


def test_a_complete_match_ends_even_before_the_minimum(driver: Driver) -> None:
    sampling = SamplingParams(temperature=1.0, regex="[0-9]{2}", min_new_tokens=5)
    tokens = read(driver.step(driver.extend(0, PROMPT, sampling)).tokens)
    tokens += [read(driver.step(decode=(0,)).tokens)[0] for _ in range(3)]
    assert not set(tokens[:2]) & set(EOS)
    assert set(tokens[2:]) <= set(EOS)  # a step already queued behind the end does no harm


def test_the_minimum_holds_while_the_match_can_go_on(driver: Driver) -> None:
    sampling = SamplingParams(temperature=0.0, regex="[0-9]+", min_new_tokens=4, logit_bias={EOS[0]: 80.0})
    tokens = driver.generate(PROMPT, sampling, 5)
    assert not set(tokens[:4]) & set(EOS)
    assert tokens[4] == EOS[0]


@pytest.mark.parametrize(("limit", "accepting"), [(1, [0]), (2, [0, 1])])
def test_a_step_tells_whose_text_its_limit_may_end(driver: Driver, limit: int, accepting: list[int]) -> None:
    asked = ({"regex": "[0-9]+"}, {"regex": "[0-9]{2}"}, {})
    samplings = [SamplingParams(temperature=0.0, max_new_tokens=limit, **one) for one in asked]
    done = driver.step(*(driver.extend(row, PROMPT, sampling) for row, sampling in enumerate(samplings)))
    for _ in range(limit - 1):
        assert not done.accepting
        done = driver.step(decode=(0, 1, 2))
    assert read(done.accepting) == accepting


def test_schemas_and_grammars_bind_rows_too(driver: Driver, tokenizer: Tokenizer) -> None:
    schema = SamplingParams(temperature=1.0, json_schema='{"enum":["red","green"]}')
    grammar = SamplingParams(temperature=1.0, ebnf='root ::= "up" | "down"')
    for sampling, allowed in ((schema, {'"red"', '"green"'}), (grammar, {"up", "down"})):
        tokens = finish(driver, 0, read(driver.step(driver.extend(0, PROMPT, sampling)).tokens))
        assert tokenizer.decode(tokens) in allowed
        driver.step(retire=(0,))


def test_rows_that_leave_no_token_fail_alone(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    # llguidance would allow nothing but what the logits rule out: a regex of one token whose logit is minus infinity
    free = SamplingParams(temperature=0.0)
    bound = SamplingParams(temperature=1.0, regex="a")
    model = driver.runner._model
    token = read(driver.step(driver.extend(0, PROMPT, bound)).tokens)[0]

    def logits(hidden: Any) -> Any:
        out = type(model).logits(model, hidden)
        out[:, token] = float("-inf")
        return out

    monkeypatch.setattr(driver.runner, "_model", Replaced(model, logits))
    done = driver.step(driver.extend(1, PROMPT, bound), driver.extend(2, PROMPT, free))
    (failure,) = done.failures
    assert failure.row == 1
    assert failure.message.startswith("no token is allowed")
    assert read(done.tokens)[0] == -1
    assert read(done.tokens)[1] >= 0
    assert read(driver.step(decode=(2,)).tokens)[0] >= 0


class Replaced:
    """A model with other logits."""

    def __init__(self, model: Any, logits: Any) -> None:
        self.config = model.config
        self.forward = model.forward
        self.logits = logits


def test_a_regex_that_does_not_compile_fails_its_row_alone(driver: Driver) -> None:
    done = driver.step(
        driver.extend(0, PROMPT, SamplingParams(temperature=0.0, regex="a(?=b)")),
        driver.extend(1, PROMPT, SamplingParams(temperature=0.0)),
    )
    (failure,) = done.failures
    assert failure.row == 0
    assert "look-ahead" in failure.message
    assert read(done.tokens)[0] == -1
    done = driver.step(decode=(0, 1))  # one more was queued before the scheduler knew
    assert [failure.row for failure in done.failures] == [0]
    assert read(done.tokens)[1] >= 0


def test_a_replayed_output_that_does_not_match_fails_its_row(driver: Driver) -> None:
    done = driver.step(driver.extend(0, PROMPT, SamplingParams(temperature=0.0, regex="[0-9]+"), output=[64, 65]))
    (failure,) = done.failures
    assert failure.message == "regex: the tokens generated so far do not match it"


def test_a_matcher_that_breaks_fails_its_row_alone(driver: Driver) -> None:
    bound = SamplingParams(temperature=0.0, regex="[0-9]+")
    driver.step(driver.extend(0, PROMPT, bound), driver.extend(1, PROMPT, bound))
    matcher = driver.runner.rows.live(0).matcher
    assert matcher is not None
    matcher.consume_token(64)  # not a digit: it is in its error state from here on
    done = driver.step(decode=(0, 1))
    (failure,) = done.failures
    assert failure.row == 0
    assert "doesn't satisfy the grammar" in failure.message
    assert read(done.tokens)[1] >= 0


def test_a_token_that_is_not_taken_fails_its_row_now_or_in_the_next_step(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    bound = SamplingParams(temperature=0.0, regex="[0-9]+")
    driver.step(driver.extend(0, PROMPT, bound), driver.extend(1, PROMPT, bound))
    with monkeypatch.context() as patched:
        nothing_kept_out = Replaced(driver.runner._model, lambda hidden: torch.zeros(len(hidden), VOCABULARY))
        patched.setattr(driver.runner, "_model", nothing_kept_out)
        patched.setattr(driver.runner._grammars, "masks", lambda sampled, choice: (None, set[int]()))
        first = driver.step(decode=(0, 1))
    second = driver.step(decode=(0, 1))
    done = first if who == "here" else second
    assert read(first.tokens) == ([-1, -1] if who == "here" else [0, 0])
    assert {failure.row: failure.message.split(":")[0] for failure in done.failures} == {0: "grammar", 1: "grammar"}
    assert [failure.row for failure in second.failures] == [0, 1]
    assert read(second.tokens) == [-1, -1]


def test_rows_at_their_limit_are_told_among_others(driver: Driver) -> None:
    samplings = [SamplingParams(temperature=0.0, max_new_tokens=limit, regex="[0-9]{2}") for limit in (1, 2, 3)]
    done = driver.step(*(driver.extend(row, PROMPT, sampling) for row, sampling in enumerate(samplings)))
    assert not done.accepting
    done = driver.step(decode=(0, 1, 2))
    assert read(done.accepting) == [0, 1]
    assert read(driver.step(decode=(0, 1, 2)).tokens)[2] in EOS


def test_the_next_step_can_be_launched_before_a_bound_row_has_taken_its_token(
    driver: Driver, tokenizer: Tokenizer
) -> None:
    sampling = SamplingParams(temperature=1.0, regex="[0-9]-[a-z]-[0-9]-[a-z]")
    plain = driver.generate(PROMPT, sampling, 7)
    running = driver.runner.forward(driver.make(driver.extend(0, PROMPT, sampling)))
    driver.runner.sample(running)
    tokens = []
    for _ in range(6):
        following = driver.runner.forward(driver.make(decode=(0,)))
        tokens += read(driver.runner.collect(running).tokens)
        driver.runner.sample(following)
        running = following
    tokens += read(driver.runner.collect(running).tokens)
    assert tokens == plain
    assert re.fullmatch("[0-9]-[a-z]-[0-9]-[a-z]", tokenizer.decode(tokens))


def test_masks_are_the_same_however_many_threads_fill_them(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = GrammarCache(tiny)
    matchers = [cache.matcher(Constraint("regex", regex)) for regex in ("[0-9]+", "a|b", "(x|y)z", ".*")]
    alone = masks.MaskFiller().fill(matchers, cache.mask_words)
    monkeypatch.setattr(masks, "_WORTH_SHARING", 0)
    shared = masks.MaskFiller().fill(matchers, cache.mask_words)
    assert torch.equal(alone, shared)
    wanted = [matcher.compute_bitmask()[: 4 * cache.mask_words] for matcher in matchers]
    assert [row.tobytes() for row in alone.numpy()] == wanted
