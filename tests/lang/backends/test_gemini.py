"""What Google's API is asked."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest
from google.oauth2.credentials import Credentials

import callboard as cb
from callboard import Gemini, GenerationFailed, InvalidRequest
from callboard.actors.backend import Prompt
from callboard.actors.sampling import SamplingParams

from .dialects import GOOGLE, service_of
from .service import HANG, serving, stream

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


class Lent(Credentials):
    """Credentials that have to be asked for a token, and count how often they were."""

    def __init__(self) -> None:
        super().__init__(token=None)
        self.asked = 0

    def refresh(self, request: Any) -> None:
        self.asked += 1
        self.token = f"lent-{self.asked}"


async def test_vertex_is_told_by_project_and_location():
    place = {"project": "mine", "location": "europe-west4"}
    with anyio.fail_after(20):
        async with serving(service_of(GOOGLE)) as service:
            for credentials in ({"token": "lent"}, {"credentials": Lent()}):
                async with cb.VertexAI("gemini", **place, **credentials, base_url=service.url) as backend:
                    for _ in range(2):
                        assert "".join([delta.text async for delta in backend.generate(ASKED, SamplingParams())])
    assert {one.path for one in service.asked} == {
        "/v1/projects/mine/locations/europe-west4/publishers/google/models/gemini:streamGenerateContent"
    }
    tokens = [one.headers["authorization"] for one in service.asked]
    assert tokens == ["Bearer lent"] * 2 + ["Bearer lent-1"] * 2
    assert not any("x-goog-api-key" in one.headers for one in service.asked)


async def test_credentials_that_do_not_work_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nowhere.json"))
    with anyio.fail_after(20):
        async with serving(service_of(GOOGLE)) as service:
            async with cb.VertexAI("gemini", project="mine", location="here", base_url=service.url) as backend:
                with pytest.raises(GenerationFailed, match=r"no credentials that work: .*nowhere\.json"):
                    async for _ in backend.generate(ASKED, SamplingParams()):
                        pass
    assert service.asked == []


def test_what_cannot_be_a_backend(monkeypatch: pytest.MonkeyPatch):
    for name in ("GCP_PROJECT_ID", "GCP_LOCATION", "GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidRequest, match="api_key: .*GEMINI_API_KEY"):
        Gemini("gemini")
    with pytest.raises(InvalidRequest, match="model_name"):
        Gemini("gemini?alt=json", api_key="secret")
    with pytest.raises(InvalidRequest, match="GCP_PROJECT_ID"):
        cb.VertexAI("gemini", token="t")
    monkeypatch.setenv("GCP_LOCATION", "europe-west4")
    with pytest.raises(InvalidRequest, match="safety_settings"):
        cb.VertexAI("gemini", {}, token="t", project="mine")
    with pytest.raises(InvalidRequest, match="token: .*not both"):
        cb.VertexAI("gemini", token="t", credentials=Lent(), project="mine")


async def test_who_leaves_early_hears_nothing_more():
    """What has come already, an error even, is nobody's when the generation is closed."""
    with anyio.fail_after(20):
        together = b"".join([*GOOGLE.begun("Par", "is"), GOOGLE.broken("the lights went out", "api_error")])
        async with serving(service_of(GOOGLE, stream(together, HANG))) as service, GOOGLE.make(service.url) as backend:
            async with aclosing(backend.generate(ASKED, SamplingParams())) as deltas:
                assert (await anext(deltas)).text == "Par"
            await service.gone.wait()
            assert not {"x-server-timeout", "x-callboard-generation"} & set(service.asked[0].headers)


@pytest.mark.parametrize("breaking", [GOOGLE.broken("the lights went out", "api_error"), b"data: {nonsense\n\n"])
async def test_a_failure_closes_the_connection(breaking: bytes):
    """The SDK leaves one open behind such an event."""
    with anyio.fail_after(20):
        script = stream(*GOOGLE.begun("Par"), breaking, HANG)
        async with serving(service_of(GOOGLE, script)) as service, GOOGLE.make(service.url) as backend:
            with pytest.raises(GenerationFailed):
                async for _ in backend.generate(ASKED, SamplingParams()):
                    pass
            await service.gone.wait()


@pytest.mark.parametrize(
    "event",
    [
        b'{"error": {"code": 500, "message": "the model is overloaded"}}',
        b'{"error": {"message": "the model is overloaded"}}',
        b'{"error": {"code": "503", "message": "the model is overloaded"}}',
        b'{"error": {"code": null, "message": "the model is overloaded"}}',
        b'{"error": "the model is overloaded"}',
        b'["the model is overloaded"]',
    ],
)
async def test_an_error_event_of_any_shape_fails_the_generation(event: bytes):
    script = stream(*GOOGLE.begun("Par"), b"data: " + event + b"\n\n")
    with anyio.fail_after(20):
        async with serving(service_of(GOOGLE, script)) as service, GOOGLE.make(service.url) as backend:
            with pytest.raises(
                GenerationFailed, match=r"^Google model gemini.* (overloaded|cannot be read: .+|was cut before its end)"
            ):
                _ = [delta async for delta in backend.generate(ASKED, SamplingParams())]
