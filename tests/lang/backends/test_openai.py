"""What OpenAI's API is asked, and how a completion model chooses."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import openai
import pytest

import callboard as cb
from callboard import InvalidRequest, OpenAI
from callboard.actors.backend import Prompt
from callboard.actors.sampling import SamplingParams

from .dialects import CHAT, COMPLETION, service_of
from .service import Act, serving, stream

pytestmark = pytest.mark.anyio

ASKED = Prompt(text="user: France?\nassistant: ", messages=({"role": "user", "content": "France?"},), role="assistant")


async def asked(dialect: Any, sampling: SamplingParams, **options: Any) -> dict[str, Any]:
    async with serving(service_of(dialect)) as service, dialect.make(service.url, **options) as backend:
        async for _ in backend.generate(ASKED, sampling):
            pass
        assert service.asked[0].headers["authorization"] == "Bearer secret"
        return service.asked[0].body


async def test_a_chat_request_has_what_was_said_and_nothing_that_is_default():
    with anyio.fail_after(20):
        assert await asked(CHAT, SamplingParams(max_new_tokens=9)) == {
            "model": "gpt",
            "messages": [{"role": "user", "content": "France?"}],
            "max_tokens": 9,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


async def test_every_setting_goes_by_the_vendor_s_name():
    sampling = SamplingParams(
        max_new_tokens=9, stop=("\n", "Q"), temperature=0.0, top_p=0.5, frequency_penalty=0.25, presence_penalty=-1.0,
        logit_bias={50: -100.0}, seed=7, json_schema='{"type":"object"}',
    )  # fmt: skip
    with anyio.fail_after(20):
        body = await asked(CHAT, sampling, token_limit="max_completion_tokens")
    assert body | {
        "max_completion_tokens": 9, "stop": ["\n", "Q"], "temperature": 0.0, "top_p": 0.5, "frequency_penalty": 0.25,
        "presence_penalty": -1.0, "logit_bias": {"50": -100.0}, "seed": 7,
        "response_format": {
            "type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True}
        },
    } == body  # fmt: skip
    assert "max_tokens" not in body


async def test_a_completion_model_reads_text():
    with anyio.fail_after(20):
        body = await asked(COMPLETION, SamplingParams(max_new_tokens=9, stop=("\n",)))
    assert (body["prompt"], body["max_tokens"], body["stop"]) == (ASKED.text, 9, ["\n"])


def test_what_a_model_is_shows_in_its_name():
    names = {"gpt-4o": True, "gpt-3.5-turbo-instruct": False, "davinci-002": False}
    assert {name: OpenAI(name, api_key="x").is_chat_model for name in names} == names
    assert OpenAI("mine", False, api_key="x").is_chat_model is False


def test_a_missing_key_is_told_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(openai.OpenAIError, match="api_key"):
        OpenAI("gpt-4o")


async def test_azure_is_asked_at_its_own_address():
    with anyio.fail_after(20):
        async with serving(service_of(CHAT)) as service:
            options = {"azure_endpoint": service.url, "api_version": "2024-10-21", "api_key": "secret"}
            async with OpenAI("mine", is_azure=True, **options) as backend:
                assert [delta.text async for delta in backend.generate(ASKED, SamplingParams())][-1] == ""
            assert service.asked[0].path == "/openai/deployments/mine/chat/completions"
            assert service.asked[0].headers["api-key"] == "secret"
            assert service.asked[0].body["max_completion_tokens"] == 128


def test_openai_s_own_bounds_hold_at_openai():
    own, other = OpenAI("gpt-4o", api_key="x"), OpenAI("gpt-4o", api_key="x", base_url="http://127.0.0.1:1/v1")
    for sampling, field in (
        (SamplingParams(stop=tuple("abcde")), "stop"),
        (SamplingParams(temperature=2.5), "temperature"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            own.verify(sampling)
        assert caught.value.field == field
        other.verify(sampling)
    with pytest.raises(InvalidRequest, match="max_new_tokens"):
        other.verify(SamplingParams(max_new_tokens=0))


async def test_an_answer_begun_by_the_program_is_refused():
    @cb.function
    def begun(s: Any) -> None:
        s += cb.user("France?")
        s += cb.assistant("The capital is " + cb.gen("answer"))

    with anyio.fail_after(20):
        async with serving(service_of(CHAT)) as service, CHAT.make(service.url) as backend:
            with pytest.raises(InvalidRequest, match="'The capital is '"):
                await begun.arun(backend=backend)
            assert service.asked == []
        async with serving(service_of(COMPLETION)) as service, COMPLETION.make(service.url) as backend:
            await begun.arun(backend=backend)
            assert service.asked[0].body["prompt"] == "user: France?\nassistant: The capital is "


async def test_a_filtered_answer_is_a_failure():
    with anyio.fail_after(20):
        filtered = stream(*CHAT.told("Par", reason="content_filter"))
        async with serving(service_of(CHAT, filtered)) as service, CHAT.make(service.url) as backend:
            with pytest.raises(cb.GenerationFailed, match="content filter"):
                async for _ in backend.generate(ASKED, SamplingParams()):
                    pass


async def test_an_empty_purse_is_not_asked_again():
    body = msgspec.json.encode({"error": {"message": "no credit", "type": "x", "code": "insufficient_quota"}})
    with anyio.fail_after(20):
        async with serving(service_of(CHAT, Act((body,), 429))) as service, CHAT.make(service.url) as backend:
            with pytest.raises(cb.GenerationFailed, match="no credit"):
                async for _ in backend.generate(ASKED, SamplingParams()):
                    pass
            assert len(service.asked) == 1


# --- choices ---------------------------------------------------------------------------------------------------------


def echoed(*texts: list[tuple[str, float | None]]) -> Act:
    choices = [
        {
            "index": index,
            "text": "".join(token for token, _ in tokens),
            "finish_reason": "length",
            "logprobs": {
                "tokens": [token for token, _ in tokens],
                "token_logprobs": [logprob for _, logprob in tokens],
                "top_logprobs": None,
                "text_offset": [0] * len(tokens),
            },
        }
        for index, tokens in enumerate(texts)
    ]
    body = {"id": "c", "object": "text_completion", "created": 1, "model": "gpt", "choices": choices}
    return Act((msgspec.json.encode(body),), headers=(("content-type", "application/json"),))


@cb.function
def choose(s: Any) -> None:
    s += "I say "
    s += cb.select("answer", choices=["yes", "no, never"])


async def test_a_completion_model_chooses_by_its_own_tokens():
    """The prompt's last token is another one beside a choice, so the choices' tokens count from there."""
    alone = [("I", None), (" say", -9.0), (" ", -9.0)]
    yes = [("I", None), (" say", -9.0), (" yes", -4.0)]
    never = [("I", None), (" say", -9.0), (" no", -1.0), (",", -2.0), (" never", -3.0)]
    with anyio.fail_after(20):
        async with serving(service_of(COMPLETION, echoed(alone, yes, never))) as service:
            async with COMPLETION.make(service.url) as backend:
                state = await choose.arun(backend=backend)
    body = service.asked[0].body
    assert (body["prompt"], body["echo"], body["max_tokens"]) == (["I say ", "I say yes", "I say no, never"], True, 0)
    assert state["answer"] == "no, never"
    meta = state.get_meta_info("answer")
    assert meta["normalized_prompt_logprobs"] == [-4.0, -2.0]
    assert meta["prompt_tokens"] == 2


async def test_a_server_without_echoed_logprobs_is_named():
    plain = {"index": 0, "text": "", "finish_reason": "length", "logprobs": None}
    body = {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [plain] * 3}
    refusal = COMPLETION.refusal(400, "echo and logprobs cannot be had together")
    act = Act((msgspec.json.encode(body),), headers=(("content-type", "application/json"),))
    with anyio.fail_after(20):
        async with serving(service_of(COMPLETION, act, refusal)) as service, COMPLETION.make(service.url) as backend:
            with pytest.raises(InvalidRequest, match="choices: .*no log-probabilities of its prompt"):
                await choose.arun(backend=backend)
            with pytest.raises(InvalidRequest, match="echo and logprobs cannot be had together"):
                await choose.arun(backend=backend)
