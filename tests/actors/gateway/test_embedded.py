"""The gateway over the real engine, with the model that ships."""

from __future__ import annotations

from typing import Any

import anyio
import httpx
import openai
import pytest

from callboard.actors.core import Supervisor
from callboard.actors.engine import Engine
from callboard.actors.gateway import Address, Gateway, GatewayOptions
from callboard.actors.sampling import SamplingParams

from .serving import Served, events

pytestmark = pytest.mark.anyio

QUESTION = "What is the capital of France?"


async def test_what_is_served_is_what_the_engine_says():
    """One engine for all of it: it takes a second to start."""
    with anyio.fail_after(120):
        async with Engine("embedded", threads=1) as engine, Supervisor("gateway", grace=10.0) as supervisor:
            options = GatewayOptions(port=0, grace_s=0.5)
            ref = await supervisor.spawn(lambda: Gateway(engine, options), name="gateway")
            url = await ref.ask(Address())
            async with httpx.AsyncClient(base_url=url, timeout=60.0, trust_env=False) as client:
                served = Served(url, client, ref)
                await _texts_agree(served, engine)
                await _logprobs_agree(served)
                await _refusals(served)
                await _openai(served, engine)
                await _leaving(served, engine)
                await _figures(served)


async def _texts_agree(served: Served, engine: Engine) -> None:
    prompt = engine.chat_template.render([{"role": "user", "content": QUESTION}])
    alone = await engine.complete(prompt, SamplingParams(temperature=0.0, max_new_tokens=24))
    params = {"temperature": 0, "max_new_tokens": 24}
    whole = (await served.post("/generate", text=prompt, sampling_params=params)).json()
    stream = await served.post("/generate", text=prompt, sampling_params=params, stream=True)
    *chunks, done = events(stream.text)
    assert whole["text"] == chunks[-1]["text"] == alone.text
    assert whole["output_ids"] == chunks[-1]["output_ids"] == list(alone.tokens)
    assert done == "[DONE]"
    assert whole["meta_info"]["cached_tokens"] > 0  # the engine itself had asked the same before


async def _logprobs_agree(served: Served) -> None:
    asked: dict[str, Any] = {"text": "The capital of France is", "return_logprob": True, "logprob_start_len": 0}
    body = (await served.post("/generate", **asked, sampling_params={"max_new_tokens": 2, "temperature": 0})).json()
    meta = body["meta_info"]
    assert meta["output_token_logprobs_length"] == len(body["output_ids"])
    assert [triple[1] for triple in meta["output_token_logprobs"]] == body["output_ids"]
    assert len(meta["input_token_logprobs"]) == meta["prompt_tokens"] - 1
    assert all(logprob <= 0 for logprob, _, _ in meta["input_token_logprobs"])


async def _refusals(served: Served) -> None:
    for params, field in (
        ({"regex": "(("}, "regex"),
        ({"json_schema": {"uniqueItems": True}}, "json_schema"),
        ({"ebnf": "start: nothing"}, "ebnf"),
        ({"top_p": 2}, "top_p"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids"),
    ):
        reply = await served.post("/generate", text="x", sampling_params=params)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, field)
    long = await served.post("/v1/completions", prompt="word " * 5000)
    assert long.status_code == 400
    assert long.json()["error"]["code"] == "context_length_exceeded"


async def _openai(served: Served, engine: Engine) -> None:
    async with openai.DefaultAsyncHttpxClient(trust_env=False) as http:
        client = openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="none", http_client=http, max_retries=0)
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        reply = await client.chat.completions.create(
            model=engine.name, messages=messages, temperature=0, max_tokens=24, logprobs=True, top_logprobs=2
        )
        stream = await client.chat.completions.create(
            model=engine.name, messages=messages, temperature=0, max_tokens=24, stream=True
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        choice = reply.choices[0]
        assert text == choice.message.content
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert "".join(entry.token for entry in choice.logprobs.content) == text
        assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)
        seeded = [
            await client.completions.create(model=engine.name, prompt="One", n=2, seed=11, max_tokens=8)
            for _ in range(2)
        ]
        assert [choice.text for choice in seeded[0].choices] == [choice.text for choice in seeded[1].choices]
        form: Any = {"type": "regex", "regex": "[0-9]{3}"}
        number = await client.chat.completions.create(model=engine.name, messages=messages, response_format=form)
        assert len(number.choices[0].message.content or "") == 3
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes", "no"]}}}
        answer = await client.chat.completions.create(model=engine.name, messages=messages, response_format=form)
        assert answer.choices[0].message.content in {'"yes"', '"no"'}
        assert not answer.choices[0].model_extra
        for stream_it in (False, True):
            form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": "a" * 100}}}
            cut: Any = await client.chat.completions.create(
                model=engine.name, messages=messages, response_format=form, max_tokens=2, stream=stream_it
            )
            last = [chunk async for chunk in cut][-1] if stream_it else cut
            assert last.choices[0].finish_reason == "length"
            assert last.choices[0].model_extra == {"grammar_complete": False}


async def _leaving(served: Served, engine: Engine) -> None:
    long = {"max_new_tokens": 1500, "ignore_eos": True}
    for stream in (False, True):
        async with anyio.create_task_group() as group:

            async def post(stream: bool = stream) -> None:
                await served.post("/generate", text=["a", "b"], sampling_params=long, stream=stream)

            group.start_soon(post)
            while (await engine.statistics())["scheduler"]["running"] < 2:
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        while True:
            held = (await engine.statistics())["scheduler"]
            if held["running"] == held["waiting"] == held["slots_private"] == held["slots_locked"] == 0:
                break
            await anyio.lowlevel.checkpoint()
    flushed = (await served.client.post("/flush_cache")).json()
    assert flushed["success"] is True
    assert flushed["held"] == 0


async def _figures(served: Served) -> None:
    """What an operator watches: how busy the device is, what a step costs, queue, rows, tokens, hits, slots."""
    page = (await served.client.get("/metrics")).text
    values = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    for name in ("device_busy", "last_second_device_busy", "recent_device_ms_p50", "recent_gap_us_p90"):
        assert f"callboard_worker_{name}" in values
    for name in ("waiting", "running", "slots", "slots_free", "hit_rate"):
        assert f"callboard_scheduler_{name}" in values
    for name in ("steps", "computed_tokens", "output_tokens", "retractions", "host_seconds"):
        assert f"# TYPE callboard_scheduler_{name}_total counter" in page
    assert 0 < float(values["callboard_worker_device_busy"]) <= 1
    assert float(values["callboard_worker_steps_total"]) > 10
    assert float(values["callboard_worker_forward_s_total"]) <= float(values["callboard_worker_wall_s_total"])
    assert float(values["callboard_requests_admitted_total"]) > 0
