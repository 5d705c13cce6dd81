"""The parts that remote backends are made of."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from callboard import Aborted, GenerationFailed, InvalidRequest, Overloaded, Retries
from callboard.actors.sampling import SamplingParams
from callboard.lang.backends.events import events
from callboard.lang.backends.fault import Fault, Patience, retry_after_s
from callboard.lang.backends.native import NativeReply, native_request
from callboard.lang.backends.scoring import ReadToken, score_read

pytestmark = pytest.mark.anyio


def test_pauses_double_up_to_the_longest_and_are_spread():
    retries = Retries(first_s=0.5, longest_s=3.0)
    assert [retries.pause_s(attempt, None, 0.0) for attempt in (1, 2, 3, 4, 5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert retries.pause_s(1, None, 0.999) == pytest.approx(0.25, abs=0.001)
    assert retries.pause_s(4, 0.125, 0.5) == 0.125


async def test_patience_sleeps_as_long_as_the_service_asks():
    slept: list[float] = []

    async def sleep(pause_s: float) -> None:
        slept.append(pause_s)

    patience = Patience(Retries(times=2, first_s=8.0), sleep)
    fault = Fault(Overloaded("busy", retry_after_s=2.5), retry=True, after_s=2.5)
    await patience.bear(fault)
    await patience.bear(Fault(GenerationFailed("broken"), retry=True))
    assert slept[0] == 2.5
    assert 8.0 <= slept[1] <= 16.0
    with pytest.raises(Overloaded):
        await patience.bear(fault)


def test_retry_after_in_all_its_forms():
    assert retry_after_s({"retry-after": "3"}) == 3.0
    assert retry_after_s({"retry-after-ms": "250", "retry-after": "3"}) == 0.25
    assert retry_after_s({}) is None
    assert retry_after_s({"retry-after": "soon"}) is None
    assert retry_after_s({"retry-after": format_datetime(datetime.now(UTC) - timedelta(days=1))}) == 0.0
    later = retry_after_s({"retry-after": format_datetime(datetime.now(UTC) + timedelta(days=1))})
    assert later == pytest.approx(86400, abs=60)


async def chunked(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def test_events_end_at_newlines_only_wherever_the_bytes_are_parted():
    text = '{"text":"a\u2028b\x85c"}'
    data = f": comment\r\ndata: {text}\r\n\r\ndata:{text}\n\ndata: [DONE]\n\ndata: 1\n\n".encode()
    for cut in range(len(data)):
        found = [event async for event in events(chunked(data[:cut], data[cut:]), "it")]
        assert found == [{"text": "a\u2028b\x85c"}] * 2


def event(text: str, finish: Any = None) -> dict[str, Any]:
    return {"text": text, "output_ids": list(range(len(text))), "meta_info": {"finish_reason": finish}}


def test_text_that_may_become_a_stop_string_is_held_back():
    reply = NativeReply("it", SamplingParams(stop=("\nUser", "END")))
    given = [reply.add(event(text)).text for text in ("a\n", "a\nU", "a\nUp E", "a\nUp EN")]
    assert given == ["a", "", "\nUp ", ""]
    assert reply.add(event("a\nUp ", {"type": "stop", "matched": "END"})).text == ""


def test_text_that_is_taken_back_is_a_failure():
    reply = NativeReply("it", SamplingParams())
    reply.add(event("Paris"))
    with pytest.raises(Fault, match="took back"):
        reply.add(event("Par", {"type": "stop"}))


@pytest.mark.parametrize(
    ("status", "kind"), [(400, InvalidRequest), (503, Overloaded), (None, Aborted)], ids=["mistake", "busy", "abort"]
)
def test_an_aborted_generation_says_why(status: int | None, kind: type[Exception]):
    finish = {"type": "abort", "message": "the reason", "status_code": status}
    with pytest.raises(Fault, match="the reason") as caught:
        NativeReply("it", SamplingParams()).add(event("", finish))
    assert type(caught.value.error) is kind


def test_a_native_request_has_sglang_s_names():
    sampling = SamplingParams(seed=5, stop=("x",), json_schema="{}", return_logprob=True, logprob_start=3)
    assert native_request("text", sampling) == {
        "text": "text",
        "sampling_params": {
            "max_new_tokens": 128, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
            "frequency_penalty": 0.0, "presence_penalty": 0.0,  # said, lest a server has preferences of its own
            "sampling_seed": 5, "stop": ("x",), "json_schema": "{}",
        },
        "return_logprob": True, "logprob_start_len": 3, "top_logprobs_num": 0,
    }  # fmt: skip


def read(*tokens: int, told: int = 0) -> list[ReadToken]:
    """Tokens whose log-probability is their id, negated; the first `told` have none."""
    return [ReadToken(token, token, None if index < told else -float(token)) for index, token in enumerate(tokens)]


def test_what_all_have_in_common_is_the_prompt():
    scores = score_read(["a", "b"], read(1, 2, 3, told=1), [read(1, 2, 7, told=1), read(1, 2, 8, 9, told=1)], first=4)
    assert scores is not None
    assert [score.tokens for score in scores.scores] == [(7,), (8, 9)]
    assert [score.logprobs for score in scores.scores] == [(-7.0,), (-8.0, -9.0)]
    assert scores.prompt_tokens == 6


def test_a_window_that_begins_too_late_is_told():
    assert score_read(["a", "b"], read(1), [read(2), read(3)], first=4) is None
    assert score_read(["a", "b"], read(1), [read(1, told=1), read(1, 2, told=1)], first=4) is None


def test_every_choice_keeps_a_token():
    scores = score_read(["a", "ab"], read(1, 2), [read(1, 2), read(1, 2, 3)], first=0)
    assert scores is not None
    assert [score.tokens for score in scores.scores] == [(2,), (2, 3)]
