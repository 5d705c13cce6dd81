"""Google's Gemini models, over their REST interface: Gemini's own, or Vertex AI's."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from ...actors.backend import Prompt
from ...actors.chat_template import ChatTemplate
from ...actors.errors import GenerationFailed, InvalidRequest
from ...actors.messages import Delta, Finish
from ...actors.sampling import SamplingParams
from ..parts import url_of
from .capabilities import Capabilities
from .conversation import converse
from .fault import Fault, Retries
from .http import HttpBackend
from .remote import Attempt
from .sdk import RETRYABLE

__all__ = ["Gemini"]

_NAMES = {
    "max_new_tokens": "maxOutputTokens",
    "stop": "stopSequences",
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "frequency_penalty": "frequencyPenalty",
    "presence_penalty": "presencePenalty",
    "seed": "seed",
}
_ABLE = Capabilities(
    sampling=frozenset({*_NAMES, "json_schema"}), begun=False, images=True, overruns="message", stops=5, temperature=2.0
)
_DEFAULTS = msgspec.structs.asdict(SamplingParams())
_ENDINGS = ("STOP", "MAX_TOKENS")


class Gemini(HttpBackend):
    """Run programs on one of Google's models.

    api_key goes with the request as x-goog-api-key; token, an OAuth access token, as Authorization, which is what
    Vertex AI wants, with base_url https://LOCATION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/LOCATION/
    publishers/google.  The system messages that a conversation begins with are its system instruction.
    """

    def __init__(
        self,
        model_name: str,
        *,
        api_key: str | None = None,
        token: str | None = None,
        base_url: str = "https://generativelanguage.googleapis.com/v1beta",
        timeout_s: float = 300.0,
        retries: Retries | None = None,
        concurrency: int = 256,
    ) -> None:
        if (api_key is None) == (token is None):
            raise InvalidRequest("api_key", "either api_key or token is needed, and not both")
        super().__init__(
            base_url,
            headers={"x-goog-api-key": api_key} if api_key else {"authorization": f"Bearer {token}"},
            retryable=RETRYABLE,
            certificates=None,
            capabilities=_ABLE,
            chat_template=ChatTemplate(),
            timeout_s=timeout_s,
            retries=retries,
            concurrency=concurrency,
        )
        self.model_name = model_name

    @property
    def who(self) -> str:
        return f"Google model {self.model_name}"

    def _attempt(self, prompt: Prompt, sampling: SamplingParams) -> Attempt:
        said = converse(prompt, self.chat_template, self.who, begun=self.capabilities.begun)
        body = _contents(list(said.messages), self.who) | {"generationConfig": _config(sampling)}
        path = f"/models/{self.model_name}:streamGenerateContent?alt=sse"

        async def attempt() -> AsyncGenerator[Delta, None]:
            reason: str | None = None
            usage: dict[str, Any] = {}
            async with aclosing(self._events(path, body)) as news:
                async for event in news:
                    usage = event.get("usageMetadata") or usage
                    if blocked := (event.get("promptFeedback") or {}).get("blockReason"):
                        raise Fault(GenerationFailed(f"{self.who}: the service refused the prompt ({blocked})"))
                    for candidate in (event.get("candidates") or [])[:1]:
                        reason = candidate.get("finishReason") or reason
                        if text := _text(candidate):
                            yield Delta(text=text)
            if reason is not None:
                yield Delta(finish=self._finish(reason, usage))

        return attempt

    def _finish(self, reason: str, usage: dict[str, Any]) -> Finish:
        if reason not in _ENDINGS:  # SAFETY, RECITATION, BLOCKLIST and their like
            raise Fault(GenerationFailed(f"{self.who}: the service stopped the answer ({reason})"))
        return Finish(
            reason="length" if reason == "MAX_TOKENS" else "stop",
            prompt_tokens=usage.get("promptTokenCount") or 0,
            cached_tokens=usage.get("cachedContentTokenCount") or 0,
            completion_tokens=usage.get("candidatesTokenCount") or 0,
        )


def _text(candidate: dict[str, Any]) -> str:
    """Give a candidate's text without its thoughts."""
    parts: list[Any] = (candidate.get("content") or {}).get("parts") or []
    return "".join(part.get("text") or "" for part in parts if not part.get("thought"))


def _contents(messages: list[dict[str, Any]], who: str) -> dict[str, Any]:
    """Write messages in Google's words: the system messages at the beginning apart, the assistant as "model"."""
    count = next((index for index, one in enumerate(messages) if one["role"] != "system"), len(messages))
    roles = {"user": "user", "assistant": "model"}
    contents: list[dict[str, Any]] = []
    for message in messages[count:]:
        if message["role"] not in roles:
            raise InvalidRequest(
                "messages", f"{who} takes system messages first, then user and assistant, not {message['role']!r} there"
            )
        contents.append({"role": roles[message["role"]], "parts": _parts(message["content"])})
    body: dict[str, Any] = {"contents": contents}
    if count:
        body["systemInstruction"] = {"parts": [{"text": message["content"]} for message in messages[:count]]}
    return body


def _parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"text": content}]
    parts: list[dict[str, Any]] = []
    for part in content:
        if (url := url_of(part)) is None:
            parts.append({"text": part["text"]})
        else:
            kind, _, data = url[len("data:") :].partition(";base64,")
            parts.append({"inlineData": {"mimeType": kind, "data": data}})
    return parts


def _config(sampling: SamplingParams) -> dict[str, Any]:
    """Give what differs from the default, and the length."""
    config: dict[str, Any] = {
        name: getattr(sampling, field)
        for field, name in _NAMES.items()
        if getattr(sampling, field) != _DEFAULTS[field] or field == "max_new_tokens"
    }
    if sampling.json_schema is not None:
        config["responseMimeType"] = "application/json"
        config["responseJsonSchema"] = msgspec.json.decode(sampling.json_schema)
    return config
