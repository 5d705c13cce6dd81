"""Every bad sampling argument is refused by name, with what was given and what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from callboard.actors.errors import InvalidRequest
from callboard.actors.sampling import SamplingLimits, SamplingParams

BAD: list[tuple[str, Any, str]] = [
    ("max_new_tokens", -1, "-1 is outside 0 to"),
    ("max_new_tokens", 1.5, "1.5 is not an integer"),
    ("max_new_tokens", True, "True is not an integer"),
    ("min_new_tokens", 200, "200 is more than max_new_tokens, 128"),
    ("temperature", -0.1, "-0.1 is outside"),
    ("temperature", float("nan"), "nan is outside"),
    ("temperature", float("inf"), "inf is outside"),
    ("temperature", "hot", "'hot' is not a number"),
    ("top_p", 0.0, r"0.0 is outside \(0, 1\]"),
    ("top_p", 1.1, r"1.1 is outside \(0, 1\]"),
    ("top_k", 0, "0 is neither -1"),
    ("min_p", 2.0, "2.0 is outside"),
    ("frequency_penalty", 2.1, r"outside \[-2, 2\]"),
    ("presence_penalty", -3, r"outside \[-2, 2\]"),
    ("repetition_penalty", 0.0, r"outside \(0, 2\]"),
    ("stop", ("",), "is not a string of 1 to 256"),
    ("stop", ("x" * 257,), "is not a string of 1 to 256"),
    ("stop", tuple("abcdefghijklmnopqrstuvwxyz0123456"), "33 strings given, at most 32"),
    ("stop_token_ids", (-1,), "-1 is not a token id"),
    ("stop_token_ids", (100,), "token 100 is outside the vocabulary of 100"),
    ("stop_regex", ("",), "is not a string of 1 to 256"),
    ("stop_regex", ("x" * 257,), "is not a string of 1 to 256"),
    ("stop_regex", tuple("abcde"), "5 expressions given, at most 4"),
    ("stop_regex", ("a*",), "matches the empty text"),
    ("stop_regex", ("(a",), "no regular expression"),
    ("logit_bias", {100: 1.0}, "token 100 is outside the vocabulary of 100"),
    ("logit_bias", {1: 101.0}, r"outside \[-100, 100\]"),
    ("top_logprobs_num", 21, "21 is more than 20"),
    ("logprob_start", -2, "-2 is outside"),
    ("regex", "", "not a non-empty string"),
    ("regex", "a" * 20_000, "20000 bytes given"),
]


@pytest.mark.parametrize(("field", "value", "words"), BAD, ids=[f"{field}={value!r:.20}" for field, value, _ in BAD])
def test_a_bad_argument_is_refused_by_name(field: str, value: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{field}: .*{words}") as caught:
        SamplingParams(**{field: value}).verify(vocabulary=100)
    assert caught.value.field == field
    assert isinstance(caught.value, ValueError)


def test_the_defaults_and_the_edges_are_allowed() -> None:
    SamplingParams().verify(vocabulary=1)
    SamplingParams(
        max_new_tokens=0, temperature=0, top_p=1.0, top_k=1, min_p=1.0, repetition_penalty=2.0, logit_bias={99: -100.0}
    ).verify(vocabulary=100)


def test_limits_can_be_set() -> None:
    with pytest.raises(InvalidRequest, match="at most 1 allowed"):
        SamplingParams(stop=("a", "b")).verify(limits=SamplingLimits(stops=1))
