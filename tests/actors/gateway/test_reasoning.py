"""Reasoning and answer are told apart for chats, where the operator says what the model writes around its reasoning."""

from __future__ import annotations

from typing import Any

import anyio
import openai
import pytest

from callboard.actors.chat_template import ChatTemplate
from callboard.actors.gateway import GatewayOptions
from callboard.actors.reasoning import Markers

from .fake_engine import FakeEngine
from .serving import Served, events, serving

pytestmark = pytest.mark.anyio

R1 = {"reasoning_parser": "deepseek-r1"}  # its template has opened the reasoning
THOUGHT, ANSWER = "user: Let me see.", "Yes.\nassistant: "
TEXT = "Let me see.</think>\n\nYes."  # the fake answers with the whole prompt


def asking(text: str = TEXT, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


async def told(served: Served, **body: Any) -> dict[str, Any]:
    """Ask for a chat as a whole and as a stream, see that they say the same, and give the message."""
    with anyio.fail_after(30):
        whole = (await served.post("/v1/chat/completions", **body)).json()["choices"]
        stream = events((await served.post("/v1/chat/completions", **body, stream=True)).text)
    assert stream.pop() == "[DONE]"
    streamed: dict[int, dict[str, str]] = {}
    for chunk in stream:
        (choice,) = chunk["choices"]
        message = streamed.setdefault(choice["index"], {})
        for field, text in choice["delta"].items():
            message[field] = message.get(field, "") + text
    for choice in whole:
        message = {field: text for field, text in choice["message"].items() if text or field == "content"}
        assert streamed[choice["index"]] == message
    return whole[0]["message"]


async def test_reasoning_and_answer_are_two_fields_streamed_or_not() -> None:
    async with serving(FakeEngine(), **R1) as served:
        for more in ({}, {"separate_reasoning": True}, {"n": 2, "seed": 1}):
            message = await told(served, **asking(**more))
            assert (message["reasoning_content"], message["content"]) == (THOUGHT, ANSWER)


async def test_a_marker_that_never_comes_leaves_all_of_it_reasoning() -> None:
    async with serving(FakeEngine(), **R1) as served:
        message = await told(served, **asking("Hm."))
    assert (message["reasoning_content"], message["content"]) == ("user: Hm.\nassistant:", "")


async def test_who_wants_the_text_as_it_is_gets_it() -> None:
    plain = f"user: {TEXT}\nassistant: "
    async with serving(FakeEngine(), **R1) as served:
        message = await told(served, **asking(separate_reasoning=False))
        assert message == {"role": "assistant", "content": plain, "refusal": None}
    async with serving(FakeEngine()) as served:
        assert (await told(served, **asking()))["content"] == plain
    async with serving(FakeEngine(), reasoning_parser="Qwen3") as served:  # its model opens the marker itself
        message = await told(served, **asking())
        assert (message["reasoning_content"], message["content"]) == (None, plain)


async def test_a_prompt_that_opens_the_marker_is_minded() -> None:
    engine = FakeEngine()
    opening = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<think>\n{% endif %}"
    engine.chat_template = ChatTemplate(opening)
    async with serving(engine, reasoning_parser="qwen3") as served:
        message = await told(served, **asking("hm</think>so"))
        assert (message["reasoning_content"], message["content"]) == ("hm", "so<think>\n")
        await served.post("/v1/chat/completions", **asking("a"), regex="[0-9]")
        assert engine.samplings[-1].reasoning == Markers("<think>", "</think>", opened=True)


async def test_reasoning_may_come_in_one_piece() -> None:
    async with serving(FakeEngine(), **R1, stream_interval_ms=0) as served:
        for stream_it in (True, False):
            reply = await served.post("/v1/chat/completions", **asking(stream=True, stream_reasoning=stream_it))
            deltas = [event["choices"][0]["delta"] for event in events(reply.text)[:-1]]
            thoughts = [delta["reasoning_content"] for delta in deltas if "reasoning_content" in delta]
            assert "".join(thoughts) == THOUGHT
            assert (len(thoughts) > 1) is stream_it
            answers = [index for index, delta in enumerate(deltas) if delta.get("content")]
            assert all("reasoning_content" not in delta for delta in deltas[answers[0] + 1 :])


async def test_a_constraint_binds_what_comes_behind_it() -> None:
    engine = FakeEngine()
    opened = Markers("<think>", "</think>", opened=True)
    async with serving(engine, **R1) as served:
        await served.post("/v1/chat/completions", **asking(), response_format={"type": "json_object"})
        assert (engine.samplings[-1].json_schema, engine.samplings[-1].reasoning) == ('{"type":"object"}', opened)
        params = {"regex": "[0-9]"}
        await served.post("/generate", text="a", sampling_params=params, require_reasoning=True)
        assert engine.samplings[-1].reasoning == opened
        await served.post("/generate", input_ids=[97, 98], sampling_params=params, require_reasoning=True)
        assert engine.samplings[-1].reasoning == opened
        await served.post("/generate", text="a", sampling_params=params)
        assert engine.samplings[-1].reasoning is None
        await served.post("/v1/completions", prompt="a", regex="[0-9]")
        assert engine.samplings[-1].reasoning is None


async def test_the_openai_client_sends_back_what_it_was_told() -> None:
    async with serving(FakeEngine(), **R1) as served, openai.DefaultAsyncHttpxClient(trust_env=False) as http:
        client = openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="none", http_client=http, max_retries=0)
        messages: list[Any] = asking()["messages"]
        first = (await client.chat.completions.create(model="fake", messages=messages)).choices[0].message
        assert first.model_extra == {"reasoning_content": THOUGHT}
        second = await client.chat.completions.create(model="fake", messages=[*messages, first.model_dump()])
        assert (second.choices[0].message.content or "").endswith(f"assistant: {ANSWER}\nassistant: ")


async def test_a_whole_text_is_parted_for_whoever_asks() -> None:
    text = "<think>\nhm\n</think>\n\nso"
    async with serving(FakeEngine()) as served:
        for parser in ("qwen3", "deepseek-r1"):
            reply = await served.post("/separate_reasoning", text=text, reasoning_parser=parser)
            assert reply.json() == {"reasoning_text": "hm", "text": "so"}
        unnamed = await served.post("/separate_reasoning", text=text)
        unknown = await served.post("/separate_reasoning", text=text, reasoning_parser="gpt")
    assert [reply.json()["error"]["param"] for reply in (unnamed, unknown)] == ["reasoning_parser"] * 2
    async with serving(FakeEngine(), **R1) as served:
        assert (await served.post("/separate_reasoning", text=text)).json()["text"] == "so"
        assert (await served.client.get("/server_info")).json()["reasoning_parser"] == "deepseek-r1"


async def test_without_a_parser_it_is_refused_by_name() -> None:
    async with serving(FakeEngine()) as served:
        chat = await served.post("/v1/chat/completions", **asking(separate_reasoning=True))
        native = await served.post("/generate", text="a", sampling_params={"regex": "a"}, require_reasoning=True)
    for reply, field in ((chat, "separate_reasoning"), (native, "require_reasoning")):
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, field)
        assert "--reasoning-parser" in reply.json()["error"]["message"]
    with pytest.raises(ValueError, match="reasoning_parser: 'gpt' is unknown; there are deepseek-r1"):
        GatewayOptions(reasoning_parser="gpt").verify()
