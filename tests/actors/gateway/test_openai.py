"""The official openai client works, and the two routes keep OpenAI's promises."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import openai
import pytest

from .fake_engine import FakeEngine
from .serving import Served, events, serving

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def openai_client(engine: FakeEngine, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    with anyio.fail_after(30):
        async with serving(engine, **options) as served:
            async with openai.DefaultAsyncHttpxClient(trust_env=False) as http:
                key = options.get("api_key", "none")
                yield openai.AsyncOpenAI(base_url=served.url + "/v1", api_key=key, http_client=http, max_retries=0)


MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]
RENDERED = "user: hi\nassistant: "


async def test_chat_through_the_openai_client():
    async with openai_client(FakeEngine()) as client:
        reply = await client.chat.completions.create(model="fake", messages=MESSAGES)
    choice = reply.choices[0]
    assert choice.message.content == RENDERED
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert reply.id.startswith("chatcmpl-")
    assert reply.model == "fake"
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (20, 20, 40)
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.cached_tokens == 1


async def test_a_chat_stream_through_the_openai_client():
    async with openai_client(FakeEngine()) as client:
        stream = await client.chat.completions.create(
            model="fake", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == RENDERED
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert [reason for reason in reasons if reason] == ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 40
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


async def test_an_answer_can_be_sent_back_as_history():
    async with openai_client(FakeEngine()) as client:
        first = await client.chat.completions.create(model="fake", messages=MESSAGES, max_tokens=2)
        history: list[Any] = [
            *MESSAGES,
            first.choices[0].message,
            {"role": "user", "content": [{"type": "text", "text": "go"}]},
        ]
        second = await client.chat.completions.create(model="fake", messages=history)
    assert second.choices[0].message.content == "user: hi\nassistant: us\nuser: go\nassistant: "


async def test_developers_speak_as_the_system():
    async with openai_client(FakeEngine()) as client:
        messages: list[Any] = [{"role": "developer", "content": "be brief"}, *MESSAGES]
        reply = await client.chat.completions.create(model="default", messages=messages)
    assert reply.choices[0].message.content == "system: be brief\n" + RENDERED


async def test_chat_logprobs_and_choices():
    engine = FakeEngine()
    async with openai_client(engine) as client:
        reply = await client.chat.completions.create(
            model="fake", messages=MESSAGES, n=2, logprobs=True, top_logprobs=1, max_completion_tokens=2, seed=5
        )
        stream = await client.chat.completions.create(
            model="fake", messages=MESSAGES, n=2, logprobs=True, max_tokens=2, stream=True
        )
        chunks = [chunk async for chunk in stream]
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert [choice.finish_reason for choice in reply.choices] == ["length", "length"]
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    first = logprobs.content[0]
    assert (first.token, first.logprob, first.bytes) == ("u", -0.5, [117])
    assert [top.token for top in first.top_logprobs] == ["A"]
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (20, 4)  # the prompt counts once
    assert [sampling.seed for sampling in engine.samplings[:2]] == [5, 6]
    texts = {0: "", 1: ""}
    tokens: dict[int, list[str]] = {0: [], 1: []}
    for chunk in chunks:
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        assert choice.logprobs is not None
        tokens[choice.index] += [entry.token for entry in choice.logprobs.content or []]
    assert texts == {0: "us", 1: "us"}
    assert tokens == {0: ["u", "s"], 1: ["u", "s"]}


async def test_completions_through_the_openai_client():
    async with openai_client(FakeEngine()) as client:
        reply = await client.completions.create(model="fake", prompt="Once upon a time", max_tokens=4)
        default = await client.completions.create(model="fake", prompt="x" * 40)
        stream = await client.completions.create(model="fake", prompt="abc", stream=True)
        chunks = [chunk async for chunk in stream]
    assert reply.choices[0].text == "Once"
    assert reply.choices[0].finish_reason == "length"
    assert default.usage is not None
    assert default.usage.completion_tokens == 16
    assert "".join(chunk.choices[0].text for chunk in chunks) == "abc"
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_completions_of_a_batch_of_prompts_times_n():
    async with openai_client(FakeEngine()) as client:
        reply = await client.completions.create(model="fake", prompt=["ab", "c"], n=2)
        ids = await client.completions.create(model="fake", prompt=[[65, 66], [67]])
        one = await client.completions.create(model="fake", prompt=[65, 66])
    assert [(choice.index, choice.text) for choice in reply.choices] == [(0, "ab"), (1, "ab"), (2, "c"), (3, "c")]
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (3, 6)
    assert [choice.text for choice in ids.choices] == ["AB", "C"]
    assert one.choices[0].text == "AB"


async def test_echo_gives_the_prompt_and_its_logprobs_first():
    async with openai_client(FakeEngine()) as client:
        reply = await client.completions.create(model="fake", prompt="abc", echo=True, logprobs=1, max_tokens=2)
        stream = await client.completions.create(model="fake", prompt="abc", echo=True, max_tokens=2, stream=True)
        chunks = [chunk async for chunk in stream]
        only = await client.completions.create(model="fake", prompt="abc", echo=True, max_tokens=0)
        empty = await client.completions.create(model="fake", prompt="abc", echo=True, max_tokens=0, stream=True)
        empty_chunks = [chunk async for chunk in empty]
    choice = reply.choices[0]
    assert choice.text == "abcab"
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["a", "b", "c", "a", "b"]
    assert choice.logprobs.token_logprobs == [None, -2.0, -2.0, -0.5, -0.5]
    assert choice.logprobs.text_offset == [0, 1, 2, 3, 4]
    assert choice.logprobs.top_logprobs is not None
    assert choice.logprobs.top_logprobs[1:3] == [{"A": -0.5}] * 2
    assert "".join(chunk.choices[0].text for chunk in chunks) == "abcab"
    assert only.choices[0].text == "abc"
    assert "".join(chunk.choices[0].text for chunk in empty_chunks) == "abc"


async def test_a_regex_is_an_extension_of_response_format():
    engine = FakeEngine()
    async with openai_client(engine) as client:
        form: Any = {"type": "regex", "regex": "[a-z]+"}
        await client.chat.completions.create(model="fake", messages=MESSAGES, response_format=form)
        await client.chat.completions.create(model="fake", messages=MESSAGES, response_format={"type": "text"})
        await client.completions.create(
            model="fake", prompt="x", extra_body={"regex": "x", "top_k": 3, "min_tokens": 1}
        )
    assert [sampling.regex for sampling in engine.samplings] == ["[a-z]+", None, "x"]
    assert (engine.samplings[2].top_k, engine.samplings[2].min_new_tokens) == (3, 1)


async def test_json_schemas_and_grammars_bind():
    engine = FakeEngine()
    schema = {"type": "object", "properties": {"a": {"type": "null"}}}
    async with openai_client(engine) as client:
        form: Any = {"type": "json_schema", "json_schema": {"name": "thing", "strict": True, "schema": schema}}
        ask = client.chat.completions.create
        await ask(model="fake", messages=MESSAGES, response_format=form)
        await ask(model="fake", messages=MESSAGES, response_format={"type": "json_object"})
        await ask(model="fake", messages=MESSAGES, extra_body={"json_schema": schema})
        await client.completions.create(model="fake", prompt="x", extra_body={"ebnf": 'root ::= "x"'})
    text = msgspec.json.encode(schema).decode()
    assert [one.json_schema for one in engine.samplings] == [text, '{"type":"object"}', text, None]
    assert engine.samplings[3].ebnf == 'root ::= "x"'


async def test_without_a_limit_a_chat_may_fill_the_context():
    engine = FakeEngine()
    async with openai_client(engine) as client:
        await client.chat.completions.create(model="fake", messages=MESSAGES)
    assert engine.samplings[0].max_new_tokens == engine.limits.context_length


async def test_fields_that_change_nothing_are_accepted():
    async with openai_client(FakeEngine()) as client:
        reply = await client.chat.completions.create(
            model="fake", messages=MESSAGES, user="u", metadata={"a": "b"}, store=False, service_tier="auto", tools=[],
            tool_choice="none", modalities=["text"], logit_bias=None, stop=None, extra_body={"reasoning_effort": None},
        )  # fmt: skip
    assert reply.choices[0].finish_reason == "stop"


async def test_models_are_listed_and_described():
    async with openai_client(FakeEngine()) as client:
        listed = await client.models.list()
        one = await client.models.retrieve("fake")
        with pytest.raises(openai.NotFoundError, match="not served here"):
            await client.models.retrieve("gpt-4")
    assert [model.id for model in listed.data] == ["fake"]
    assert one.owned_by == "callboard"


async def test_a_failure_within_a_stream_raises_in_the_client():
    async with openai_client(FakeEngine()) as client:
        stream = await client.completions.create(model="fake", prompt="BREAK after three", stream=True)
        texts: list[str] = []
        with pytest.raises(openai.APIError, match="not numbers"):  # noqa: PT012 - the error is one of the loop's steps
            async for chunk in stream:
                texts.append(chunk.choices[0].text)  # noqa: PERF401
        assert "".join(texts) == "BRE"
        again = await client.completions.create(model="fake", prompt="fine")
    assert again.choices[0].text == "fine"


async def test_events_that_wait_go_out_in_one_write():
    engine = FakeEngine(step=4)
    with anyio.fail_after(20):
        async with serving(engine) as served:
            reply = await Served.post(served, "/v1/completions", prompt=["abcdefgh"] * 3, stream=True)
    *chunks, done = events(reply.text)
    assert done == "[DONE]"
    texts = {0: "", 1: "", 2: ""}
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert set(texts.values()) == {"abcdefgh"}
