"""What Google's API is asked."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import callboard as cb
from callboard import Gemini, GenerationFailed, InvalidRequest
from callboard.actors.backend import Prompt
from callboard.actors.sampling import SamplingParams

from .dialects import GOOGLE, service_of
from .service import serving, stream

pytestmark = pytest.mark.anyio

ASKED = Prompt(text="user: France?\nassistant: ", messages=({"role": "user", "content": "France?"},), role="assistant")


async def test_a_conversation_in_google_s_words():
    @cb.function
    def two_turns(s: Any) -> None:
        s += cb.system("Be brief.")
        s += cb.user("France?")
        s += cb.assistant(cb.gen("first", max_tokens=9, stop="!", top_k=3))
        s += cb.user("Sure?")
        s += cb.assistant(cb.gen("second", max_tokens=9, json_schema={"type": "object"}))

    with anyio.fail_after(20):
        async with serving(service_of(GOOGLE)) as service, GOOGLE.make(service.url) as backend:
            await two_turns.arun(backend=backend)
    first, second = service.asked
    assert first.path == "/v1beta/models/gemini:streamGenerateContent"
    assert first.headers["x-goog-api-key"] == "secret"
    assert first.body == {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [{"role": "user", "parts": [{"text": "France?"}]}],
        "generationConfig": {"maxOutputTokens": 9, "stopSequences": ["!"], "topK": 3},
    }
    assert second.body["systemInstruction"] == first.body["systemInstruction"]
    assert [one["role"] for one in second.body["contents"]] == ["user", "model", "user"]
    assert second.body["generationConfig"] == {
        "maxOutputTokens": 9,
        "responseMimeType": "application/json",
        "responseJsonSchema": {"type": "object"},
    }


@pytest.mark.parametrize(
    "script",
    [stream(*GOOGLE.told("I", reason="SAFETY")), stream(b'data: {"promptFeedback": {"blockReason": "SAFETY"}}\n\n')],
)
async def test_a_stopped_answer_is_a_failure(script: Any):
    with anyio.fail_after(20):
        async with serving(service_of(GOOGLE, script)) as service, GOOGLE.make(service.url) as backend:
            with pytest.raises(GenerationFailed, match="SAFETY"):
                async for _ in backend.generate(ASKED, SamplingParams()):
                    pass
            assert len(service.asked) == 1


async def test_an_access_token_goes_as_authorization():
    with anyio.fail_after(20):
        async with serving(service_of(GOOGLE)) as service:
            async with Gemini("gemini", token="lent", base_url=service.url) as backend:
                async for _ in backend.generate(ASKED, SamplingParams()):
                    pass
            assert service.asked[0].headers["authorization"] == "Bearer lent"
    with pytest.raises(InvalidRequest, match="api_key"):
        Gemini("gemini")


def test_vertex_is_told_by_project_and_location(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GCP_PROJECT_ID", "GCP_LOCATION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(cb.InvalidRequest, match="GCP_PROJECT_ID"):
        cb.VertexAI("gemini-2.5-flash", token="t")
    monkeypatch.setenv("GCP_LOCATION", "europe-west4")
    backend = cb.VertexAI("gemini-2.5-flash", token="t", project="mine")
    assert backend.base_url == (
        "https://europe-west4-aiplatform.googleapis.com/v1/projects/mine/locations/europe-west4/publishers/google"
    )
    with pytest.raises(cb.InvalidRequest, match="safety_settings"):
        cb.VertexAI("gemini-2.5-flash", {}, token="t", project="mine")
