"""/generate keeps SGLang's promises."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import anyio
import pytest

from callboard.actors.gateway.token_text import TokenText
from callboard.actors.sampling import SamplingParams

from .fake_engine import FakeEngine
from .serving import events, serving

pytestmark = pytest.mark.anyio


async def test_text_is_answered_with_text_ids_and_meta_info():
    with anyio.fail_after(20):
        async with serving(FakeEngine()) as served:
            reply = await served.post("/generate", text="hello", sampling_params={"max_new_tokens": 3})
    assert reply.status_code == 200
    body = reply.json()
    assert body["text"] == "hel"
    assert body["output_ids"] == [104, 101, 108]
    meta = body["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 3}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (5, 3, 1)
    assert meta["id"]
    assert meta["e2e_latency"] > 0


async def test_put_is_taken_as_well():
    with anyio.fail_after(20):
        async with serving(FakeEngine()) as served:
            reply = await served.client.put("/generate", json={"text": "x"})
    assert reply.json()["text"] == "x"


async def test_a_stream_is_cumulative_and_ends_with_done():
    with anyio.fail_after(20):
        async with serving(FakeEngine()) as served:
            reply = await served.post("/generate", text="abc", stream=True, rid="mine")
    assert reply.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events(reply.text)
    assert done == "[DONE]"
    assert [chunk["text"] for chunk in chunks] == ["a", "ab", "abc", "abc"]
    assert [chunk["meta_info"]["finish_reason"] for chunk in chunks][:-1] == [None] * 3
    assert chunks[-1]["meta_info"]["finish_reason"] == {"type": "stop", "matched": None}
    assert {chunk["meta_info"]["id"] for chunk in chunks} == {"mine"}
    assert {chunk["meta_info"]["prompt_tokens"] for chunk in chunks} == {3}


async def test_a_batch_has_its_own_parameters_names_and_order():
    engine = FakeEngine()
    with anyio.fail_after(20):
        async with serving(engine) as served:
            reply = await served.post(
                "/generate",
                text=["first", "second"],
                sampling_params=[{"max_new_tokens": 2}, {"max_new_tokens": 3, "stop": "x"}],
                rid=["a", "b"],
            )
    assert [one["text"] for one in reply.json()] == ["fi", "sec"]
    assert [one["meta_info"]["id"] for one in reply.json()] == ["a", "b"]
    assert sorted(sampling.stop for sampling in engine.samplings) == [(), ("x",)]


async def test_a_batch_brings_only_so_many_expressions_and_lets_others_in_between():
    engine = FakeEngine()
    turns: list[int] = []
    verify = engine.verify

    def counted(sampling: SamplingParams) -> None:
        asyncio.get_running_loop().call_soon(turns.append, len(turns))
        verify(sampling)
        verified.append(len(turns))

    verified: list[int] = []
    engine.verify = counted
    with anyio.fail_after(20):
        async with serving(engine) as served:
            for count, status in ((32, 200), (33, 400)):
                params = [{"stop_regex": f"x{index % count}y"} for index in range(40)]
                reply = await served.post("/generate", text=["a"] * 40, sampling_params=params)
                assert reply.status_code == status
    assert reply.json()["error"]["message"].startswith("sampling_params.stop_regex: 33 different expressions given")
    assert verified == list(range(40))  # the loop has turned between two of them


async def test_n_of_one_prompt_gives_a_list_with_seeds_of_their_own():
    engine = FakeEngine()
    with anyio.fail_after(20):
        async with serving(engine) as served:
            reply = await served.post("/generate", text="ab", sampling_params={"n": 3, "sampling_seed": 7})
    assert [one["text"] for one in reply.json()] == ["ab"] * 3
    assert [sampling.seed for sampling in engine.samplings] == [7, 8, 9]


async def test_a_streamed_batch_tells_each_event_by_its_index():
    with anyio.fail_after(20):
        async with serving(FakeEngine()) as served:
            reply = await served.post("/generate", input_ids=[[65, 66], [67]], stream=True)
    *chunks, done = events(reply.text)
    assert done == "[DONE]"
    last = {chunk["index"]: chunk["text"] for chunk in chunks}
    assert last == {0: "AB", 1: "C"}
    ends = [chunk["index"] for chunk in chunks if chunk["meta_info"]["finish_reason"]]
    assert sorted(ends) == [0, 1]


async def test_logprobs_of_input_and_output_come_as_triples():
    with anyio.fail_after(20):
        async with serving(FakeEngine()) as served:
            reply = await served.post(
                "/generate",
                text="abc",
                sampling_params={"max_new_tokens": 1},
                return_logprob=True,
                logprob_start_len=1,
                top_logprobs_num=2,
                return_text_in_logprobs=True,
            )
            bare = await served.post("/generate", text="abc", return_logprob=True)
    meta = reply.json()["meta_info"]
    assert meta["input_token_logprobs"] == [[-2.0, 98, "b"], [-2.0, 99, "c"]]
    assert meta["output_token_logprobs"] == [[-0.5, 97, "a"]]
    assert meta["output_top_logprobs"] == [[[-0.5, 65, "A"], [-0.5, 66, "B"]]]
    assert meta["output_token_logprobs_length"] == 1
    meta = bare.json()["meta_info"]
    assert meta["input_token_logprobs"] == []
    assert [triple[2] for triple in meta["output_token_logprobs"]] == [None] * 3
    assert "output_top_logprobs" not in meta


async def test_what_was_told_before_is_looked_up_and_encoded_no_second_time(monkeypatch: pytest.MonkeyPatch):
    """Each event of a stream has all so far; what it costs to make must not grow with that."""
    looked: list[int] = []
    of = TokenText.of

    def counted(self: TokenText, token: int) -> str:
        looked.append(token)
        return of(self, token)

    monkeypatch.setattr(TokenText, "of", counted)
    asked = {"return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": True, "logprob_start_len": 0}
    with anyio.fail_after(20):
        async with serving(FakeEngine()) as served:
            whole = (await served.post("/generate", text="abcdefgh", **asked)).json()
            once = len(looked)
            reply = await served.post("/generate", text="abcdefgh", stream=True, **asked)
    *chunks, done = events(reply.text)
    assert done == "[DONE]"
    assert len(chunks) > 4
    for field in ("input_token_logprobs", "input_top_logprobs", "output_token_logprobs", "output_top_logprobs"):
        told = [chunk["meta_info"][field] for chunk in chunks]
        assert told[-1] == whole["meta_info"][field]
        assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(told))
    assert len(looked) == 2 * once


async def test_no_new_tokens_gives_the_prompts_logprobs_alone():
    with anyio.fail_after(20):
        async with serving(FakeEngine()) as served:
            reply = await served.post(
                "/generate", text="abc", sampling_params={"max_new_tokens": 0}, return_logprob=True, logprob_start_len=0
            )
    assert reply.json()["text"] == ""
    assert len(reply.json()["meta_info"]["input_token_logprobs"]) == 2


async def test_every_sampling_parameter_reaches_the_engine():
    engine = FakeEngine()
    given = {
        "max_new_tokens": 5, "min_new_tokens": 1, "stop": ["x"], "stop_token_ids": [5], "stop_regex": "a+b",
        "temperature": 0.5,
        "top_p": 0.9, "top_k": 4, "min_p": 0.1, "frequency_penalty": 0.2, "presence_penalty": 0.3,
        "repetition_penalty": 1.1, "logit_bias": {"65": -1.0}, "ignore_eos": True, "skip_special_tokens": False,
        "regex": "[a-z]+",
    }  # fmt: skip
    with anyio.fail_after(20):
        async with serving(engine) as served:
            reply = await served.post("/generate", text="hello", sampling_params={**given, "sampling_seed": 3})
    assert reply.status_code == 200
    sampling = engine.samplings[0]
    taken = {field: getattr(sampling, field) for field in given}
    assert taken == {**given, "stop": ("x",), "stop_token_ids": (5,), "stop_regex": ("a+b",), "logit_bias": {65: -1.0}}
    assert sampling.seed == 3
